"""A constant that keys are stored without: subtracted when tokens are encoded, added to what is decoded."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Center:
    """What a stream subtracts. ``at(start, tokens)``: of ``tokens`` consecutive positions, in the stream's own space,
    broadcastable to (layers, kv_heads, tokens, head_dim); the constant turns with the position where it was taken on
    the other side of RoPE. ``stored``: the tensor a cache holds for it (layers, kv_heads, head_dim), None where it is
    known from the weights. ``left_out`` (layers, kv_heads, head_dim), before RoPE: a
    constant that no key of these layers is read with, so that it is taken from all of them before they are stored."""

    at: Callable[[int, int], Tensor]
    stored: Tensor | None
    left_out: Tensor | None = None

    def without(self, x: Tensor, start: int) -> Tensor:
        """x (layers, kv_heads, tokens, head_dim) from position ``start`` on, less the constant."""
        return x - self.at(start, x.shape[-2])

    def on(self, layer: int) -> "Center":
        """Of one of its layers."""
        return Center(lambda start, tokens: self.at(start, tokens)[layer : layer + 1], None)

    def back(self, x: Tensor, start: int) -> Tensor:
        """The inverse of ``without``."""
        return x + self.at(start, x.shape[-2])

    def rows_back(self, x: Tensor, layer: Tensor, head: Tensor, token: Tensor) -> Tensor:
        """``back`` of single tokens (n, head_dim) at those layers, KV heads and positions; n is 1 or more."""
        tokens = int(token.max()) + 1
        return x + self.at(0, tokens).expand(-1, -1, tokens, -1)[layer, head, token]
