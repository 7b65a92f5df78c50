"""Keys held as latent channels (SVDq): rebuilt, rotated and scored without ever being written out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.gemv import compute_type
from kvq_kernels.launch import LATENT, power_of_two, run
from kvq_kernels.packing import pack, packed_bytes, unpack
from kvq_kernels.quantize import GroupCodes, dequantize_groups
from kvq_kernels.rotation import Turn, rotate
from torch import Tensor


class LatentKeys(NamedTuple):
    """A prompt's keys of one layer before RoPE. A unit is one head, or all heads side by side.

    codes (units, bytes) uint8: a bit stream a latent channel · offsets (kept,) int64: its first bit · widths (kept,)
    int32: the bits of its codes · scales, zeros (units, kept) · basis (units, channels, kept) · mean (units, channels).
    Rows of a batch follow one another in the units.
    """

    codes: Tensor
    offsets: Tensor
    widths: Tensor
    scales: Tensor
    zeros: Tensor
    basis: Tensor
    mean: Tensor

    @classmethod
    def of(
        cls, codes: Tensor, widths: Sequence[int], scales: Tensor, zeros: Tensor, basis: Tensor, mean: Tensor
    ) -> "LatentKeys":
        """Pack codes (units, kept, tokens) uint8, channel c with widths[c] bits, each on whole bytes."""
        rows = [pack(codes[:, c], bits) for c, bits in enumerate(widths)]
        stream = torch.cat([codes.new_empty(codes.shape[0], 0), *rows], -1)
        return cls.from_packed(stream, [(1, bits) for bits in widths], codes.shape[-1], scales, zeros, basis, mean)

    @classmethod
    def from_packed(
        cls, stream: Tensor, groups: Sequence[tuple[int, int]], tokens: int, scales: Tensor, zeros: Tensor,
        basis: Tensor, mean: Tensor,
    ) -> "LatentKeys":  # fmt: skip
        """Codes packed already: ``groups`` of (channels, bits) one after another, each on whole bytes."""
        offsets, widths, byte = [], [], 0
        for channels, bits in groups:
            offsets += [8 * byte + c * tokens * bits for c in range(channels)]
            widths += [bits] * channels
            byte += packed_bytes(channels * tokens, bits)
        first = torch.tensor(offsets, dtype=torch.int64).to(stream.device)
        bits_of = torch.tensor(widths, dtype=torch.int32).to(stream.device)
        scales, zeros, basis, mean = (t.contiguous() for t in (scales, zeros, basis, mean))
        return cls(stream, first, bits_of, scales, zeros, basis, mean)


def latent_scores(q: Tensor, keys: LatentKeys, turn: Turn, tokens: int, path: Path = "auto") -> Tensor:
    """q (..., kv_heads, n, head_dim) after RoPE . RoPE(keys)ᵀ: float32 (..., kv_heads, n, tokens)."""
    *lead, heads, queries, dim = q.shape
    rows, (units, channels) = q.shape[:-3].numel(), keys.mean.shape
    if dim % 2 or (units, channels) not in ((rows, heads * dim), (rows * heads, dim)):
        raise KernelError(f"q {tuple(q.shape)} does not fit keys of {units} units with {channels} channels.")
    small = None if dim in (32, 64, 128, 256) else f"head_dim = {dim} is not 32, 64, 128 or 256"
    if not use_triton("latent_scores", path, q, small):
        k = latent_dense(keys, dim, tokens).unflatten(0, (*lead, heads))
        return q.float() @ rotate(k, turn).transpose(-1, -2)
    from kvq_kernels.triton_ops.latent import latent_scores_kernel

    out = torch.empty(*lead, heads, queries, tokens, dtype=torch.float32, device=q.device)
    sizes = {"queries": queries, "tokens": tokens, "kept": keys.widths.numel(), "channels": channels}
    run(
        latent_scores_kernel,
        (rows * heads * -(-tokens // LATENT.tokens),),
        LATENT,
        {
            "q": q.contiguous(), **keys._asdict(), **turn.contiguous()._asdict(), "out": out, **sizes,
            "heads": channels // dim, "row_bytes": keys.codes.stride(0),
        },
        {
            "HALF": dim // 2, "M": max(16, power_of_two(queries)), "BT": LATENT.tokens, "LATENT": 32,
            "DTYPE": compute_type(q),
        },
    )  # fmt: skip
    return out


def latent_dense(keys: LatentKeys, head_dim: int, tokens: int) -> Tensor:
    """The keys before RoPE, float32 (rows * kv_heads, tokens, head_dim)."""
    x = _latent(keys, tokens).transpose(-1, -2) @ keys.basis.float().transpose(-1, -2)
    x = x + keys.mean.float()[:, None]  # (units, tokens, channels)
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2).flatten(0, 1)


def _latent(keys: LatentKeys, tokens: int) -> Tensor:
    """Latent channels as their codes say, float32 (units, kept, tokens): neighbours of one width are read at once."""
    offsets, widths = keys.offsets.tolist(), keys.widths.tolist()
    rows, begin = [keys.scales.new_zeros(len(keys.scales), 0, tokens, dtype=torch.float32)], 0
    while begin < len(widths):
        bits, end = widths[begin], begin + 1
        while end < len(widths) and (widths[end], offsets[end]) == (bits, offsets[end - 1] + bits * tokens):
            end += 1
        first, count = offsets[begin] // 8, (end - begin) * tokens
        stream = keys.codes[:, first : first + packed_bytes(count, bits)]
        codes = unpack(stream, bits, count).unflatten(-1, (-1, tokens))
        own = GroupCodes(codes, keys.scales[:, begin:end, None], keys.zeros[:, begin:end, None])
        rows.append(dequantize_groups(own, tokens))
        begin = end
    return torch.cat(rows, 1)
