"""What a lock step leaves behind, so that scores of its forced rows can be computed again in any layer and head: the
keys as they are read in the end, those that they replaced and how long these were read, and every row's queries."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from kvq_core.engine.row_part import LayerStep, RowPart
from kvq_core.models.rope import Rope
from kvq_core.models.scoring import Scoring


class LayerReached(Exception):
    """A pass has come to the layer that it is wanted for."""


@dataclass(frozen=True)
class ReplacedKeys:
    """Keys ``old`` (kv_heads, n, head_dim) that a row's scored positions before ``until`` read in place of those that
    stand there in the end."""

    row: int
    until: int
    heads: slice
    tokens: slice | Tensor
    old: Tensor


@dataclass
class KeyLog(RowPart):
    """Of the first ``rows`` in some ``layers``; gives up where it would hold more than ``most`` bytes. Rows tell it of
    queries from the thread that leads the step, of keys from any."""

    rows: int
    layers: frozenset[int]
    most: int
    passes: list[int] = field(default_factory=list)  # scored positions of each
    queries: dict[int, list[Tensor]] = field(default_factory=dict)  # by layer
    replaced: dict[int, list[ReplacedKeys]] = field(default_factory=dict)
    reads: dict[int, list[dict[int, Tensor]]] = field(default_factory=dict)
    full: bool = False
    _sizes: list[int] = field(default_factory=list)

    def after(self, step: LayerStep) -> None:
        reads = {lane: read for (lane, slot), read in step.hidden.items() if slot == 0}
        self.asked(step.layer, step.asked, reads)

    def asked(self, layer: int, queries: Tensor, reads: dict[int, Callable[[], Tensor]]) -> None:
        """``queries`` (rows, query_heads, fresh, head_dim) that meet a layer's keys, scaled; ``reads``: of rows that
        leave keys out, those that they read in this pass."""
        if layer in self.layers and not self.full:
            self.queries.setdefault(layer, []).append(queries[: self.rows].clone())
            self.reads.setdefault(layer, []).append({row: read() for row, read in reads.items() if row < self.rows})
            self._sizes.append(self.queries[layer][-1].nbytes)

    def replace(self, row: int, layers: list[int], until: int, start: int, old: Tensor) -> None:
        """Of a row the keys ``old`` (layers, kv_heads, n, head_dim) from position ``start`` on are about to go."""
        if row < self.rows and not self.full:
            now = slice(start, start + old.shape[-2])
            for layer, keys in zip(layers, old.clone(), strict=True):
                self._add(layer, ReplacedKeys(row, until, slice(None), now, keys))

    def patch(self, row: int, layers: list[int], until: int, at: tuple[Tensor, Tensor, Tensor], old: Tensor) -> None:
        """``replace`` of single tokens: ``at`` places among ``layers``, KV heads, positions; ``old`` (n, head_dim)."""
        if row >= self.rows or self.full:
            return
        places, heads, tokens = at
        for place, layer in enumerate(layers):
            if layer not in self.layers:
                continue
            for head in heads[places == place].unique().tolist():
                own = (places == place) & (heads == head)
                self._add(layer, ReplacedKeys(row, until, slice(head, head + 1), tokens[own], old[own][None]))

    def advance(self, fresh: int) -> None:
        """A pass of ``fresh`` scored positions is over."""
        self.passes.append(fresh)
        if not self.full and sum(self._sizes) > self.most:
            self.full = True
            self.queries, self.replaced, self.reads = {}, {}, {}

    def _add(self, layer: int, replaced: ReplacedKeys) -> None:
        if layer in self.layers:
            self.replaced.setdefault(layer, []).append(replaced)
            self._sizes.append(replaced.old.nbytes)


@dataclass(frozen=True)
class Kit:
    """Of one batch, by layer: keys (rows, kv_heads, head_dim, tokens) as rows read them in the end, queries (rows,
    query_heads, steps, head_dim), scaled; ``passes`` as KeyLog has them. ``prompt`` tokens came before; ``asked``
    (query_heads, prompt tokens, head_dim): their queries, which the prefill holds."""

    prompt: int
    passes: tuple[int, ...]
    keys: dict[int, Tensor]
    queries: dict[int, Tensor]
    asked: dict[int, Tensor]
    replaced: dict[int, list[ReplacedKeys]]
    reads: dict[int, list[dict[int, Tensor]]]
    scoring: tuple[Scoring | None, ...]
    rope: Rope

    @property
    def nbytes(self) -> int:
        replaced = (each.old for every in self.replaced.values() for each in every)
        return sum(x.nbytes for x in (*self.keys.values(), *self.queries.values(), *replaced))

    @property
    def steps(self) -> int:
        return sum(self.passes)

    @property
    def starts(self) -> list[int]:
        """The first scored position of each pass."""
        return [0, *accumulate(self.passes)][:-1]

    def scores(self, row: int, layer: int, steps: slice, asking: Tensor | None = None) -> Tensor:
        """Scores (query_heads, n, positions) of a row at some scored positions, as its layer makes them, over the
        positions that the last of them sees; -inf for the future. ``asking``: another row's queries in place of its
        own (query_heads, steps, head_dim)."""
        start, end, _ = steps.indices(self.steps)
        keys = self.keys[layer][row]
        asked = (self.queries[layer][row] if asking is None else asking)[:, start:end]
        grouped = asked.unflatten(0, (keys.shape[0], -1))  # (kv_heads, groups, n, head_dim)
        found = (grouped.flatten(1, 2) @ keys).unflatten(1, grouped.shape[1:3])
        for other in reversed(self.replaced.get(layer, [])):  # the newest first: an older one was read before it
            count = other.until - start
            if other.row == row and count > 0:
                now = grouped[other.heads, :, :count].flatten(1, 2) @ other.old.mT
                there = found[other.heads, :, :count]
                there[..., other.tokens] = now.unflatten(1, there.shape[1:3])
        how = self.scoring[layer]
        assert how is not None
        how.capped_(found)
        future = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).triu(self.prompt + start + 1)
        return found.masked_fill_(future, float("-inf")).flatten(0, 1)[..., : self.prompt + end]


Place = tuple[Kit, int]  # a kit, and a row of it


@dataclass(frozen=True)
class Replay:
    """Where the rows of a finished run can be computed again: of the reference, where it stood beside the lanes, and of
    each lane; None of what was not kept."""

    reference: Place | None
    lanes: tuple[Place | None, ...]

    @property
    def nbytes(self) -> int:
        kits = {id(place[0]): place[0] for place in (self.reference, *self.lanes) if place is not None}
        return sum(kit.nbytes for kit in kits.values())

    @property
    def layers(self) -> frozenset[int]:
        """Layers that every row is known in."""
        places = [place for place in (self.reference, *self.lanes) if place is not None]
        return frozenset[int].intersection(*(frozenset(kit.keys) for kit, _ in places)) if places else frozenset()
