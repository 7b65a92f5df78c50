"""Lock-step decoding: one batched forward a step for the reference, the forced lanes and the free lanes."""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kvq_core.engine.ahead import Ahead, pass_tokens, read_at_once
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.encoded_lanes import EncodedLanes
from kvq_core.engine.lane_state import Finish
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.sampling import Sampler
from kvq_core.engine.stress import AppliedStress
from kvq_core.engine.tap import Tap
from kvq_core.machine.memory import release_memory
from kvq_core.models import LoadedModel
from kvq_core.models.head import POSITIONS
from kvq_core.spec import ComparisonSpec, Lane

# logits of the reference (n, vocabulary) and of the forced lanes (lanes, n, vocabulary), and the n tokens that follow
Score = Callable[[Tensor, Tensor, list[int]], None]
Close = Callable[[Rows], None]


class Decode(EncodedLanes):
    """A run after its prefill: encode the lanes, then step. Public fields are results once iteration is over."""

    def __init__(
        self,
        model: LoadedModel,
        prefill: SharedPrefill,
        spec: ComparisonSpec,
        lanes: list[Lane],
        stress: AppliedStress | None = None,
        given: list[int] | None = None,
        follow: list[int] | None = None,
        answered: Tensor | None = None,
    ):
        """``given``: the reference's answer, of other lanes' batch or of another file, which is followed here, too.
        ``follow``: the ids of a continuation, where they are known. ``answered``: the reference's logits (positions,
        vocabulary) by scored position, of a batch of its own; then it has no row beside the lanes."""
        if follow is None and spec.continuation is not None:
            follow = model.encode(spec.continuation)
        self.follow = follow
        total = len(follow) if follow is not None else spec.max_new_tokens
        super().__init__(model, prefill, spec, lanes, stress, total, answered is None)
        self._given, self._answered = given, answered
        self._lead: Decode | None = None  # the reference by itself, where its answer is written before lanes are fed
        self._begun: LaneCache | None = None  # of a lane that writes its own text afterwards, the prompt's alone
        self._passes: list[int] = []  # how many tokens each pass takes, where the answer is known beforehand
        self.token_ids: list[int] = []
        self.finish: Finish | None = None
        self.step_seconds: list[float] = []
        self.step_rows: list[int] = []

    def steps(self, score: Score, tap: Tap | None, close: Close) -> Iterator[None]:
        """Decode to the end, a turn a step: the reference's answer is given or chosen token by token.

        Forced rows are scored by ``score`` and seen by ``tap``; ``close`` is called once, when the reference has ended
        and the forced rows still stand.
        """
        self.rows.tap = tap
        yield from self._know()
        sampler = Sampler(self.spec.temperature, self.spec.seed)
        self._begin(sampler, close)
        while not self._over():
            fed = self._fed()
            forced = self._forced_rows() if fed else 0
            hidden = len(fed) > 1  # of a chunk the head reads a part at a time
            out = self._forward([fed] * forced + [[state.token_ids[-1]] for state in self._free], hidden)
            chosen = [] if hidden else self._chosen(sampler, out[:, -1])
            lanes = forced + (1 - self._first if fed else 0)  # the reference's choice leads though it has no row
            self._extend_free(chosen[lanes:])
            if fed:
                follow = self._followed(chosen, len(fed))
                self._score(score, out, hidden, follow, sampler)
                self._part_ways(chosen[:lanes], len(self.token_ids) - 1)
                if self._end_reference(follow[-1]):
                    self._close(close)
                    sampler = self._go_on_alone() or sampler
            self._drop_finished()
            if hidden and self.model.device.type == "cpu":
                release_memory()  # what a chunk took, the allocator would keep beside what the next one takes
            yield
        self._resolve()

    def _know(self) -> Iterator[None]:
        """Where nothing but the forced rows' logits is wanted of the lanes, or of one lane alone, let the reference
        answer first, a turn a step: then its tokens are fed many at once; see engine/ahead.py."""
        running = [state.cache for state in self.states_running if state.cache is not None]
        alone = self._first == 0 and len(running) == 1
        asked = self.follow is not None or self.rows.tap is not None or (self.spec.free_text and not alone)
        if asked or not running or not self.model.shape.in_chunks:
            return
        ahead = Ahead(running, self._first)
        most = pass_tokens(len(self.rows.lane_of), self.model.shape.query_heads, len(self.prefill.ids) + self.total)
        passes = ahead.passes(self.total - 1, most) if self.total > 1 else None
        if passes is None:
            return
        self.rows.ahead, self._passes = ahead, passes
        if self.spec.free_text:
            self._begun = running[0].fork()
        if self._given is None:
            yield from self._led()

    def _led(self) -> Iterator[None]:
        """The reference answers by itself."""
        self._lead = Decode(self.model, self.prefill, self.spec, [], self.stress)
        for _ in (*self._lead.encode(), *self._lead.fill()):
            pass
        yield from self._lead.steps(lambda reference, lanes, follow: None, None, lambda rows: None)
        self._given = self._lead.token_ids
        self.step_seconds += self._lead.step_seconds
        self.step_rows += self._lead.step_rows
        del self._lead.rows

    def _go_on_alone(self) -> Sampler | None:
        """A lane that was fed ahead writes its own text from where it parts, on its cache of the prompt, which is fed
        the answer up to there; the sampler of its next token. None where there is no such lane."""
        cache, self._begun = self._begun, None
        parted = [state for state in self.states_running if state.own_text and not state.finish and not state.error]
        if cache is None or not parted:
            return None
        state, prompt = parted[0], len(self.prefill.ids)
        del self.rows
        self._stand([cache], prompt)
        self.rows.ahead = Ahead([cache], 0)
        state.free, self._free = cache, [state]
        fed = self.token_ids[: state.first_divergence]
        for size in self.rows.ahead.passes(len(fed)) or [1] * len(fed):
            self.passed(torch.tensor([fed[:size]]), hidden=True)
            self.settle(size)
            fed = fed[size:]
        sampler = Sampler(self.spec.temperature, self.spec.seed)
        for _ in state.token_ids:
            sampler.draw(self.prefill.logits.shape[-1])
        return sampler

    @property
    def written(self) -> list[int]:
        """The reference's answer so far, be it that lanes have not followed it yet."""
        return self.token_ids if self._lead is None else self._lead.token_ids

    def _score(self, score: Score, out: Tensor, hidden: bool, follow: list[int], sampler: Sampler) -> None:
        """Score the forced rows at the positions before ``follow``, from their logits or what the head reads there; of
        a pass's positions their choices are taken then, too."""
        rows, scored = self._forced_rows(), len(self.token_ids) - len(follow) - 1
        at_once = POSITIONS if self.rows.ahead is None else read_at_once(rows)
        for start in range(0, len(follow), at_once):
            part = slice(start, start + at_once)
            logits = self._forced.head(out[:rows, part]) if hidden else out[:rows, part]
            at = slice(scored + start, scored + start + logits.shape[1])
            known = logits[0] if self._answered is None else self._answered[at]
            score(known, logits[self._first :], follow[part])
            for new, each in enumerate(logits.unbind(1) if hidden else (), scored + start + 1):
                self._part_ways(self._chosen(sampler, each, new), new)

    def _begin(self, sampler: Sampler, close: Close) -> None:
        """The first new token: the reference's, and of lanes that read the prompt through their caches their own."""
        first = [self.prefill.logits] * self._first + [*map(self.prompt_logits, self.states_running)]
        chosen = self._chosen(sampler, torch.stack(first))
        self.token_ids = chosen[:1] if self.follow is None else self.follow[:1]
        self._part_ways(chosen, 0)
        if self._end_reference(self.token_ids[0]):
            self._close(close)
        self._drop_finished()

    def _chosen(self, sampler: Sampler, logits: Tensor, at: int | None = None) -> list[int]:
        """Each row's choice of its next token, of the answer's token ``at``, the reference's first while it answers;
        none where all are given."""
        if self.follow is not None:
            return []
        sampler.draw(logits.shape[-1])
        chosen = sampler.choose(logits)
        if self._given is not None and not self.finish:
            chosen[: self._first] = [self._given[len(self.token_ids) if at is None else at]]
        return chosen

    def _fed(self) -> list[int]:
        """The tokens that forced rows read in the coming step; none once the reference has ended."""
        if self.finish:
            return []
        at = len(self.token_ids) - 1
        if self._passes:
            assert self._given is not None
            return self._given[at : min(at + self._passes.pop(0), len(self._given) - 1)]
        if self.follow is None:
            return self.token_ids[-1:]
        chunk = self.spec.score_chunk if self.model.shape.in_chunks else 1
        return self.follow[at : min(at + chunk, len(self.follow) - 1)]

    def _followed(self, chosen: list[int], count: int) -> list[int]:
        """The ``count`` tokens of the reference that follow those fed."""
        known = self.follow or (self._given if self.rows.ahead is not None else None)
        new = known[len(self.token_ids) :][:count] if known is not None else chosen[:1]
        self.token_ids += new
        return new

    def _close(self, close: Close) -> None:
        self._catch_up()
        close(self.rows)
        self._lose(self._forced_rows())

    def _over(self) -> bool:
        return self.finish is not None and not self._free

    def _ends(self, token: int, count: int) -> Finish | None:
        eos = token in self.model.eos_ids and not self.spec.ignore_eos
        return "eos" if eos else "length" if count >= self.total else None

    def _end_reference(self, token: int) -> bool:
        """Note whether the reference ends with this token; lanes that never diverged end with it."""
        if self.follow is not None:
            self.finish = "continuation" if len(self.token_ids) == self.total else None
            return self.finish is not None
        self.finish = self._ends(token, len(self.token_ids))
        if self._given is not None:  # in another file it may end with a token that ends nothing here
            self.finish = (self.finish or "eos") if len(self.token_ids) == len(self._given) else None
        for state in self.states_running:
            if not state.own_text:
                state.finish = self.finish
        return self.finish is not None

    def _part_ways(self, chosen: list[int], at: int) -> None:
        """Give every lane whose choice of the token ``at`` differs from the reference's for the first time a row of its
        own."""
        for row, state in enumerate(self.states_running if chosen else (), 1):
            if state.own_text or state.error:
                continue
            state.token_ids.append(chosen[row])
            if chosen[row] == chosen[0]:
                continue
            state.first_divergence = at
            state.finish = self._ends(chosen[row], len(state.token_ids))
            free = self.spec.free_text and state.kernel is None and self.rows.ahead is None
            if state.finish is None and state.cache is not None and free:
                source = row - 1 + self._first
                self.rows.catch_up(source, state.cache)
                state.free = state.cache.fork()
                self.rows.fork(source, state.free.selects)
                self._take_states([*range(len(self.rows.lane_of) - 1), source])
                self._free.append(state)

    def _extend_free(self, chosen: list[int]) -> None:
        for state, token in zip(self._free, chosen, strict=True):
            state.token_ids.append(token)
            state.finish = self._ends(token, len(state.token_ids))

    def _drop_finished(self) -> None:
        forced = self._forced_rows()
        gone = [state for state in self._free if state.finish or state.error]
        stay = (forced + i for i, state in enumerate(self._free) if state not in gone)
        keep = [*(() if self.finish else range(forced)), *stay]
        if len(keep) < len(self.rows.lane_of) and keep:
            if self.finish:
                self.rows.tap = None
            self.rows.keep(keep)
            self._take_states(keep)
        for state in gone:
            state.free = None
        self._free = [state for state in self._free if state not in gone]

    def _forward(self, inputs: list[list[int]], hidden: bool = False) -> Tensor:
        """One batched forward of all rows and the upkeep of their caches: logits (rows, tokens, vocabulary), or what
        the head reads, (rows, tokens, hidden size)."""
        self._stepper()  # laid out before the time of steps is taken
        began = time.perf_counter()
        out = self.passed(torch.tensor(inputs), hidden)
        self.settle(len(inputs[0]))
        self.step_seconds.append(time.perf_counter() - began)
        self.step_rows.append(len(inputs))
        return out
