"""The dequantized working copies of all rows, and the attention that reads them.

The part of the prompt that no later step changes is the same for a lane's forced and free row, so it is held once
per lane (``prefix``) and read once for both; only the rest is held per row (``tail``). Row 0 is the reference, rows
1 .. lanes the forced rows in lane order, free rows follow.
"""

import math
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvq_core.engine import threads
from kvq_core.engine.attention import Hidden, SharedAttention
from kvq_core.engine.cache import Kind, LaneCache, Part, as_stored
from kvq_core.engine.copies import Copies, Place
from kvq_core.engine.prefill import LayerGroup
from kvq_core.rope import Rope

# Of the scores that are shown to the tap at once: two threads that call small operations in turn wake one another for
# each of them, and larger memory would not stay in the processor's cache.
SHOWN_BYTES = 10_000_000


@dataclass(frozen=True)
class Seen:
    """Scores of a decode step in a few ``layers``: q.k * scaling, before the softmax.

    own (layers, 1 + lanes, query_heads, tokens, positions): the reference's and the forced rows' scores;
    with_reference_query, the same shape: the reference's query against each row's keys; queries
    (layers, query_heads, tokens, head_dim): the reference's, after RoPE. Positions after a query's own are -inf. reads,
    by layer: of the rows that leave keys out of their softmax, the keys they read, bool (kv_heads, positions).
    """

    layers: list[int]
    own: Tensor
    with_reference_query: Tensor
    queries: Tensor
    reads: list[dict[int, Tensor]]


class Tap(Protocol):
    """Sees the scores of a decode step as they are computed.

    On CPUs it is called in a thread of its own, in the layers' order, and is done before ``Rows.advance`` returns.
    """

    def scores(self, seen: Seen) -> None: ...


@dataclass
class _Shown:
    """What the tap will be told of a layer beside its scores."""

    layer: int
    queries: Tensor
    hidden: Hidden


class Rows:
    """All rows of a run in lock step. ``lane_of[r]`` is row r's lane (0: the reference)."""

    def __init__(self, groups: list[LayerGroup], caches: list[LaneCache], rope: Rope, prompt_tokens: int, tokens: int):
        """``tokens``: the most any row will hold. Writes every row's working copy from its packed store."""
        self.rope = rope
        self.lanes = len(caches)
        self.prompt_tokens = prompt_tokens
        self.prefix = min([cache.frozen(prompt_tokens) for cache in caches], default=prompt_tokens)
        self.tokens = prompt_tokens  # held by every row now
        self.lane_of = list(range(self.lanes + 1))
        self.held = list(range(self.lanes + 1))  # lanes whose prefix is held, in order
        self.pre = {(lane, at) for lane, cache in enumerate(caches, 1) for at in _pre_layers(cache, groups)}
        self.place = {layer: (g, i) for g, group in enumerate(groups) for i, layer in enumerate(group.layers)}
        self.cores = torch.get_num_threads() if all(group.device.type == "cpu" for group in groups) else 1
        self.copies = [Copies.of(group, self.lanes, self.prefix, tokens) for group in groups]
        for copies, group in zip(self.copies, groups, strict=True):
            copies.write("key", slice(None), Place(0, 0), 0, group.keys)
            copies.write("value", slice(None), Place(0, 0), 0, group.values)
        threads.each([partial(self._fill, row, cache) for row, cache in enumerate(caches, 1)], self.cores)
        self.tap: Tap | None = None
        self.layers = [group.layers for group in groups]
        self.watched = {lane for lane, cache in enumerate(caches, 1) if cache.observes}
        self.selects = {lane: cache.selects for lane, cache in enumerate(caches, 1) if cache.selects}
        self._seen: dict[int, tuple[list[int], Tensor, Tensor]] = {}  # by layer, see _note
        self._places: list[Place] = []  # of the rows
        self._index: list[tuple[Tensor, Tensor, Tensor]] = []
        self._unseen: list[_Shown] = []  # layers whose scores wait to be shown
        self._looking: list[Future[None]] = []
        self._lent: dict[tuple[torch.device, str], Tensor] = {}
        self._reindex()

    def _fill(self, row: int, cache: LaneCache) -> None:
        for part in cache.parts:
            for start, values in cache.pieces(part):
                self.copies[part.group].write(part.kind, part.layers, Place(row, 0), start, values)

    def _reindex(self) -> None:
        """Where each row lies, and which row each place has; one that is free repeats row 0."""
        at = [self.held.index(lane) for lane in self.lane_of]
        self._places = [Place(lane, at[:row].count(lane)) for row, lane in enumerate(at)]
        slots = 1 + max(place.slot for place in self._places)
        rows = torch.zeros(len(self.held), slots, dtype=torch.long)
        for row, place in enumerate(self._places):
            rows[place] = row
        lanes, slot_of = torch.tensor(self._places).unbind(1)
        devices = [copies.device for copies in self.copies]
        self._index = [(rows.to(device), lanes.to(device), slot_of.to(device)) for device in devices]

    def fork(self, row: int) -> int:
        """Give a forced row's lane its own free row, a copy of it as it stands; returns the new row's number."""
        for copies in self.copies:
            copies.fork(self._places[row].lane, self.tokens)
        self.lane_of.append(self.lane_of[row])
        self._reindex()
        return len(self.lane_of) - 1

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows from the batch; kept rows are renumbered in the order given."""
        before = [self._places[row] for row in rows]
        self.lane_of = [self.lane_of[row] for row in rows]
        kept = sorted(set(self.lane_of))
        lanes = [self.held.index(lane) for lane in kept]
        self.held = kept
        self._reindex()
        for copies in self.copies:
            copies.move(list(zip(before, self._places, strict=True)), lanes, self.tokens)

    def advance(self, fresh: int) -> None:
        """The step is over: its tokens are part of every row, and the tap has seen it."""
        looking, self._looking = self._looking, []
        for look in looking:
            look.result()
        self.tokens += fresh

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        g, i = self.place[layer]
        copies, (rows, lanes, slots) = self.copies[g], self._index[g]
        count, heads, fresh, dim = keys.shape
        tail = slice(0, self.tokens - self.prefix + fresh)
        self._enter(copies, layer, i, keys.float()[rows], values.float()[rows])
        q = (queries.float() * scaling).reshape(count, heads, -1, dim)  # (rows, kv_heads, groups * fresh, head_dim)
        asked = q[rows]
        if self.tap is not None:  # all lanes are held then, and row l is the forced row of lane l
            asked = torch.cat([asked, q[:1, None].expand(len(asked), -1, -1, -1, -1)], 1)
        of_lanes = slice(0, len(rows))
        step = SharedAttention(
            asked.transpose(1, 2).contiguous(),
            copies.prefix_keys[i, of_lanes],
            copies.prefix_values[i, of_lanes],
            copies.tail_keys[i, of_lanes, :, : rows.shape[1], tail],
            copies.tail_values[i, of_lanes, :, : rows.shape[1], tail],
            fresh,
            self._hidden(layer, queries, self.tokens + fresh),
        )
        step.compute(self._room(step.every, q.device), self._scratch("weights", step.attending, q.device), self.cores)
        if self.tap is not None:
            self._unseen.append(_Shown(layer, queries[0].float(), step.hidden))
            if len(self._unseen) == self._layers_shown(step.every) or layer == self.layers[g][-1]:
                self._show(self.tap, step.every, q.device)
        if self.watched:
            self._note(layer, queries, step.weights[lanes, :, slots])
        return step.out[lanes, :, slots].reshape(count, -1, fresh, dim).transpose(1, 2)

    def _layers_shown(self, shape: tuple[int, ...]) -> int:
        """How many layers whose scores have this shape are shown to the tap at once."""
        return max(1, SHOWN_BYTES // (4 * math.prod(shape)))

    def _room(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Memory for a layer's scores, beside those of the layers that wait to be shown with it."""
        if self.tap is None:
            return self._scratch("scores", shape, device)
        if not self._unseen and len(self._looking) > 1:
            self._looking[-2].result()  # the tap is done with what is lent again
        return self._shown(shape, device)[len(self._unseen)]

    def _shown(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Memory for the scores of the layers shown at once: one while the tap looks at the other."""
        return self._scratch(f"shown {len(self._looking) % 2}", (self._layers_shown(shape), *shape), device)

    def _show(self, tap: Tap, shape: tuple[int, ...], device: torch.device) -> None:
        """Let the tap look at the forced rows' scores of the layers that wait, while the model goes on."""
        waiting, self._unseen = self._unseen, []
        scores = self._shown(shape, device)[: len(waiting)]
        of_rows = (len(waiting), len(self.held), *waiting[0].queries.shape[:2], -1)

        def look() -> None:
            own, other = (scores[:, :, :, slot].reshape(of_rows) for slot in (0, -1))
            reads = [{at.lane: read() for at, read in w.hidden.items() if at.slot == 0} for w in waiting]
            tap.scores(Seen([w.layer for w in waiting], own, other, torch.stack([w.queries for w in waiting]), reads))

        if device.type == "cpu":
            self._looking.append(threads.beside(look))
        else:
            look()

    def _scratch(self, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Memory that is lent again and again under a name.

        Fresh memory of this size would be handed out by the system page by page, in every layer of every step.
        """
        key, size = (device, name), math.prod(shape)
        if key not in self._lent or self._lent[key].numel() < size:
            self._lent[key] = torch.empty(size + size // 8, device=device)
        return self._lent[key][:size].view(shape)

    def _hidden(self, layer: int, queries: Tensor, tokens: int) -> Hidden:
        """The keys that rows read in this step, of the rows whose caches choose; each is asked once."""
        hidden: Hidden = {}
        for row, lane in enumerate(self.lane_of):
            select, at = self.selects.get(lane, {}).get(layer, (None, 0))
            if select is not None:
                hidden[self._places[row]] = cache(partial(select, at, queries[row].float(), tokens))
        return hidden

    def read_by(self, row: int, layer: int, queries: Tensor, seen: Tensor) -> Tensor | None:
        """The keys a row's cache would choose for queries (query_heads, n, head_dim) after RoPE, of which each sees
        the first ``seen`` (n,) keys: bool (kv_heads, n, positions); None where it reads all of them."""
        select, at = self.selects.get(self.lane_of[row], {}).get(layer, (None, 0))
        if select is None:
            return None
        asked = ((select(at, queries[:, i : i + 1], n), n) for i, n in enumerate(seen.tolist()))
        return torch.stack([pad(read, (0, self.tokens - n)) for read, n in asked], 1)

    def _note(self, layer: int, queries: Tensor, weights: Tensor) -> None:
        """Keep the queries and attention weights of the rows whose caches look back on a step, until they settle."""
        rows = [row for row, lane in enumerate(self.lane_of) if lane in self.watched]
        attention = weights[rows].reshape(len(rows), queries.shape[1], queries.shape[2], -1)
        self._seen[layer] = (rows, queries[rows].float(), attention)

    def _enter(self, copies: Copies, layer: int, i: int, keys: Tensor, values: Tensor) -> None:
        """Write the step's own tokens into the tails, as a cache would hold them: fp16 in every row but the first.

        keys, values (lanes, slots, kv_heads, new tokens, head_dim).
        """
        at = slice(self.tokens - self.prefix, self.tokens - self.prefix + keys.shape[-2])
        lanes, slots = keys.shape[:2]
        for tails, new in ((copies.tail_keys[i], keys), (copies.tail_values[i], values)):
            tails[:lanes, :, :slots, at] = new.to(torch.float16).transpose(1, 2)
            if self.lane_of[0] == 0:
                tails[0, :, 0, at] = new[0, 0]
        pre = [at for at, lane in enumerate(self.held) if (lane, layer) in self.pre]
        if pre:
            stored = as_stored(keys[pre].flatten(0, 1), self.rope, self.tokens, True)
            copies.tail_keys[i, pre, :, :slots, at] = stored.unflatten(0, (-1, slots)).transpose(1, 2)

    def settle(self, row: int, cache: LaneCache, part: Part, fresh: int) -> None:
        """Let a row's new tokens enter a part of its packed store one by one, and rewrite what the store changed."""
        copies, place = self.copies[part.group], self._places[row]
        for position in range(self.tokens, self.tokens + fresh):
            cache.append(part, copies.fresh(part.kind, part.layers, place, position), position)
            changed = cache.flush(part)
            if changed is not None:
                copies.write(part.kind, part.layers, place, *changed)
        if part.stream.observes:
            self._look_back(row, part)

    def _look_back(self, row: int, part: Part) -> None:
        """Show a part the step's attention and rewrite the tokens it stores anew."""
        seen = [self._seen[self.layers[part.group][i]] for i in part.layers.tolist()]
        queries = torch.stack([own[rows.index(row)] for rows, own, _ in seen])
        attention = torch.stack([own[rows.index(row)] for rows, _, own in seen])
        new = part.stream.observe(queries, attention)
        if new is not None:
            layers = part.layers[new.layer]
            self.copies[part.group].patch(part.kind, layers, self._places[row], new.head, new.token, new.values)

    def working(self, row: int, group: int, kind: Kind, layer: int) -> Tensor:
        """A row's working copy of one layer (its index in the group), (kv_heads, tokens, head_dim); for captures and
        audits."""
        return self.copies[group].working(kind, layer, self._places[row], self.tokens)


def _pre_layers(cache: LaneCache, groups: list[LayerGroup]) -> list[int]:
    """Model layers whose keys this cache stores before RoPE."""
    return [groups[part.group].layers[i] for part in cache.parts if part.pre for i in part.layers.tolist()]
