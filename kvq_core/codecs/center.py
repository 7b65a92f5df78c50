"""A constant that keys are stored without: subtracted when tokens are encoded, added to what is decoded."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Center:
    """What a stream subtracts. ``at(start, tokens)``: of ``tokens`` consecutive positions, in the stream's own space,
    broadcastable to (layers, kv_heads, tokens, head_dim); the constant turns with the position where it was taken on
    the other side of RoPE. ``stored``: the tensor a cache holds for it (layers, kv_heads, head_dim), None where it is
    known from the weights."""

    at: Callable[[int, int], Tensor]
    stored: Tensor | None

    def without(self, x: Tensor, start: int) -> Tensor:
        """x (layers, kv_heads, tokens, head_dim) from position ``start`` on, less the constant."""
        return x - self.at(start, x.shape[-2])

    def back(self, x: Tensor, start: int) -> Tensor:
        """The inverse of ``without``."""
        return x + self.at(start, x.shape[-2])
