"""Asymmetric group quantization, the operation nearly every method is built from."""

from typing import NamedTuple

import torch
from torch import Tensor


class GroupCodes(NamedTuple):
    """Codes of a tensor quantized in groups along its last dimension.

    codes (..., n) uint8 · scales, zeros (..., ceil(n / group_size)), by default both in the metadata dtype.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor


def quantize_groups(
    x: Tensor, bits: int, group_size: int, metadata: torch.dtype = torch.float16, zero_point: torch.dtype | None = None
) -> GroupCodes:
    """Quantize x (..., n) in groups of ``group_size`` consecutive elements: code = round((x - min) / scale).

    Scale and zero-point are rounded to ``metadata`` *before* coding, so that decoding uses exactly the numbers the
    codes were chosen for. A last incomplete group is quantized by itself. A group of zero range gets scale 1 and
    code 0, which decodes to its (rounded) minimum; dividing by its zero scale would give NaN, which becomes an
    arbitrary integer on a CPU. Rounding is half to even. ``zero_point``: dtype of zero-points where it is another.
    """
    count = x.shape[-1]
    short = -count % group_size
    if short:  # repeating the last element changes neither the minimum nor the maximum of its group
        x = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], short)], -1)
    groups = x.float().unflatten(-1, (-1, group_size))
    low, high = torch.aminmax(groups, dim=-1, keepdim=True)
    top = (1 << bits) - 1
    zeros = low.to(zero_point or metadata)
    # a tensor on its own device: by a number, torch multiplies with its reciprocal on GPUs, which rounds otherwise
    scales = ((high - low) / high.new_full((), top)).to(metadata)
    scales.masked_fill_(scales == 0, 1.0)  # NaN stays
    codes = ((groups - zeros.float()) / scales.float()).round_().clamp_(0, top).to(torch.uint8)
    return GroupCodes(codes.flatten(-2)[..., :count], scales[..., 0], zeros[..., 0])


def dequantize_groups(coded: GroupCodes, group_size: int) -> Tensor:
    """Inverse of :func:`quantize_groups` up to rounding: float32 (..., n)."""
    count = coded.codes.shape[-1]
    codes = coded.codes
    short = -count % group_size
    if short:
        codes = torch.nn.functional.pad(codes, (0, short))
    groups = codes.unflatten(-1, (-1, group_size)).float()
    return groups.mul_(coded.scales.float()[..., None]).add_(coded.zeros.float()[..., None]).flatten(-2)[..., :count]
