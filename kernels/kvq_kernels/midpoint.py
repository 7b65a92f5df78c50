"""Midpoint quantization: a range cut into 2^bits equal cells, a code read as the middle of its cell.

Cells nest: the code at b bits is the code at B > b bits shifted right by B - b, so one fine code of the original value
gives every coarser one exactly.
"""

import torch
from torch import Tensor


def midpoint_codes(x: Tensor, low: Tensor, extent: Tensor, bits: int) -> Tensor:
    """Cell of x (..., n) in [low, low + extent] (..., 1), uint8; values outside take the nearest cell."""
    cells = 1 << bits
    extent = torch.where(extent > 0, extent, torch.ones_like(extent))
    return ((x - low) * (cells / extent)).floor_().clamp_(0, cells - 1).to(torch.uint8)


def midpoint_values(codes: Tensor, low: Tensor, extent: Tensor, bits: int | Tensor) -> Tensor:
    """Middles of cells: float32 (..., n); ``bits`` may differ along the last but one dimension, as (..., 1).

    At 0 bits every value is the middle of the range.
    """
    cell = extent * torch.exp2(-torch.as_tensor(bits, dtype=torch.float32, device=codes.device))
    return codes.float().add_(0.5).mul_(cell).add_(low)
