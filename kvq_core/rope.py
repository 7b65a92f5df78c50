"""Rotary position embedding as a pair of exact inverse maps, so that keys can be stored before or after it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Apply = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def rotate_half(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The convention of Llama, Qwen and Mistral: channel i is paired with channel i + head_dim / 2.

    q, k (batch, heads, tokens, head_dim); cos, sin (batch, tokens, head_dim).
    """

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)

    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * c + turned(q) * s, k * c + turned(k) * s


@dataclass(frozen=True)
class Rope:
    """RoPE tables of positions 0 .. n-1 with the model's own way of applying them.

    cos, sin (n, rotary_dim) float32, as the model computes them in its own dtype; ``norm`` (n, head_dim) is
    cos^2 + sin^2 of each channel's pair. It differs from 1 where tables were rounded to half precision and where a RoPE
    type scales them (YaRN), and must be divided out to invert the rotation.
    """

    cos: Tensor
    sin: Tensor
    norm: Tensor
    apply: Apply = rotate_half

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor, head_dim: int, apply: Apply = rotate_half) -> "Rope":
        """From tables (n, rotary_dim)."""
        one = torch.ones(1, 1, cos.shape[0], head_dim, device=cos.device)
        # turning forth and back leaves each channel scaled by its pair's norm, whatever the convention
        there = apply(one, one[:0], cos[None], sin[None])[0]
        return cls(cos, sin, apply(there, one[:0], cos[None], -sin[None])[0][0, 0], apply)

    def at(self, positions: Tensor) -> "Rope":
        """Tables of some positions (n,) alone: position i of them is ``positions[i]``."""
        return replace(self, cos=self.cos[positions], sin=self.sin[positions], norm=self.norm[positions])

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Keys before RoPE -> after: x (layers, kv_heads, tokens, head_dim) float32 at positions start, start+1, ..."""
        return self._turn(x, start, 1.0)

    def unrotate(self, x: Tensor, start: int) -> Tensor:
        """Inverse of rotate, exact up to float32 rounding."""
        return self._turn(x, start, -1.0) / self.norm[start : start + x.shape[-2]].to(x.device)

    def _turn(self, x: Tensor, start: int, sign: float) -> Tensor:
        cos = self.cos[start : start + x.shape[-2]].to(x.device)
        sin = self.sin[start : start + x.shape[-2]].to(x.device) * sign
        # the models' functions turn a query and a key at once; an empty key costs nothing
        return self.apply(x, x[:0], cos[None], sin[None])[0]

    def matrices(self, start: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """rotate and unrotate at ``count`` positions from ``start`` as matrices (count, head_dim, head_dim): x @ m.

        For a few small x, one product takes a fraction of the time of the formula's many operations.
        """
        one = torch.eye(self.norm.shape[-1], device=device)[None, :, None].expand(-1, -1, count, -1)
        there, back = (turn(one, start)[0].transpose(0, 1) for turn in (self.rotate, self.unrotate))
        return there, back
