"""What is changed of a model: how much of each key bias stays, and what keys are divided by."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvq_core.models.pairs import Pairs


@dataclass(frozen=True)
class Edit:
    """``keep`` and ``scale`` (layers, kv_heads, head_dim) float32, the same for both channels of a RoPE pair: the part
    of the key projection's bias that stays, and the s of k / s and q * s."""

    keep: Tensor
    scale: Tensor

    @classmethod
    def none(cls, layers: int, kv_heads: int, head_dim: int) -> "Edit":
        """The edit that changes nothing."""
        one = torch.ones(layers, kv_heads, head_dim)
        return cls(one, one.clone())

    @property
    def drops(self) -> bool:
        """Whether any bias is changed."""
        return bool((self.keep != 1).any())

    @property
    def folds(self) -> bool:
        """Whether any scale is folded."""
        return bool((self.scale != 1).any())

    def without_fold(self) -> "Edit":
        """The biases' part alone."""
        return replace(self, scale=torch.ones_like(self.scale))

    def with_keep(self, layer: int, keep: Tensor) -> "Edit":
        """With what stays of a layer's biases (head_dim,), or (kv_heads, head_dim)."""
        every = self.keep.clone()
        every[layer] = keep
        return replace(self, keep=every)

    def with_scales(self, layer: int, scales: Tensor) -> "Edit":
        """With a layer's scales (kv_heads, head_dim)."""
        every = self.scale.clone()
        every[layer] = scales
        return replace(self, scale=every)

    def biases(self, pairs: dict[int, Pairs]) -> list[dict[str, Any]]:
        """The pairs whose bias is left out, by layer and head; ``half``: those of which a part stays."""
        found = []
        for layer, head in (self.keep != 1).any(-1).nonzero().tolist():
            own, keep = pairs[layer], self.keep[layer, head]
            kept = [keep[own.members(pair)[0]].item() for pair in range(len(own.theta))]
            told = {"layer": layer, "head": head, "pairs": [pair for pair, part in enumerate(kept) if part == 0]}
            half = [pair for pair, part in enumerate(kept) if 0 < part < 1]
            found.append(told | ({"half": half} if half else {}))
        return found
