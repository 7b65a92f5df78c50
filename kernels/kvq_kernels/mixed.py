"""Tokens of mixed widths (QAQ): every token of a head has its own number of bits, 0 to 8, and a few exact elements."""

from typing import NamedTuple

import torch
from kvq_kernels.dispatch import Path, use_triton
from kvq_kernels.gemv import compute_type
from kvq_kernels.launch import MIXED, PROGRAMS_PER_PROCESSOR, power_of_two, processors, run
from kvq_kernels.midpoint import midpoint_values
from kvq_kernels.packing import pack, packed_bytes, unpack
from torch import Tensor


class MixedTokens(NamedTuple):
    """Matrices (kv heads) of tokens, each on whole bytes of its matrix's stream.

    codes (matrices, bytes) uint8 · offsets (matrices, tokens) int64, a token's first byte · widths (matrices, tokens)
    uint8 · lows, extents (matrices, tokens): range of the midpoint grid · outliers, positions (matrices, tokens, n):
    elements kept as they are, and where.
    """

    codes: Tensor
    offsets: Tensor
    widths: Tensor
    lows: Tensor
    extents: Tensor
    outliers: Tensor
    positions: Tensor

    @classmethod
    def of(
        cls, codes: Tensor, widths: Tensor, lows: Tensor, extents: Tensor, outliers: Tensor, positions: Tensor
    ) -> "MixedTokens":
        """Pack codes (matrices, tokens, head_dim) uint8, each token with the bits its width (matrices, tokens) says."""
        matrices, tokens, dim = codes.shape
        sizes = torch.tensor([0, *(packed_bytes(dim, bits) for bits in range(1, 9))], device=codes.device)
        lengths = sizes[widths.long()]
        offsets = lengths.cumsum(-1) - lengths
        stream = codes.new_zeros(matrices, max(1, int(lengths.sum(-1).max())) if tokens else 1)
        for bits in range(1, 9):
            matrix, token = (widths == bits).nonzero(as_tuple=True)
            if len(matrix):
                packed = pack(codes[matrix, token], bits)
                at = offsets[matrix, token][:, None] + torch.arange(packed.shape[-1], device=codes.device)
                stream[matrix[:, None], at] = packed
        return cls(stream, offsets, widths.to(torch.uint8), lows, extents, outliers, positions.to(torch.int16))


def mixed_scores(q: Tensor, keys: MixedTokens, path: Path = "auto") -> Tensor:
    """q (matrices, n, head_dim) . keysᵀ: float32 (matrices, n, tokens)."""
    matrices, queries, dim = q.shape
    if not use_triton("mixed_scores", path, q, _obstacle(dim)):
        return q.float() @ mixed_dense(keys, dim).transpose(-1, -2)
    from kvq_kernels.triton_ops.mixed import mixed_scores_kernel

    tokens = keys.widths.shape[-1]
    out = torch.empty(matrices, queries, tokens, dtype=torch.float32, device=q.device)
    sizes = {"queries": queries, "tokens": tokens, "dim": dim, "stream": keys.codes.stride(0)}
    grid = (matrices, -(-tokens // MIXED.tokens))
    tensors = {"q": q.contiguous(), **_contiguous(keys), "out": out}
    run(mixed_scores_kernel, grid, MIXED, {**tensors, **sizes}, _constants(q, keys, dim, queries))
    return out


def mixed_values(p: Tensor, values: MixedTokens, head_dim: int, path: Path = "auto") -> Tensor:
    """p (matrices, n, tokens) . values: float32 (matrices, n, head_dim)."""
    matrices, queries, tokens = p.shape
    if not use_triton("mixed_values", path, p, _obstacle(head_dim)):
        return p.float() @ mixed_dense(values, head_dim)
    from kvq_kernels.triton_ops.mixed import mixed_values_kernel

    wanted = max(1, PROGRAMS_PER_PROCESSOR * processors(p) // matrices)
    chunk = -(-tokens // (min(wanted, -(-tokens // MIXED.tokens)) * MIXED.tokens)) * MIXED.tokens
    splits = -(-tokens // chunk)
    out = torch.empty(splits, matrices, queries, head_dim, dtype=torch.float32, device=p.device)
    sizes = {"queries": queries, "tokens": tokens, "dim": head_dim, "stream": values.codes.stride(0)}
    tensors = {"p": p.contiguous(), **_contiguous(values), "out": out}
    arguments = {**tensors, **sizes, "chunk": chunk, "matrices": matrices}
    run(mixed_values_kernel, (matrices, splits), MIXED, arguments, _constants(p, values, head_dim, queries))
    return out.sum(0)


def mixed_dense(tokens: MixedTokens, head_dim: int) -> Tensor:
    """All tokens dequantized: float32 (matrices, tokens, head_dim)."""
    codes = tokens.codes.new_zeros(*tokens.widths.shape, head_dim)
    for bits in range(1, 9):
        matrix, token = (tokens.widths == bits).nonzero(as_tuple=True)
        if len(matrix):
            size = torch.arange(packed_bytes(head_dim, bits), device=codes.device)
            at = tokens.offsets[matrix, token][:, None] + size
            codes[matrix, token] = unpack(tokens.codes[matrix[:, None], at], bits, head_dim)
    low, extent = tokens.lows.float()[..., None], tokens.extents.float()[..., None]
    values = midpoint_values(codes, low, extent, tokens.widths[..., None])
    return values.scatter_(-1, tokens.positions.long() & 0xFFFF, tokens.outliers.float())


def _contiguous(tokens: MixedTokens) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tokens._asdict().items()}


def _constants(like: Tensor, tokens: MixedTokens, dim: int, queries: int) -> dict[str, object]:
    return {
        "M": max(16, power_of_two(queries)), "BT": MIXED.tokens, "DP": max(16, power_of_two(dim)),
        "OUTLIERS": tokens.positions.shape[-1], "DTYPE": compute_type(like),
    }  # fmt: skip


def _obstacle(dim: int) -> str | None:
    return None if dim <= 256 else f"head_dim = {dim} is larger than 256"
