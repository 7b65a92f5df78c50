"""How kernels round queries before they meet quantized keys: queries (..., head_dim) after RoPE, not yet scaled."""

from collections.abc import Callable

import torch
from torch import Tensor

QueryRounding = Callable[[Tensor], Tensor]
BLOCK = 32  # of llama.cpp's q8_0, channels
MOST = 448.0  # the largest number of e4m3
BELOW_HALF = 0.49999997  # the largest float32 below .5: added before truncating, it rounds halves away from zero


def q8_0(x: Tensor) -> tuple[Tensor, Tensor]:
    """llama.cpp's q8_0 (ggml-quants.c, quantize_row_q8_0_ref) of blocks x (..., channels) float32: codes int8 of the
    same shape, halves away from zero, and scales fp16 (..., 1), the largest magnitude over 127."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    scaled = x * inverse(scale)
    return (scaled + torch.copysign(x.new_full((), BELOW_HALF), scaled)).to(torch.int8), scale.half()


def inverse(scale: Tensor) -> Tensor:
    """1 / scale float32, 0 where a block has none to speak of, as ggml has it."""
    return (1 / scale).where(scale.abs() > torch.finfo(torch.float32).tiny, torch.zeros_like(scale))


def rounded_q8_0(queries: Tensor) -> Tensor:
    """To q8_0. A head that is no multiple of 32 has a smaller last block."""
    blocks = (q8_0(block.float()) for block in queries.split(BLOCK, -1))
    return torch.cat([codes.float() * scale.float() for codes, scale in blocks], -1)


def rounded_e4m3(queries: Tensor) -> Tensor:
    """8-bit floating point with 4 bits of exponent and 3 of mantissa, without a scale; larger is its most."""
    return queries.float().clamp(-MOST, MOST).to(torch.float8_e4m3fn).float()
