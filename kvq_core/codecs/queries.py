"""How kernels round queries before they meet quantized keys: queries (..., head_dim) after RoPE, not yet scaled."""

from collections.abc import Callable

import torch
from kvq_kernels import round_q8_0, round_q8_0_at_once
from torch import Tensor

QueryRounding = Callable[[Tensor], Tensor]
MOST = 448.0  # the largest number of e4m3


def rounded_q8_0(queries: Tensor) -> Tensor:
    """To llama.cpp's q8_0. A head that is no multiple of 32 has a smaller last block."""
    queries = queries.float()
    return round_q8_0(queries) if queries.device.type == "cpu" else round_q8_0_at_once(queries)


def rounded_e4m3(queries: Tensor) -> Tensor:
    """8-bit floating point with 4 bits of exponent and 3 of mantissa, without a scale; larger is its most."""
    return queries.float().clamp(-MOST, MOST).to(torch.float8_e4m3fn).float()
