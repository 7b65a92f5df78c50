"""What a lane's cache takes for a context and a batch, as tensors and as an engine sets it aside."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from kvq_core.engines import engines
from kvq_core.methods import ModelShape, Window
from kvq_core.sizing.fit import Cache
from kvq_core.sizing.formats import FormatBits
from kvq_core.spec import TENSORS, Lane, Tensor
from kvq_core.spec.plan import Assignment
from kvq_core.spec.size import encoded_bits, saved_bytes


class CacheBytes(NamedTuple):
    nbytes: int
    reserved: bool  # whether it is what the engine sets aside


class LaneCost:
    """Of a lane on a model's shape, in an engine where one is named, on a card with so many bytes of memory."""

    def __init__(self, lane: Lane, shape: ModelShape, engine: str | None, memory: int | None = None):
        self.lane, self.shape, self.engine = lane, shape, engine
        self._batched = engines()[engine].reads_at_once(memory) if engine is not None else None
        windowed = [at for at, layer in enumerate(shape.kinds) if layer.window is not None]
        self._stateful = any(layer.conv or layer.recurrent for layer in shape.kinds)
        self.plan: Sequence[Assignment] = lane.plan_of(range(len(shape.kinds)), windowed, self._stateful)

    def of(self, context: int, batch: int) -> CacheBytes:
        """Bytes of ``batch`` sequences of ``context`` tokens."""
        if self.engine is not None and self._format is not None:
            cache = Cache.of(self._format, self.shape)
            if (found := cache.reserved(self.engine, context, batch, self._batched)) is not None:
                return CacheBytes(found, True)
        return CacheBytes(batch * self._tensors(context), False)

    def bits(self, context: int) -> float:
        """An element of keys and values."""
        elements = sum(layer.elements * layer.tokens(context) for layer in self.shape.kinds)
        return 8 * self._tensors(context) / elements

    def _tensors(self, context: int) -> int:
        whole = sum(2.0 * layer.elements * layer.tokens(context) for layer in self.shape.kinds)
        states = sum(self.shape.dtype_bytes * (layer.conv + layer.recurrent) for layer in self.shape.kinds)
        layers = ((part, self.shape.kinds[at]) for part in self.plan for at in part.layers)
        saved = sum(
            saved_bytes(part, layer, (tokens := layer.tokens(context)), part.packed(tokens)) for part, layer in layers
        )
        return math.ceil(whole + states - saved)

    @cached_property
    def _format(self) -> FormatBits | None:
        """The lane as one format of all layers; None where layers or tokens differ in it, or it is fp16."""
        by_tensor = {part.tensor: part for part in self.plan}
        last = len(self.shape.kinds)
        boundary = {(part.layers[0], last - 1 - part.layers[-1]) for part in self.plan}
        whole = all(part.layers == tuple(range(part.layers[0], part.layers[-1] + 1)) for part in self.plan)
        plain = all(part.rule.tokens == "all" and not part.rule.spans for part in self.plan)
        if not by_tensor or len(by_tensor) < len(self.plan) or len(boundary) > 1 or not (whole and plain):
            return None
        (ends,) = boundary
        kept = {0 if self._stateful else len(part.method.kept_layers(last)) // 2 for part in self.plan}
        if kept != {ends[0]} or ends[0] != ends[1]:
            return None
        return self._of(by_tensor, ends[0])

    def _of(self, parts: dict[Tensor, Assignment], boundary: int) -> FormatBits | None:
        windows, bits = [], {}
        for tensor in TENSORS:
            window = parts[tensor].window if tensor in parts else None
            windows.append((0, 0, 1, False) if window is None else _window(window))
        for dim in {dim for layer in self.shape.kinds for dim in (layer.key_dim, layer.value_dim) if dim}:
            own = [encoded_bits(parts[t], dim)[at] if t in parts else 16.0 for at, t in enumerate(TENSORS)]
            bits[dim] = (own[0], own[1])
        first = next(iter(parts.values())).method
        engines = {self.engine: first.cache_types.get(self.engine, "")} if self.engine else {}
        told = {"name": self.lane.label, "method": first.name, "knobs": {}, "engines": engines, "windows": windows}
        return FormatBits.model_validate({**told, "boundary": boundary, "bits": bits})


def _window(window: Window) -> tuple[int, int, int, bool]:
    return window.sink, window.recent, window.step or 1, window.whole_prompt
