"""Tokens that are stored before they are read, in decode steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.engine.cache import KINDS, Kind, LaneCache, Part
from kvq_core.engine.row_part import LayerStep, RowPart


class StoredFirst(RowPart):
    """Rows of lanes that store a token before they read it: a step's attention sees its own token, and those its coming
    drives out of the window, as the store will hold them."""

    def __init__(self, caches: list[LaneCache]):
        """``caches`` of lanes 1, 2, ..."""
        self._caches = {lane: cache for lane, cache in enumerate(caches, 1) if cache.stored_first}
        self._parts = {lane: cache.by_layer() for lane, cache in self._caches.items()}
        self._own: dict[tuple[int, int, Kind], Tensor] = {}  # of the step: by layer, row

    def reindex(self, lane_of: Sequence[int]) -> None:
        self._lane_of = list(lane_of)

    def before(self, step: LayerStep) -> None:
        """Keep the step's tokens as they came for the store and, unless each query is told what it reads, rewrite in
        the tails what leaves the window when they follow those held."""
        for row, lane in enumerate(self._lane_of if step.enters else ()):
            if lane not in self._parts:
                continue
            for kind in KINDS:
                tail = step.copies.of(kind)[1][step.index, row]
                part, index = self._parts[lane][step.layer][kind]
                self._own[step.layer, row, kind] = tail[:, step.own].clone()
                window = part.plain.window
                first, end = (window.sink + window.packed(n) for n in (step.tokens, step.tokens + step.fresh))
                if first < end and not step.ahead:
                    leaving = tail[:, first - step.prefix : end - step.prefix]
                    leaving.copy_(part.preview(leaving, index, first))

    def own(self, lane: int, row: int, part: Part, at: int) -> Tensor | None:
        """The step's token ``at`` as it came, (layers, kv_heads, 1, head_dim); None for a row that reads it so, too."""
        if lane not in self._caches:
            return None
        layers = (self._caches[lane].layers[part.group][i] for i in part.layers.tolist())
        return torch.stack([self._own[layer, row, part.kind][:, at : at + 1] for layer in layers])
