"""Scores of a decode step's layers for the tap: computed a few layers at once, while the model goes on."""

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvq_core.engine.attention import Hidden
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.tap import StepScores, Tap
from kvq_core.machine import threads

# Of the scores that are shown to the tap at once: two threads that call small operations in turn wake one another for
# each of them, and larger memory would not stay in the processor's cache.
SHOWN_BYTES = 10_000_000


@dataclass(frozen=True)
class TapEntry:
    """What the tap is told of a layer beside its scores: the reference's ``queries`` (query_heads, tokens, head_dim),
    the keys that rows leave out, and the scores of sinks beside them."""

    layer: int
    queries: Tensor
    hidden: Hidden
    sinks: Tensor | None

    def reads(self) -> dict[int, Tensor]:
        """Of the forced rows that leave keys out, those they read."""
        return {row: read() for (row, slot), read in self.hidden.items() if slot == 0}


@dataclass
class TapFeed:
    """Of the layers of each group that are captured."""

    groups: list[LayerGroup]
    _beside: Tensor = field(default_factory=lambda: torch.empty(0))  # scores of the layers that are shown together
    _waiting: list[TapEntry] = field(default_factory=list)  # layers whose scores wait to be shown
    _looking: list[Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layers = {layer for group in self.groups for layer in group.captured}
        self._last = {max(group.captured, default=-1) for group in self.groups}

    def room(self, shape: tuple[int, ...], device: torch.device, shown: bool) -> Tensor:
        """Memory for a layer's scores, of one that is ``shown`` beside those of the layers that wait with it."""
        if not shown:
            return torch.empty(shape, device=device)
        if not self._waiting:
            if len(self._looking) > 1:
                self._looking[-2].result()  # no more than two such memories at once
            self._beside = torch.empty(_at_once(shape), *shape, device=device)
        return self._beside[len(self._waiting)]

    def show(self, tap: Tap, layer: TapEntry, shape: tuple[int, ...], isolates: bool) -> None:
        """Let the tap look at a layer whose scores are in their ``room``, once enough of them wait."""
        self._waiting.append(layer)
        if len(self._waiting) < _at_once(shape) and layer.layer not in self._last:
            return
        waiting, self._waiting = self._waiting, []
        look = _look(tap, waiting, self._beside[: len(waiting)], isolates)
        if layer.queries.device.type == "cpu":
            self._looking.append(threads.beside(look))
        else:
            look()

    def done(self) -> None:
        """The step is over: the tap has seen it."""
        looking, self._looking = self._looking, []
        for look in looking:
            look.result()


def _at_once(shape: tuple[int, ...]) -> int:
    """How many layers whose scores have this shape are shown to the tap at once."""
    return max(1, SHOWN_BYTES // (4 * math.prod(shape)))


def _look(tap: Tap, waiting: list[TapEntry], scores: Tensor, isolates: bool) -> Callable[[], None]:
    """What shows it scores (layers, lanes, kv_heads, slots, n, tokens) of the forced rows."""
    of_rows = (len(waiting), scores.shape[1], *waiting[0].queries.shape[:2], -1)

    def look() -> None:
        own = scores[:, :, :, 0].reshape(of_rows)
        other = scores[:, :, :, -1].reshape(of_rows) if isolates else None
        reads, sinks = [layer.reads() for layer in waiting], [layer.sinks for layer in waiting]
        queries = torch.stack([layer.queries for layer in waiting])
        tap.scores(StepScores([layer.layer for layer in waiting], own, other, queries, reads, sinks))

    return look
