"""Buffers of the dequantized working copies: one prefix a lane, one tail a row."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvq_core.engine.prefill import LayerGroup


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
    tails: Tensor | None = None  # of keys and values, where they are of one size

    @classmethod
    def of_group(cls, group: LayerGroup, lanes: int, prefix: int, tokens: int) -> "Copies":
        """Room for a reference and its lanes, each with a free row too, of so many tokens."""
        layers, heads, _, dim = group.keys.shape
        first, later = (layers, lanes + 1, heads), (layers, 2 * lanes + 1, heads)
        late, wide = tokens - prefix, group.values.shape[-1]
        shapes = (*first, dim, prefix), (*first, prefix, wide), (*later, late, dim), (*later, late, wide)
        make = partial(torch.empty, dtype=group.keys.dtype, device=group.device)
        if dim != wide:
            return cls(*map(make, shapes))
        tails = make((2, *shapes[2]))
        return cls(make(shapes[0]), make(shapes[1]), tails[0], tails[1], tails)

    def of(self, kind: str) -> tuple[Tensor, Tensor]:
        """Prefix and tail, tokens before head_dim."""
        return (self.prefix_keys.mT, self.tail_keys) if kind == "key" else (self.prefix_values, self.tail_values)


def tokens_of(tail: Tensor, layers: Tensor, row: int, at: slice) -> Tensor:
    """Some tokens of a row's tail in some layers, float32 (layers, kv_heads, tokens, head_dim)."""
    whole = layers.numel() == tail.shape[0]
    return (tail[:, row, :, at] if whole else tail[layers, row, :, at]).float()


def tokens_at(tail: Tensor, layers: Tensor, row: int, heads: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Single tokens (n,) of a row's tail: a flat view (places, head_dim), and their places in it. Rows of a flat view
    are written several times faster than three dimensions are indexed."""
    _, count, of_layer, held, dim = tail.shape
    return tail.view(-1, dim), ((layers * count + row) * of_layer + heads) * held + tokens
