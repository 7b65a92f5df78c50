"""Tokens that are stored before they are read, in decode steps."""

import torch
from torch import Tensor

from kvq_core.engine.cache import KINDS, Kind, LaneCache, Part


class StoredFirst:
    """Rows of lanes that store a token before they read it: a step's attention sees its own token, and those its coming
    drives out of the window, as the store will hold them."""

    def __init__(self, caches: list[LaneCache]):
        """``caches`` of lanes 1, 2, ..."""
        self._caches = {lane: cache for lane, cache in enumerate(caches, 1) if cache.stored_first}
        self._parts = {lane: cache.by_layer() for lane, cache in self._caches.items()}
        self._own: dict[tuple[int, int, Kind], Tensor] = {}  # of the step: by layer, row

    def enter(
        self,
        layer: int,
        lane_of: list[int],
        fresh: int,
        tokens: int,
        tails: tuple[Tensor, Tensor],
        prefix: int,
        leaves: bool = True,
    ) -> None:
        """Keep the ``fresh`` tokens that stand in the tails (rows, kv_heads, tokens after ``prefix``, head_dim) of keys
        and of values for the store and, unless each query is told what it reads (``leaves`` False), rewrite there what
        leaves the window when they follow the ``tokens`` held."""
        for row, lane in enumerate(lane_of):
            if lane not in self._parts:
                continue
            for kind, tail in zip(KINDS, tails, strict=True):
                part, index = self._parts[lane][layer][kind]
                now = slice(tokens - prefix, tokens - prefix + fresh)
                self._own[layer, row, kind] = tail[row, :, now].clone()
                window = part.plain.window
                first, end = (window.sink + window.packed(n) for n in (tokens, tokens + fresh))
                if leaves and first < end:
                    leaving = tail[row, :, first - prefix : end - prefix]
                    leaving.copy_(part.preview(leaving, index, first))

    def own(self, lane: int, row: int, part: Part, at: int) -> Tensor | None:
        """The step's token ``at`` as it came, (layers, kv_heads, 1, head_dim); None for a row that reads it so, too."""
        if lane not in self._caches:
            return None
        layers = (self._caches[lane].layers[part.group][i] for i in part.layers.tolist())
        return torch.stack([self._own[layer, row, part.kind][:, at : at + 1] for layer in layers])
