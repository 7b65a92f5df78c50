"""Sign-magnitude groups, and hybrid groups that take the symmetric or the asymmetric grid, whichever is closer."""

from typing import NamedTuple

import torch
from kvq_kernels.packing import pack, unpack
from kvq_kernels.quantize import GroupCodes, dequantize_groups, quantize_groups
from torch import Tensor


class SignedCodes(NamedTuple):
    """Codes of a tensor quantized symmetrically in groups along its last dimension.

    codes (..., n) uint8 magnitudes · signs (..., groups, ceil(group_size / 8)) uint8, a bit an element, 1 is minus ·
    scales (..., groups) in the metadata dtype; groups = ceil(n / group_size).
    """

    codes: Tensor
    signs: Tensor
    scales: Tensor


class HybridCodes(NamedTuple):
    """Codes of groups that are each symmetric or asymmetric.

    codes (..., n) uint8 · words (..., groups, bytes) uint8, the signs of a symmetric group or the bytes of the
    zero-point of an asymmetric one · scales (..., groups) · symmetric (..., groups) bool.
    """

    codes: Tensor
    words: Tensor
    scales: Tensor
    symmetric: Tensor


def quantize_signed(x: Tensor, bits: int, group_size: int, metadata: torch.dtype = torch.float16) -> SignedCodes:
    """Quantize x (..., n) in groups: scale = max|x| / (2^bits - 1), code = round(|x| / scale), and the sign apart.

    ``bits`` are those of the magnitude, so the grid has 2^(bits + 1) - 1 levels: 7 at 2 bits. The scale is rounded to
    ``metadata`` before coding; a group of zeros gets scale 1. Rounding is half to even.
    """
    groups = _grouped(x.float(), group_size)  # filled with zeros, which change no group's maximum
    sizes = groups.abs()
    top = (1 << bits) - 1
    scales = (sizes.amax(-1, keepdim=True) / sizes.new_full((), top)).to(metadata)  # see quantize_groups
    scales.masked_fill_(scales == 0, 1.0)  # NaN stays
    codes = sizes.div_(scales.float()).round_().clamp_(max=top).to(torch.uint8)
    return SignedCodes(codes.flatten(-2)[..., : x.shape[-1]], pack((groups < 0).to(torch.uint8), 1), scales[..., 0])


def dequantize_signed(coded: SignedCodes, group_size: int) -> Tensor:
    """Inverse of :func:`quantize_signed` up to rounding: float32 (..., n)."""
    signs = unpack(coded.signs, 1, group_size).float().mul_(-2).add_(1)
    levels = _grouped(coded.codes, group_size).float().mul_(signs).mul_(coded.scales.float()[..., None])
    return levels.flatten(-2)[..., : coded.codes.shape[-1]]


def quantize_hybrid(
    x: Tensor,
    bits: int,
    group_size: int,
    metadata: torch.dtype = torch.float16,
    zero_point: torch.dtype = torch.float32,
) -> HybridCodes:
    """Quantize x (..., n) both ways and keep, group by group, the grid with the lower squared error (a tie: symmetric).

    Words are as wide as the wider of both kinds, so that either fits its place.
    """
    signed = quantize_signed(x, bits, group_size, metadata)
    low = quantize_groups(x, bits, group_size, metadata, zero_point)
    errors = (
        _grouped((values - x).square_(), group_size).sum(-1)
        for values in (dequantize_signed(signed, group_size), dequantize_groups(low, group_size))
    )
    symmetric = torch.le(*errors)
    zeros = low.zeros.contiguous().view(torch.uint8).unflatten(-1, (low.zeros.shape[-1], -1))
    size = max(signed.signs.shape[-1], zeros.shape[-1])
    signs, zeros = (torch.nn.functional.pad(word, (0, size - word.shape[-1])) for word in (signed.signs, zeros))
    return HybridCodes(
        torch.where(_each(symmetric, group_size, x.shape[-1]), signed.codes, low.codes),
        torch.where(symmetric[..., None], signs, zeros),
        torch.where(symmetric, signed.scales, low.scales),
        symmetric,
    )


def dequantize_hybrid(coded: HybridCodes, group_size: int, zero_point: torch.dtype = torch.float32) -> Tensor:
    """Inverse of :func:`quantize_hybrid` up to rounding: float32 (..., n)."""
    codes, words, scales, symmetric = coded
    signs = words[..., : -(-group_size // 8)]
    zeros = words[..., : zero_point.itemsize].contiguous().view(zero_point)[..., 0]
    zeros = torch.where(symmetric, torch.zeros_like(zeros), zeros)  # a word of signs may read as NaN
    return torch.where(
        _each(symmetric, group_size, codes.shape[-1]),
        dequantize_signed(SignedCodes(codes, signs, scales), group_size),
        dequantize_groups(GroupCodes(codes, scales, zeros), group_size),
    )


def _grouped(x: Tensor, group_size: int) -> Tensor:
    """(..., n) -> (..., groups, group_size), a last incomplete group filled with zeros."""
    short = -x.shape[-1] % group_size
    return (torch.nn.functional.pad(x, (0, short)) if short else x).unflatten(-1, (-1, group_size))


def _each(groups: Tensor, group_size: int, count: int) -> Tensor:
    """What holds for the groups, for each of ``count`` elements: (..., groups) -> (..., count)."""
    return groups.repeat_interleave(group_size, -1)[..., :count]
