"""Tokens of mixed widths (QAQ): every unit has its own number of bits, 0 to 8, and a few exact elements."""

from typing import NamedTuple

import torch
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.gemv import compute_type
from kvq_kernels.launch import MIXED, power_of_two, run, split_tokens
from kvq_kernels.midpoint import midpoint_values
from kvq_kernels.packing import pack, packed_bytes, unpack
from torch import Tensor

WIDEST = 8
TAG = 4  # bits that name a unit's width


class MixedTokens(NamedTuple):
    """A unit is a token's vector in one head, or in several heads side by side; units are ordered (token, row, unit).

    codes (bytes,) uint8: the units of width 0, of width 1, ... one after another, a unit on whole bytes · slots (all
    units,) int64: a unit's place among those of its width · widths (bytes,) uint8, 4 bits a unit · lows, extents
    (tokens, rows, units): range of the midpoint grid · outliers, positions (tokens, rows, units, n): elements kept as
    they are, and where, in 16 bits without sign.
    """

    codes: Tensor
    starts: Tensor  # (9,) int64, where the units of a width begin in codes
    sizes: Tensor  # (9,) int64, bytes of a unit of each width
    slots: Tensor
    widths: Tensor
    lows: Tensor
    extents: Tensor
    outliers: Tensor
    positions: Tensor

    @classmethod
    def of(
        cls, codes: Tensor, widths: Tensor, lows: Tensor, extents: Tensor, outliers: Tensor, positions: Tensor
    ) -> "MixedTokens":
        """Pack codes (tokens, rows, units, size) uint8 with widths (tokens, rows, units)."""
        flat, bits = codes.flatten(0, -2), widths.flatten().to(torch.uint8)
        pools, slots = [], torch.empty(len(bits), dtype=torch.long, device=codes.device)
        for width in range(WIDEST + 1):
            at = (bits == width).nonzero()[:, 0]
            slots[at] = torch.arange(len(at), device=codes.device)
            pools.append(pack(flat[at], width) if width else flat[:0])
        return cls.from_packed(pools, slots, pack(bits, TAG), lows, extents, outliers, positions.to(torch.int16))

    @classmethod
    def from_packed(
        cls, pools: list[Tensor], slots: Tensor, widths: Tensor, lows: Tensor, extents: Tensor, outliers: Tensor,
        positions: Tensor,
    ) -> "MixedTokens":  # fmt: skip
        """From units packed already: pools[w] (count, bytes) uint8."""
        codes = torch.cat([pool.flatten() for pool in pools])
        lengths = torch.tensor([0, *(pool.numel() for pool in pools[:-1])]).cumsum(0)
        sizes = torch.tensor([pool.shape[-1] for pool in pools])
        starts, sizes = lengths.to(codes.device), sizes.to(codes.device)
        return cls(codes, starts, sizes, slots, widths, lows, extents, outliers, positions)

    @property
    def index_bytes(self) -> int:
        """Bytes of what the widths alone would give, and is at hand so that units are found at once."""
        return sum(t.numel() * t.element_size() for t in (self.starts, self.sizes, self.slots))


def mixed_scores(q: Tensor, keys: MixedTokens, path: Path = "auto") -> Tensor:
    """q (rows, kv_heads, n, head_dim) . keysᵀ: float32 (rows, kv_heads, n, tokens)."""
    *lead, queries, dim = q.shape
    _check(keys, q.shape)
    tokens = keys.lows.shape[0]
    if not use_triton("mixed_scores", path, q, _obstacle(dim)):
        return q.float() @ mixed_dense(keys, q.shape[1], dim).transpose(-1, -2)
    from kvq_kernels.triton_ops.mixed import mixed_scores_kernel

    out = torch.empty(*lead, queries, tokens, dtype=torch.float32, device=q.device)
    grid = (out.shape[:2].numel() * -(-tokens // MIXED.tokens),)
    arguments = {"q": q.contiguous(), **_arguments(keys, q.shape), "out": out, "queries": queries, "dim": dim}
    run(mixed_scores_kernel, grid, MIXED, arguments, _constants(q, keys, dim, queries))
    return out


def mixed_values(p: Tensor, values: MixedTokens, head_dim: int, path: Path = "auto") -> Tensor:
    """p (rows, kv_heads, n, tokens) . values: float32 (rows, kv_heads, n, head_dim)."""
    *lead, queries, tokens = p.shape
    _check(values, p.shape)
    if not use_triton("mixed_values", path, p, _obstacle(head_dim)):
        return p.float() @ mixed_dense(values, p.shape[1], head_dim)
    from kvq_kernels.triton_ops.mixed import mixed_values_kernel

    matrices = p.shape[:2].numel()
    chunk, splits = split_tokens(tokens, MIXED.tokens, matrices, p)
    out = torch.empty(splits, *lead, queries, head_dim, dtype=torch.float32, device=p.device)
    sizes = {"queries": queries, "dim": head_dim, "chunk": chunk, "matrices": matrices}
    arguments = {"p": p.contiguous(), **_arguments(values, p.shape), "out": out, **sizes}
    run(mixed_values_kernel, (matrices, splits), MIXED, arguments, _constants(p, values, head_dim, queries))
    return out.sum(0)


def mixed_dense(tokens: MixedTokens, kv_heads: int, head_dim: int) -> Tensor:
    """All tokens dequantized: float32 (rows, kv_heads, tokens, head_dim)."""
    count, rows, units = tokens.lows.shape
    size = head_dim * kv_heads // units
    widths = unpack(tokens.widths, TAG, count * rows * units)
    codes = tokens.codes.new_zeros(len(widths), size)
    for width in range(1, WIDEST + 1):
        at = (widths == width).nonzero()[:, 0]
        if not len(at):
            continue
        first, each = int(tokens.starts[width]), packed_bytes(size, width)
        pool = tokens.codes[first : first + len(at) * each].view(len(at), each)
        codes[at] = unpack(pool[tokens.slots[at]], width, size)
    parts = (t.flatten(0, 2) for t in (tokens.lows, tokens.extents, tokens.outliers, tokens.positions))
    return unit_values(codes, widths, *parts).view(count, rows, kv_heads, head_dim).permute(1, 2, 0, 3)


def unit_values(
    codes: Tensor, widths: Tensor, lows: Tensor, extents: Tensor, outliers: Tensor, positions: Tensor
) -> Tensor:
    """What codes (n, size) of ``widths`` (n,) stand for, float32: middles of cells of a range that begins at ``lows``
    (n,) and is ``extents`` (n,) long; ``outliers`` (n, k) at ``positions`` (n, k), unsigned in int16, as they are."""
    values = midpoint_values(codes, lows.float()[:, None], extents.float()[:, None], widths[:, None])
    return values.scatter_(-1, positions.long() & 0xFFFF, outliers.float())


def _arguments(tokens: MixedTokens, shape: torch.Size) -> dict[str, object]:
    count, rows, units = tokens.lows.shape
    tensors = {name: tensor.contiguous() for name, tensor in tokens._asdict().items()}
    return {**tensors, "tokens": count, "rows": rows, "units": units, "heads": shape[1]}


def _constants(like: Tensor, tokens: MixedTokens, dim: int, queries: int) -> dict[str, object]:
    return {
        "M": max(16, power_of_two(queries)), "BT": MIXED.tokens, "DP": max(16, power_of_two(dim)),
        "OUTLIERS": tokens.positions.shape[-1], "TAG": TAG, "DTYPE": compute_type(like),
    }  # fmt: skip


def _check(tokens: MixedTokens, shape: torch.Size) -> None:
    _, rows, units = tokens.lows.shape
    if len(shape) != 4 or shape[0] != rows or shape[1] % units:
        raise KernelError(f"{tuple(shape)} does not fit tokens of {rows} rows with {units} units each.")


def _obstacle(dim: int) -> str | None:
    return None if dim <= 256 else f"head_dim = {dim} is larger than 256"
