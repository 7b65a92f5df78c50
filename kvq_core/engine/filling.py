"""The prompt of some lanes, read through their own caches.

A pass computes its tokens in the model once for every lane, each attending to what its cache holds of the tokens before
and to its own pass as computed (raw) or as the cache would store it (stored); then they enter the cache. Of an answer
that is given, every token reads what it would read if they came one by one; see engine/ahead.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvq_core.engine.ahead import Ahead, pass_tokens
from kvq_core.engine.as_computed import AsComputed
from kvq_core.engine.cache import KINDS, Kind, LaneCache, Part
from kvq_core.engine.fit import FitSource
from kvq_core.engine.key_choices import KeyChoices, Reads, fit_selection
from kvq_core.engine.left_out import BiasesLeftOut
from kvq_core.engine.pre_rope import PreRope
from kvq_core.engine.prefill import CHUNK, LayerGroup, SharedPrefill
from kvq_core.engine.query_rounding import RoundedQueries, chunk_attention
from kvq_core.engine.script import Segment
from kvq_core.engine.stored_attention import StoredTokens
from kvq_core.engine.stress import AppliedStress
from kvq_core.models import LoadedModel
from kvq_core.models.scoring import Scoring, causal_attention

if TYPE_CHECKING:
    from kvq_core.models.states import States

WATCHED = 64  # last queries of a pass whose attention a method may look back on


@dataclass
class _Working:
    """Of a group of layers, in its dtype (layers, lanes, kv_heads, tokens, head_dim): what the lanes computed, and what
    attention reads of it."""

    own: dict[Kind, Tensor]
    read: dict[Kind, Tensor]

    @classmethod
    def of(cls, group: LayerGroup, lanes: int) -> "_Working":
        shapes = ((x.shape[0], lanes, *x.shape[1:]) for x in (group.keys, group.values))
        made = (torch.empty(shape, dtype=group.keys.dtype, device=group.device) for shape in shapes)
        own = dict(zip(KINDS, made, strict=True))
        return cls(own, {kind: torch.empty_like(own[kind]) for kind in KINDS})


@dataclass
class LaneFilling:
    """The passes of lanes whose prompts enter in the same ones. ``run`` to the end, then read ``hidden``, what the head
    reads at the ``scored`` positions, (lanes, positions, hidden size), ``last``, what it reads at the last token, and
    ``errors``.

    ``caches`` hold what comes before the first pass; ``stored``: a token is stored before it is read; ``turn``: where
    the first turn ends, after which all choose the keys they read.
    """

    model: LoadedModel
    prefill: SharedPrefill
    caches: list[LaneCache]
    passes: list[Segment]
    stored: bool
    scored: list[int]
    turn: int
    stress: AppliedStress | None = None
    states: "States | None" = field(init=False)  # of the lanes' rows, of layers that are no attention
    hidden: Tensor = field(init=False)
    last: Tensor = field(init=False)
    _now: Segment = field(init=False)
    _seen: dict[int, tuple[Tensor, Tensor]] = field(init=False, default_factory=dict)  # by model layer

    def run(self) -> Iterator[int]:
        """A pass a turn; yields the prompt tokens done."""
        self._model = self.model.stepping()  # whose products do not depend on how many tokens a pass takes
        self._groups = [_Working.of(group, len(self.caches)) for group in self.prefill.groups]
        self._place = {
            layer: (g, i) for g, group in enumerate(self.prefill.groups) for i, layer in enumerate(group.layers)
        }
        self._as_computed = AsComputed(self.caches, self.prefill.groups)
        self._as_computed.reindex(range(1, len(self.caches) + 1))
        rope = self.model.rope(len(self.prefill.ids))
        self._pre_rope, self._left_out = (
            PreRope(rope, self.caches, self.prefill.groups),
            BiasesLeftOut(rope, self.caches),
        )
        self._pre_rope.reindex(range(1, len(self.caches) + 1))
        self._left_out.reindex(range(1, len(self.caches) + 1))
        self._rounded = RoundedQueries([cache.roundings for cache in self.caches])
        self._rounded.reindex(range(len(self.caches)))
        self._stored = StoredTokens(self.caches) if self.stored else None
        self._ahead = Ahead(self.caches, 0)
        self._watches = any(cache.observes for cache in self.caches)
        heads = {layer: group.keys.shape[1] for group in self.prefill.groups for layer in group.layers}
        self._choosing = KeyChoices([cache.selects for cache in self.caches], heads)
        self._start(self.passes[0].start)
        self.states = self._states_at(self.passes[0].start)
        found = []
        for now in chain.from_iterable(map(self._in_passes, self.passes)):
            self._now = now
            hidden = self._forward()
            at = [p - now.start for p in self.scored if now.start <= p < now.end]
            found.append(hidden[:, at])
            self.last = hidden[:, -1]
            self._enter()
            if now.end == self.turn:
                self._choose()
            yield now.end
        self.hidden = torch.cat(found, 1)

    def _in_passes(self, segment: Segment) -> Iterator[Segment]:
        """A pass of the prompt as it is, an answer in as many as its tokens' caches ask for."""
        tokens, sizes = segment.end - segment.start, None
        if not segment.answered:
            sizes = [tokens]
        elif self.model.shape.in_chunks:
            most = pass_tokens(len(self.caches), self.model.shape.query_heads, segment.end)
            sizes = self._ahead.passes(tokens, max(1, min(most, CHUNK // len(self.caches))))
        ends = accumulate(sizes or [1] * tokens, initial=segment.start)
        yield from (Segment(start, end, segment.answered) for start, end in pairwise(ends))

    def _start(self, tokens: int) -> None:
        """Fill in the tokens before the first pass: as the reference computed them, and as the caches read them."""
        for g, group in enumerate(self.prefill.groups):
            for kind, x in zip(KINDS, (group.keys, group.values), strict=True):
                self._groups[g].own[kind][:, :, :, :tokens] = x[:, None, :, :tokens]
            for layer, own in zip(group.layers, self._groups[g].own["key"], strict=True):
                own[:, :, :tokens] = self._left_out.without(layer, own[:, :, :tokens], 0)
        for row, cache in enumerate(self.caches):
            for part in cache.parts:
                for start, values in cache.pieces(part):
                    self._write(row, part, start, values)
        if self._watches and tokens:
            self._now = Segment(0, tokens)
            for group in self.prefill.groups:
                for i, layer in enumerate(group.layers):
                    queries, keys = (
                        x[i : i + 1, :, :tokens].float().expand(len(self.caches), -1, -1, -1)
                        for x in (group.queries, group.keys)
                    )
                    how = self.model.scoring[layer]
                    assert how is not None
                    self._note(layer, queries, keys, how, {})
            self._look_back()

    def _states_at(self, tokens: int) -> "States | None":
        """Those that the reference's first tokens leave, for each lane."""
        states = self.model.states()
        if states is None or not tokens:
            return states
        ids = torch.tensor([self.prefill.ids[:tokens]])
        self._model.hidden(ids, 0, lambda layer, q, k, v, how: causal_attention(q, k, v, how), states)
        return states.of_rows([0] * len(self.caches))

    def _forward(self) -> Tensor:
        ids = torch.tensor([self.prefill.ids[self._now.start : self._now.end]] * len(self.caches))
        attend = self._attend if self.stress is None else self.stress.wrap(self._attend)
        hidden = self._model.hidden(ids, self._now.start, attend, self.states)
        for error in (*self._choosing.failed.values(), *self._ahead.failed.values()):
            raise error
        return hidden

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        held_by = how.holder(layer)
        g, i = self._place[held_by]
        working, now, end = self._groups[g], slice(self._now.start, self._now.end), self._now.end
        keys = keys if how.reads is not None else self._left_out.without(layer, keys, now.start)
        # a token that is decoded is read as a cache holds it, and so is one that is stored first
        kept = self.stored or self._now.answered
        for kind, x in zip(KINDS, (keys, values), strict=True) if how.reads is None else ():
            working.own[kind][i, :, :, now] = self._as_computed.held(layer, (kind,), x[None])[0] if kept else x
            if kept and kind == "key":
                self._pre_rope.enter(layer, x.float(), now.start, working.own[kind][i, :, :, now])
            working.read[kind][i, :, :, now] = working.own[kind][i, :, :, now]
        own, read = ([of[kind][i, :, :, :end] for kind in KINDS] for of in (working.own, working.read))
        met = self._rounded(held_by, queries.float())
        reads = self._choosing.reads(held_by, queries, end)
        if self._stored is not None:
            if how.reads is None:
                self._stored.preview(layer, own, read, self._now.start)
            own, read = ([x.float() for x in tensors] for tensors in (own, read))
            asked = {row: keys_read() for row, keys_read in reads.items()}
            return self._stored.attention(held_by, met, own, read, how, asked).to(queries.dtype)
        seen_keys, seen_values = (x.float() for x in read)
        if self._now.answered and self._ahead.knows_reads:
            return self._ahead.attention(held_by, met, seen_keys, seen_values, how).to(queries.dtype)
        if self._watches and how.reads is None:
            self._note(layer, queries.float(), seen_keys, how, reads)
        if reads or any(held_by in cache.roundings for cache in self.caches):
            out = []
            own_met = met if self._now.answered else queries.float()  # a token that is decoded meets its own key so
            for row, given in enumerate(zip(own_met, met, seen_keys, seen_values, strict=True)):
                seen = reads[row]() if row in reads else None
                out.append(chunk_attention(*given, how, seen, partial(self._choosing.follow, row, layer)))
            return torch.stack(out).to(queries.dtype)
        return causal_attention(queries, read[0].to(queries.dtype), read[1].to(queries.dtype), how)

    def _enter(self) -> None:
        """Let the pass's tokens enter the caches, and rewrite what reads differently from now on."""
        now = slice(self._now.start, self._now.end)
        for row, cache in enumerate(self.caches):
            for part in cache.parts:
                own = self._groups[part.group].own[part.kind][part.layers, row, :, now].float()
                start, values = cache.enter(part, own, self._now.start, prompt=not self._now.answered)
                if self._stored is None:
                    self._write(row, part, start, values)
        self._look_back()

    def _choose(self) -> None:
        """Let caches that choose among the tokens of a whole prompt do so, by the keys that their lanes computed."""
        for row, cache in enumerate(self.caches):
            for selection, layers in cache.unchosen:
                source = FitSource(self._computed_by(row), self.model.rope(self.turn), self.model.ref)
                cache.choose(*fit_selection(selection, layers, source, self.turn))

    def _computed_by(self, row: int) -> list[LayerGroup]:
        """A lane's keys and values of the first turn, as they were before they were stored."""
        found = []
        for group, working in zip(self.prefill.groups, self._groups, strict=True):
            keys, values = (working.own[kind][:, row, :, : self.turn].float() for kind in KINDS)
            found.append(replace(group.first(self.turn), keys=keys, values=values))
        return found

    def _write(self, row: int, part: Part, start: int, x: Tensor) -> None:
        """Put x (layers, kv_heads, tokens, head_dim) at positions start, ... of what a lane reads."""
        read = self._groups[part.group].read[part.kind]
        read[part.layers, row, :, start : start + x.shape[-2]] = x.to(read.dtype)

    def _note(self, layer: int, queries: Tensor, keys: Tensor, how: Scoring, chosen: Reads) -> None:
        """Keep the pass's last queries and their attention, for caches that look back on it."""
        asked = queries[:, :, -WATCHED:]
        n, total = asked.shape[-2], keys.shape[-2]
        grouped = asked.unflatten(1, (keys.shape[1], -1))  # (lanes, kv_heads, groups, n, head_dim)
        scores = how.capped_(grouped @ keys.unsqueeze(2).mT * how.scaling)
        for row, reads in chosen.items():
            scores[row].masked_fill_(~reads()[:, None, None], float("-inf"))
        weights = how.softmax(scores.masked_fill_(how.unseen(n, total, keys.device), float("-inf")))
        self._seen[layer] = asked, weights.flatten(1, 2)

    def _look_back(self) -> None:
        """Show the pass's attention to the parts that look back, and rewrite the tokens they store anew."""
        for row, cache in enumerate(self.caches):
            for part in cache.parts if self._watches else ():
                if not part.stream.observes:
                    continue
                layers = [self.prefill.groups[part.group].layers[i] for i in part.layers.tolist()]
                queries, attention = (torch.stack([self._seen[layer][k][row] for layer in layers]) for k in (0, 1))
                patch = part.stream.observe(queries, attention)
                if patch is not None:
                    read = self._groups[part.group].read[part.kind]
                    read[part.layers[patch.layer], row, patch.head, patch.token] = patch.values.to(read.dtype)

    def errors(self, row: int, kind: Kind) -> float:
        """Relative error ||read - own||_F / ||own||_F of a lane's cache against the keys or values it was given, mean
        over layers, as key_rmse is against the reference's."""
        found = []
        for part in self.caches[row].of(kind):
            given = self._groups[part.group].own[kind][part.layers, row]
            pieces = [values for _, values in self.caches[row].pieces(part)]
            for layer, x in enumerate(given):  # whose doubles a core's cache holds
                own, read = x.double(), torch.cat([values[layer] for values in pieces], -2)
                found.append((read - own).square_().sum().div(own.square_().sum()).sqrt())
        return torch.stack(found).mean().item()
