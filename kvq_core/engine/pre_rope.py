"""Keys before RoPE, of a step's new tokens, for the rows whose caches store them so."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.products import product
from kvq_core.engine.row_part import LayerStep, RowPart
from kvq_core.models.rope import Rope


class PreRope(RowPart):
    """Rounds a step's own keys to fp16 where their caches store them: before RoPE."""

    def __init__(self, rope: Rope, caches: list[LaneCache], groups: list[LayerGroup]):
        self._rope = rope
        self._device = {layer: group.device for group in groups for layer in group.layers}
        self._lanes: dict[int, list[int]] = {}  # by model layer
        for lane, cache in enumerate(caches, 1):
            for part in cache.parts:
                layers = [groups[part.group].layers[i] for i in part.layers.tolist()] if part.rope else []
                for layer in filter(rope.rotates, layers):
                    self._lanes.setdefault(layer, []).append(lane)
        self._rows: dict[int, Tensor] = {}
        self._turns: dict[tuple[int, int, torch.device, int], tuple[Tensor, Tensor]] = {}

    def reindex(self, lane_of: Sequence[int]) -> None:
        self._rows = {}
        for layer, lanes in self._lanes.items():
            rows = [row for row, lane in enumerate(lane_of) if lane in lanes]
            if rows:
                self._rows[layer] = torch.tensor(rows, device=self._device[layer])

    def before(self, step: LayerStep) -> None:
        if step.enters:
            tails = step.copies.tail_keys[step.index, :, :, step.own]
            self.enter(step.layer, step.keys, step.tokens, tails)

    def enter(self, layer: int, keys: Tensor, position: int, tails: Tensor) -> None:
        """Write keys (rows, kv_heads, fresh, head_dim), after RoPE, from ``position`` on, into tails of that shape, as
        attention reads them back; rows that store no keys before RoPE are left alone."""
        rows = self._rows.get(layer)
        if rows is None:
            return
        there, back = self._at(layer, position, keys.shape[-2], keys.device)
        own = keys[rows].transpose(0, 2)  # (fresh, kv_heads, rows, head_dim)
        stored = product(own.flatten(1, 2), back).to(torch.float16)
        read = product(stored.float(), there).unflatten(1, own.shape[1:3])
        tails.index_copy_(0, rows, read.transpose(0, 2).to(tails.dtype))

    def _at(self, layer: int, position: int, fresh: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """rope.matrices, made once a step, device and the layers that turn alike."""
        at = (position, fresh, device, self._rope.number_of(layer))
        if at not in self._turns:
            self._turns = {known: turns for known, turns in self._turns.items() if known[:2] == at[:2]}
            self._turns[at] = self._rope.table_of(layer).matrices(position, fresh, device)
        return self._turns[at]
