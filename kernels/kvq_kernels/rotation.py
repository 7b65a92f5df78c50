"""Rotary position embedding of stored keys, as rotate-half models apply it."""

from typing import NamedTuple

import torch
from torch import Tensor


class Turn(NamedTuple):
    """cos, sin (tokens, head_dim / 2) float32 at the keys' positions: channel i turns with channel i + head_dim / 2."""

    cos: Tensor
    sin: Tensor

    def contiguous(self) -> "Turn":
        return Turn(self.cos.contiguous(), self.sin.contiguous())


def rotate(keys: Tensor, turn: Turn) -> Tensor:
    """Keys before RoPE -> after it: (..., tokens, head_dim) float32."""
    first, second = keys.chunk(2, -1)
    cos, sin = turn
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
