"""Keys held as latent channels (SVDq): rebuilt, rotated and scored without ever being written out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.gemv import compute_type
from kvq_kernels.launch import LATENT, power_of_two, run
from kvq_kernels.packing import pack, packed_bytes, unpack
from torch import Tensor


class LatentKeys(NamedTuple):
    """The prompt's keys of one layer before RoPE. A unit is one head, or all heads side by side (units = 1).

    codes (units, bytes) uint8: one bit stream a latent channel, each on whole bytes · offsets, widths (kept,) int32:
    its first byte and its bits · scales, zeros (units, kept) · basis (units, channels, kept) · mean (units, channels).
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
        """Pack codes (units, kept, tokens) uint8, channel c with widths[c] bits."""
        rows = [pack(codes[:, c], bits) for c, bits in enumerate(widths)]
        sizes = torch.tensor([0, *(row.shape[-1] for row in rows)])
        device = codes.device
        stream = torch.cat([codes.new_empty(codes.shape[0], 0), *rows], -1)
        offsets = sizes.cumsum(0)[:-1].to(torch.int32).to(device)
        kinds = torch.tensor(list(widths), dtype=torch.int32, device=device)
        return cls(stream, offsets, kinds, scales.contiguous(), zeros.contiguous(), basis.contiguous(), mean)


def latent_scores(q: Tensor, keys: LatentKeys, cos: Tensor, sin: Tensor, tokens: int, path: Path = "auto") -> Tensor:
    """q (kv_heads, n, head_dim) after RoPE . RoPE(keys)ᵀ: float32 (kv_heads, n, tokens).

    cos, sin (tokens, head_dim) float32 at the keys' positions; channel i is rotated with channel i + head_dim / 2.
    """
    heads, queries, dim = q.shape
    units, channels = keys.mean.shape
    if dim % 2 or channels != (dim if units == heads and heads > 1 else heads * dim):
        raise KernelError(f"q {tuple(q.shape)} does not fit keys of {units} units with {channels} channels.")
    small = None if dim in (32, 64, 128, 256) else f"head_dim = {dim} is not 32, 64, 128 or 256"
    if not use_triton("latent_scores", path, q, small):
        k = latent_dense(keys, heads, tokens)
        turned = torch.cat([-k[..., dim // 2 :], k[..., : dim // 2]], -1)
        return q.float() @ (k * cos + turned * sin).transpose(-1, -2)
    from kvq_kernels.triton_ops.latent import latent_scores_kernel

    out = torch.empty(heads, queries, tokens, dtype=torch.float32, device=q.device)
    kept = keys.widths.numel()
    sizes = {"queries": queries, "tokens": tokens, "kept": kept, "units": units, "channels": channels}
    run(
        latent_scores_kernel,
        (heads, -(-tokens // LATENT.tokens)),
        LATENT,
        {
            "q": q.contiguous(), **keys._asdict(), "cos": cos.contiguous(), "sin": sin.contiguous(), "out": out,
            **sizes, "stream": keys.codes.stride(0),
        },
        {
            "HALF": dim // 2, "M": max(16, power_of_two(queries)), "BT": LATENT.tokens, "LATENT": 32,
            "DTYPE": compute_type(q),
        },
    )  # fmt: skip
    return out


def latent_dense(keys: LatentKeys, heads: int, tokens: int) -> Tensor:
    """The keys before RoPE, float32 (heads, tokens, head_dim)."""
    rows = []
    for c, bits in enumerate(keys.widths.tolist()):
        first = int(keys.offsets[c])
        rows.append(unpack(keys.codes[:, first : first + packed_bytes(tokens, bits)], bits, tokens))
    codes = torch.stack(rows, 1).float() if rows else keys.scales.new_empty(keys.codes.shape[0], 0, tokens).float()
    latent = codes * keys.scales.float()[..., None] + keys.zeros.float()[..., None]  # (units, kept, tokens)
    x = (keys.basis.float() @ latent + keys.mean.float()[..., None]).transpose(-1, -2)
    return x if x.shape[0] == heads else x[0].unflatten(-1, (heads, -1)).transpose(0, 1)
