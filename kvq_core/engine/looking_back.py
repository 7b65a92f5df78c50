"""What caches that look back on a step are shown of it: queries, and the attention of their rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.row_part import LayerStep, RowPart


class LookingBack(RowPart):
    """Of the rows whose caches observe, by layer, until they settle."""

    def __init__(self, caches: Sequence[LaneCache]):
        """``caches`` of lanes 1, 2, ..."""
        self._lanes = {lane for lane, cache in enumerate(caches, 1) if cache.observes}
        self._rows: list[int] = []
        self._seen: dict[int, tuple[list[int], Tensor, Tensor]] = {}

    def reindex(self, lane_of: Sequence[int]) -> None:
        self._rows = [row for row, lane in enumerate(lane_of) if lane in self._lanes]

    def after(self, step: LayerStep) -> None:
        if not self._rows or not step.enters:
            return
        assert step.weights is not None
        weights, queries = step.places.by_row(step.weights)[self._rows], step.queries[self._rows].float()
        self._seen[step.layer] = (self._rows, queries, weights.reshape(*queries.shape[:3], -1))

    def of(self, row: int, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A row's queries (layers, query_heads, fresh, head_dim) and attention (layers, query_heads, fresh, tokens)."""
        seen = [self._seen[layer] for layer in layers]
        at = seen[0][0].index(row)
        return torch.stack([queries[at] for _, queries, _ in seen]), torch.stack([own[at] for _, _, own in seen])
