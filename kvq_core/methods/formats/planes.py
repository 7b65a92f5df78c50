"""Codes of 1 to 8 bits as planes of 8, 4, 2 and 1 bits: whole bytes, and plain shifts to read them."""

from itertools import accumulate

import torch
from kvq_kernels import pack, unpack
from torch import Tensor


def _planes(bits: int) -> list[tuple[int, int]]:
    """Widths, the widest first, each with how many lower bits of a code come before it: 5 is (4, 0), (1, 4)."""
    widths = [width for width in (8, 4, 2, 1) if bits & width]
    return list(zip(widths, accumulate(widths, initial=0), strict=False))


def pack_planes(codes: Tensor, bits: int) -> Tensor:
    """codes (..., n) uint8 below 2**bits, n a multiple of 8 -> (..., n * bits / 8) uint8."""
    parts = [pack(codes >> shift & (1 << width) - 1, width) for width, shift in _planes(bits)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def unpack_planes(packed: Tensor, bits: int) -> Tensor:
    """The inverse of ``pack_planes``."""
    count = packed.shape[-1] * 8 // bits
    planes = _planes(bits)
    parts = packed.split([count * width // 8 for width, _ in planes], -1)
    codes = unpack(parts[0], planes[0][0], count)
    for part, (width, shift) in zip(parts[1:], planes[1:], strict=True):
        codes = codes | unpack(part, width, count) << shift
    return codes
