"""The dequantized working copies of all rows, and the attention that reads them.

The part of the prompt that no later step changes is the same for a lane's forced and free row, so it is held once
per lane (``prefix``) and read once for both; only the rest is held per row (``tail``). Row 0 is the reference, rows
1 .. lanes the forced rows in lane order, free rows follow.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kvq_core.engine import products
from kvq_core.engine.ahead import Ahead, Reread, read
from kvq_core.engine.as_computed import AsComputed
from kvq_core.engine.attention import SharedAttention, hide_future
from kvq_core.engine.cache import LaneCache, Part
from kvq_core.engine.copies import Copies, tokens_at, tokens_of
from kvq_core.engine.key_choices import Choices, KeyChoices
from kvq_core.engine.key_log import KeyLog, LayerReached
from kvq_core.engine.left_out import BiasesLeftOut
from kvq_core.engine.looking_back import LookingBack
from kvq_core.engine.places import RowPlaces
from kvq_core.engine.pre_rope import PreRope
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.query_rounding import RoundedQueries
from kvq_core.engine.row_part import LayerStep, RowPart
from kvq_core.engine.stored_first import StoredFirst
from kvq_core.engine.tap import Tap
from kvq_core.engine.tap_feed import TapEntry, TapFeed
from kvq_core.machine import threads
from kvq_core.models.rope import Rope
from kvq_core.models.scoring import Scoring


class Rows:
    """All rows of a run in lock step. ``lane_of[r]`` is row r's lane (0: the reference)."""

    def __init__(self, groups: list[LayerGroup], caches: list[LaneCache], rope: Rope, prompt_tokens: int, tokens: int):
        """``tokens``: the most any row will hold. Writes every row's working copy from its packed store."""
        self.rope = rope
        self.lanes = len(caches)
        self.prompt_tokens = prompt_tokens
        frozen = min([cache.frozen(prompt_tokens) for cache in caches], default=prompt_tokens)
        self.prefix = products.shared_tokens(frozen)
        self.tokens = prompt_tokens  # held by every row now
        self.lane_of = list(range(self.lanes + 1))
        self.held = list(range(self.lanes + 1))  # lanes whose prefix is held, in order
        self.left_out = BiasesLeftOut(rope, caches)
        self.stored_first = StoredFirst(caches)
        self.looking_back = LookingBack(caches)
        self.place = {layer: (g, i) for g, group in enumerate(groups) for i, layer in enumerate(group.layers)}
        self.cores = torch.get_num_threads() if all(group.device.type == "cpu" for group in groups) else 1
        self.copies = [Copies.of_group(group, self.lanes, self.prefix, tokens) for group in groups]
        for g, group in enumerate(groups):
            self._write(g, "key", slice(None), 0, 0, group.keys)
            self._write(g, "value", slice(None), 0, 0, group.values)
        threads.each([partial(self._fill, row, cache) for row, cache in enumerate(caches, 1)], self.cores)
        self.tap: Tap | None = None
        self.log: KeyLog | None = None
        self.ahead: Ahead | None = None  # while several known tokens are fed as if they came one by one
        self.until: int | None = None  # the last layer of a pass
        self.layers = [group.layers for group in groups]
        self._showing = TapFeed(groups)
        kv_heads = {layer: group.keys.shape[1] for group in groups for layer in group.layers}
        self.choosing = KeyChoices([{}, *(cache.selects for cache in caches)], kv_heads)
        entering = self.left_out, AsComputed(caches, groups), PreRope(rope, caches, groups), self.stored_first
        rounded = RoundedQueries([{}, *(cache.roundings for cache in caches)])
        self.parts: tuple[RowPart, ...] = (*entering, rounded, self.choosing, self.looking_back)
        self._places: list[RowPlaces] = []
        self._reindex()

    def _fill(self, row: int, cache: LaneCache) -> None:
        for part in cache.parts:
            for start, values in cache.pieces(part):
                self._write(part.group, part.kind, part.layers, row, start, values)

    def _write(self, group: int, kind: str, layers: Tensor | slice, row: int, start: int, x: Tensor) -> None:
        """Put x (layers, kv_heads, tokens, head_dim) at positions start, ... of a row."""
        prefix, tail = self.copies[group].of(kind)
        end, x = start + x.shape[-2], x.to(tail.dtype)
        if isinstance(layers, Tensor) and layers.numel() == prefix.shape[0]:
            layers = slice(None)  # all of them: a plain copy is much faster than an indexed one
        if start < self.prefix:
            stop = min(end, self.prefix)
            prefix[layers, row, :, start:stop] = x[..., : stop - start, :]
        if end > self.prefix:
            first = max(start, self.prefix)
            tail[layers, row, :, first - self.prefix : end - self.prefix] = x[..., first - start :, :]

    def _reindex(self) -> None:
        self._places = [RowPlaces.of(self.lane_of, self.held, copies.tail_keys.device) for copies in self.copies]
        for part in self.parts:
            part.reindex(self.lane_of)

    def fork(self, row: int, choices: Choices) -> int:
        """Give a forced row's lane its own free row, a copy of it as it stands, which reads what ``choices`` of its own
        say; returns the new row's number."""
        new = len(self.lane_of)
        self.choosing.fork(choices)
        for copies in self.copies:
            for tail in (copies.tail_keys, copies.tail_values):
                held = self.tokens - self.prefix
                tail[:, new, :, :held] = tail[:, row, :, :held]
        self.lane_of.append(self.lane_of[row])
        self._reindex()
        return new

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows from the batch; kept rows are renumbered in the order given."""
        self.lane_of = [self.lane_of[row] for row in rows]
        self.choosing.keep(rows)
        kept = sorted(set(self.lane_of))
        prefixes = [self.held.index(lane) for lane in kept]
        for copies in self.copies:
            tail = slice(0, self.tokens - self.prefix)
            for layer in range(copies.tail_keys.shape[0]):  # a layer at a time: in place, without a second copy
                for tails in (copies.tail_keys[layer], copies.tail_values[layer]):
                    tails[: len(rows), :, tail] = tails[rows, :, tail]
                if kept != self.held:
                    for shared in (copies.prefix_keys[layer], copies.prefix_values[layer]):
                        shared[: len(kept)] = shared[prefixes]
        self.held = kept
        self._reindex()

    def advance(self, fresh: int) -> None:
        """The step is over: its tokens are part of every row, and the tap has seen it."""
        self._showing.done()
        self.tokens += fresh
        if self.log is not None:
            self.log.advance(fresh)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        g, i = self.place[how.holder(layer)]
        queries = queries.to(self.copies[g].tail_keys.device)
        given = queries, keys, values, self.tokens, self.prefix, self.ahead is not None and keys.shape[2] > 1
        step = LayerStep(layer, how, i, self.copies[g], self._places[g], *given)
        for part in self.parts:
            part.before(step)
        step.asked = step.asked * how.scaling
        shared, tails, anew = self._attended(step)
        step.weights = shared.weights
        for part in self.parts if self.log is None else (*self.parts, self.log):
            part.after(step)
        if layer == self.until:
            raise LayerReached
        places = step.places
        out = read(places.by_row(shared.out), places.by_row(shared.weights[..., self.prefix :]), tails, anew)
        return out.reshape(len(keys), -1, step.fresh, out.shape[-1]).transpose(1, 2)

    def _attended(self, step: LayerStep) -> tuple[SharedAttention, Tensor, Reread | None]:
        """Attention over all that rows read, but for the values of their tails (rows, kv_heads, tokens, head_dim),
        which are returned with what is read otherwise of them."""
        copies, places, fresh = step.copies, step.places, step.fresh
        count, heads, _, dim = step.keys.shape
        held = len(self.held)
        q = step.asked.reshape(count, heads, -1, dim)  # (rows, kv_heads, groups * fresh, head_dim)
        tail = slice(0, step.own.stop)
        own_tails = [x[step.index, :count, :, tail].float() for x in (copies.tail_keys, copies.tail_values)]
        of_tails = products.scores(q, own_tails[0])
        anew = self._reread(step.held_by, own_tails, fresh)
        if anew[0] is not None:
            anew[0].scores_(of_tails, q)
        by_slot, tails = places.by_lane(q), places.by_lane(of_tails)  # (lanes, kv_heads, slots, n, head_dim | tail)
        shown = self.tap is not None and step.layer in self._showing.layers
        isolates = shown and self.tap.isolates(fresh)  # type: ignore[union-attr]
        if isolates:  # all lanes are held then, and row l is the forced row of lane l
            alike = q[:1].expand(held, -1, -1, -1)
            by_slot = torch.cat([by_slot, alike[:, :, None]], 2)
            tails = torch.cat([tails, products.scores(alike, own_tails[0][:held])[:, :, None]], 2)
        hide_future(tails, fresh)
        keys, values = (x[step.index, :held].float() for x in (copies.prefix_keys, copies.prefix_values))
        shared = SharedAttention(by_slot, tails, keys, values, places.rows.shape[1], step.hidden, step.how, fresh)
        shared.compute(self._showing.room(shared.every, q.device, shown), self.cores)
        if self.tap is not None and shown:
            entry = TapEntry(step.layer, step.queries[0].float(), step.hidden, step.how.sinks)
            self._showing.show(self.tap, entry, shared.every, isolates)
        return shared, own_tails[1], anew[1]

    def _reread(self, layer: int, tails: Sequence[Tensor], fresh: int) -> list[Reread | None]:
        """What is read otherwise of a layer's tails of keys and of values, where tokens are fed ahead."""
        if self.ahead is None or fresh == 1:
            return [None, None]
        return [self.ahead.reread(layer, kind, own, self.prefix, fresh) for kind, own in enumerate(tails)]

    def read_by(self, row: int, layer: int, queries: Tensor, seen: Tensor) -> Tensor | None:
        """See ``KeyChoices.read_by``; of all positions."""
        return self.choosing.read_by(row, layer, queries, seen, self.tokens)

    def store_tokens(self, row: int, cache: LaneCache, part: Part, fresh: int) -> None:
        """Let a row's new tokens enter a part of its packed store, and rewrite what the store changed: one by one, or
        once any are due, where they stand in the working copy as they will be stored."""
        waits = self.ahead is None and not cache.stored_first and part.may_wait
        for position in range(self.tokens, self.tokens + fresh):
            part.waiting += 1
            if waits and not part.plain.due(part.waiting):
                continue
            own = self.stored_first.own(self.lane_of[row], row, part, position - self.tokens)
            self._store_waiting(row, cache, part, position + 1, own)
            for start, values in cache.flush(part):
                told = fresh if self.ahead is None else position - self.tokens + 1
                self._tell_log(part, row, start, values.shape[-2], told)
                self._write(part.group, part.kind, part.layers, row, start, values)
        if part.stream.observes:
            self._look_back(row, part, fresh)

    def catch_up(self, row: int, cache: LaneCache) -> None:
        """Let all tokens that wait enter a row's store: before it is read, or has a second owner."""
        for part in cache.parts:
            if part.waiting:
                self._store_waiting(row, cache, part, self.tokens)

    def _store_waiting(self, row: int, cache: LaneCache, part: Part, end: int, own: Tensor | None = None) -> None:
        """Those before position ``end``; ``own``: as they came, where the working copy holds them otherwise."""
        start, part.waiting = end - part.waiting, 0
        if own is None:
            tail = self.copies[part.group].of(part.kind)[1]
            own = tokens_of(tail, part.layers, row, slice(start - self.prefix, end - self.prefix))
        cache.append(part, own, start)

    def _tell_log(self, part: Part, row: int, start: int, count: int, fresh: int) -> None:
        """Before ``count`` tokens are written anew from ``start`` on, after a pass of ``fresh`` has read them."""
        if self.log is not None and part.kind == "key":
            at = slice(start - self.prefix, start - self.prefix + count)
            old = tokens_of(self.copies[part.group].tail_keys, part.layers, row, at)
            self.log.replace(row, part.of_model(self.layers), self.tokens + fresh - self.prompt_tokens, start, old)

    def _look_back(self, row: int, part: Part, fresh: int) -> None:
        """Show a part the step's attention and rewrite the tokens it stores anew. Layers above the last of a pass,
        which nobody reads, are shown that of the highest below; a part of such layers alone is shown none."""
        layers = [layer for layer in part.of_model(self.layers) if self.until is None or layer <= self.until]
        if not layers:
            return
        shown = [min(layer, layers[-1]) for layer in part.of_model(self.layers)]
        patch = part.stream.observe(*self.looking_back.of(row, shown))
        if patch is not None:
            tail = self.copies[part.group].of(part.kind)[1]
            flat, at = tokens_at(tail, part.layers[patch.layer], row, patch.head, patch.token - self.prefix)
            if self.log is not None and part.kind == "key":
                where, until = (patch.layer, patch.head, patch.token), self.tokens + fresh - self.prompt_tokens
                self.log.patch(row, part.of_model(self.layers), until, where, flat[at].float())
            flat.index_copy_(0, at, patch.values.to(tail.dtype))

    def working(self, row: int, group: int, kind: str, layer: int) -> Tensor:
        """A row's working copy of one layer (its index in the group), (kv_heads, tokens, head_dim); for captures and
        audits."""
        prefix, tail = self.copies[group].of(kind)
        held = tail[layer, row, :, : self.tokens - self.prefix]
        parts = [prefix[layer, self.held.index(self.lane_of[row])].float(), held.float()]
        if kind == "key":  # in memory as the prefix lies: turning it round takes longer than most that is done with it
            return torch.cat([part.mT for part in parts], -1).mT
        return torch.cat(parts, -2)
