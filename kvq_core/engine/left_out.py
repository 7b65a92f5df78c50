"""Biases that a lane's keys are read without, taken from the keys of new tokens before anything else sees them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.row_part import LayerStep, RowPart
from kvq_core.models.rope import Rope


class BiasesLeftOut(RowPart):
    """Of the rows whose caches leave biases out (center = slow): all lanes of a run leave the same ones out."""

    def __init__(self, rope: Rope, caches: Sequence[LaneCache]):
        """``caches`` of lanes 1, 2, ...; ``rope`` of all the model's layers."""
        self._rope = rope
        self._biases: dict[int, Tensor] = {}  # by model layer: (kv_heads, head_dim), before RoPE
        self._lanes: dict[int, set[int]] = {}
        for lane, cache in enumerate(caches, 1):
            for part in cache.parts:
                if part.left_out is not None:
                    for layer, bias in zip(part.of_model(cache.layers), part.left_out, strict=True):
                        self._biases[layer] = bias
                        self._lanes.setdefault(layer, set()).add(lane)
        self._rows: dict[int, list[int]] = {}

    def reindex(self, lane_of: Sequence[int]) -> None:
        rows = {layer: [r for r, lane in enumerate(lane_of) if lane in own] for layer, own in self._lanes.items()}
        self._rows = {layer: own for layer, own in rows.items() if own}

    def before(self, step: LayerStep) -> None:
        if step.enters:
            step.keys = self.without(step.layer, step.keys, step.tokens)

    def without(self, layer: int, keys: Tensor, position: int) -> Tensor:
        """Keys (rows, kv_heads, fresh, head_dim), after RoPE, from ``position`` on, as the rows' caches take them."""
        if (rows := self._rows.get(layer)) is None:
            return keys
        keys = keys.float().clone()
        keys[rows] -= self._turned(layer, position, keys.shape[-2], keys.device)
        return keys

    def with_them(self, layer: int, lane: int, keys: Tensor) -> Tensor:
        """What a lane reads of a layer, keys (kv_heads, tokens, head_dim) from the first token on, with what it leaves
        out: the model's own keys but for what storing them errs."""
        if lane not in self._lanes.get(layer, ()):
            return keys
        return keys + self._turned(layer, 0, keys.shape[-2], keys.device)

    def _turned(self, layer: int, position: int, tokens: int, device: torch.device) -> Tensor:
        alike = self._biases[layer].to(device)[None, :, None].expand(-1, -1, tokens, -1).contiguous()
        return self._rope.on([layer]).rotate(alike, position)[0]
