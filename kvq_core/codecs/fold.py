"""Scales of keys by RoPE pair: divided out before a codec sees them, multiplied back when they are read.

q . k is (s q) . (k / s), and one s for both channels of a pair commutes with the angle that RoPE turns it by, so the
same s serves keys before RoPE and after it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def pair_scales(keys: Tensor, pairs: Tensor | None, dtype: torch.dtype) -> Tensor:
    """sqrt(max |K|) of keys (layers, kv_heads, tokens, head_dim) over the tokens and the channels of a pair, 1 where
    all are zero: (layers, kv_heads, 1, head_dim) in ``dtype``. InnerQ (arXiv:2602.23200), Section 4.3, tied over pairs.

    ``pairs`` (layers, head_dim): the pair of each channel; None: channels i and i + head_dim / 2 are one.
    """
    largest = keys.abs().amax(-2)
    if pairs is None:
        half = keys.shape[-1] // 2
        pairs = torch.arange(half, device=keys.device).repeat(2).expand(len(keys), -1)
    of = pairs.to(keys.device)[:, None].expand_as(largest)
    tied = torch.zeros_like(largest).scatter_reduce(-1, of, largest, "amax").gather(-1, of)
    scales = tied[..., None, :].sqrt().to(dtype)
    return torch.where(scales > 0, scales, torch.ones_like(scales))


@dataclass(frozen=True)
class Fold:
    """``scale`` (layers, kv_heads, 1, head_dim), as a cache holds it."""

    scale: Tensor

    def divided(self, x: Tensor) -> Tensor:
        """Keys (layers, kv_heads, tokens, head_dim) as a codec sees them."""
        return x / self.scale

    def back(self, x: Tensor) -> Tensor:
        """The inverse of ``divided``."""
        return x * self.scale

    def asked(self, queries: Tensor) -> Tensor:
        """Queries (layers, query_heads, n, head_dim) as they meet divided keys: every score is what it was."""
        return queries * self._of_queries(queries)

    def asked_back(self, queries: Tensor) -> Tensor:
        """The inverse of ``asked``."""
        return queries / self._of_queries(queries)

    def gram(self, gram: Tensor) -> Tensor:
        """Q^T Q (layers, kv_heads, head_dim, head_dim) of such queries."""
        return gram * self.scale * self.scale.mT

    def on(self, layer: int) -> "Fold":
        """Of one of its layers."""
        return Fold(self.scale[layer : layer + 1])

    def rows_back(self, x: Tensor, layer: Tensor, head: Tensor) -> Tensor:
        """``back`` of single keys (n, head_dim) at those layers and KV heads."""
        return x * self.scale[layer, head, 0]

    def _of_queries(self, queries: Tensor) -> Tensor:
        return self.scale.repeat_interleave(queries.shape[1] // self.scale.shape[1], 1)
