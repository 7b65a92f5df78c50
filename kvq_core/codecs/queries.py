"""How kernels round queries before they meet quantized keys: queries (..., head_dim) after RoPE, not yet scaled."""

from collections.abc import Callable

import torch
from torch import Tensor

QueryRounding = Callable[[Tensor], Tensor]
BLOCK = 32  # of llama.cpp's q8_0, channels
MOST = 448.0  # the largest number of e4m3


def rounded_q8_0(queries: Tensor) -> Tensor:
    """llama.cpp's q8_0 (quantize_row_q8_0_ref): 8-bit integers of blocks of 32 channels, halves away from zero, with
    one fp16 scale, the largest element over 127. A head that is no multiple of 32 has a smaller last block."""
    return torch.cat([_rounded_block(block.float()) for block in queries.split(BLOCK, -1)], -1)


def _rounded_block(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    codes = x / scale.where(scale > 0, torch.ones_like(scale))
    return (codes.abs() + 0.5).floor() * codes.sign() * scale.half().float()


def rounded_e4m3(queries: Tensor) -> Tensor:
    """8-bit floating point with 4 bits of exponent and 3 of mantissa, without a scale; larger is its most."""
    return queries.float().clamp(-MOST, MOST).to(torch.float8_e4m3fn).float()
