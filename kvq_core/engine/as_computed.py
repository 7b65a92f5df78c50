"""Rows that hold a pass's own tokens as the model computed them, and those that hold them in fp16."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.engine.cache import KINDS, Kind, LaneCache
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.row_part import LayerStep, RowPart


class AsComputed(RowPart):
    """The reference holds what it computed, and so do caches whose codecs take it (``Codec.enters``): some engines
    quantize in float32. All others round a token to fp16 before anything else."""

    def __init__(self, caches: Sequence[LaneCache], groups: Sequence[LayerGroup]):
        """``caches`` of lanes 1, 2, ..."""
        self._lanes: dict[tuple[int, Kind], frozenset[int]] = {}  # by model layer
        for group in groups:
            self._lanes |= {(layer, kind): frozenset([0]) for layer in group.layers for kind in KINDS}
        self._device = {layer: group.device for group in groups for layer in group.layers}
        for lane, cache in enumerate(caches, 1):
            for part in cache.parts:
                if part.rope is None and part.stream.enters == torch.float32:
                    for layer in part.of_model(cache.layers):
                        self._lanes[layer, part.kind] |= {lane}
        self._lane_of: list[int] = []
        self._rows: dict[tuple[tuple[frozenset[int], ...], torch.device], Tensor | None] = {}

    def reindex(self, lane_of: Sequence[int]) -> None:
        self._lane_of, self._rows = list(lane_of), {}

    def before(self, step: LayerStep) -> None:
        """Write the step's tokens into the tails, as caches would hold them."""
        if not step.enters:
            return
        both, (i, at), rows = (step.keys, step.values), (step.index, step.own), len(step.keys)
        if step.copies.tails is not None:
            step.copies.tails[:, i, :rows, :, at] = self.held(step.layer, KINDS, torch.stack(both))
            return
        for kind, new in zip(KINDS, both, strict=True):
            step.copies.of(kind)[1][i, :rows, :, at] = self.held(step.layer, (kind,), new[None])[0]

    def held(self, layer: int, kinds: tuple[Kind, ...], x: Tensor) -> Tensor:
        """A pass's keys, values or both, x (kinds, rows, kv_heads, fresh, head_dim), as the rows hold them, in its
        dtype, on the device that holds the layer's."""
        device, lanes = self._device[layer], tuple(self._lanes[layer, kind] for kind in kinds)
        x = x.to(device)
        if (lanes, device) not in self._rows:
            at = [[lane in own for lane in self._lane_of] for own in lanes]
            every = all(map(all, at))
            self._rows[lanes, device] = None if every else torch.tensor(at, device=device)[..., None, None, None]
        rows = self._rows[lanes, device]
        if rows is None:  # all hold it as it is
            return x
        return torch.where(rows, x, x.to(torch.float16).to(x.dtype))
