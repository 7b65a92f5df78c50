"""Buffers of the dequantized working copies: one prefix a lane, one tail a row."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Copies:
    """Of a group of layers: prefix (layers, lanes + 1, kv_heads, tokens, head_dim), tail (layers, rows, ...), in its
    dtype.

    The keys of the prefix are held as (..., head_dim, tokens), which small products with them read faster.
    """

    prefix_keys: Tensor
    prefix_values: Tensor
    tail_keys: Tensor
    tail_values: Tensor

    def of(self, kind: str) -> tuple[Tensor, Tensor]:
        """Prefix and tail, tokens before head_dim."""
        return (self.prefix_keys.mT, self.tail_keys) if kind == "key" else (self.prefix_values, self.tail_values)
