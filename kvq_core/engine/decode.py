"""Lock-step decoding: one batched forward a step for the reference, the forced lanes and the free lanes."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from kvq_core.engine.entry import Entry, Filled
from kvq_core.engine.fit import Shared
from kvq_core.engine.lane_state import Finish, LaneState, failure_line, joined_states
from kvq_core.engine.prefill import Prefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.sampling import Sampler
from kvq_core.engine.script import Script
from kvq_core.engine.settling import settle_part
from kvq_core.engine.stress import AppliedStress
from kvq_core.engine.tap import Tap
from kvq_core.machine import threads
from kvq_core.machine.memory import release_memory
from kvq_core.models import LoadedModel
from kvq_core.models.head import POSITIONS
from kvq_core.models.rope import Rope
from kvq_core.spec import ComparisonSpec, Lane

# logits of the reference (n, vocabulary) and of the forced lanes (lanes, n, vocabulary), and the n tokens that follow
Score = Callable[[Tensor, Tensor, list[int]], None]
Close = Callable[[Rows], None]


class Decode:
    """A run after its prefill: encode the lanes, then step. Public fields are results once iteration is over."""

    def __init__(
        self,
        model: LoadedModel,
        prefill: Prefill,
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
        self.model, self.prefill, self.spec, self.stress = model, prefill, spec, stress
        if follow is None and spec.continuation is not None:
            follow = model.encode(spec.continuation)
        self.follow = follow
        self.total = len(self.follow) if self.follow is not None else spec.max_new_tokens
        self.rope: Rope = model.rope(len(prefill.ids) + self.total)
        self.script = Script.of_prompt(prefill.ids)
        self.shared = Shared()  # streams that lanes have alike are encoded once
        self._given, self._answered = given, answered
        self._first = 1 if answered is None else 0  # row of the first lane
        self.states = [LaneState(lane) for lane in lanes]
        self.token_ids: list[int] = []
        self.finish: Finish | None = None
        self.step_seconds: list[float] = []
        self.step_rows: list[int] = []
        self.states_running: list[LaneState] = []
        self.rows: Rows
        self._free: list[LaneState] = []  # owners of the rows after the forced ones

    def encode(self) -> Iterator[int]:
        """Encode the prompt under each lane; yields the index of the lane that is waited for."""
        self._entry = Entry(self.model, self.prefill, self.rope, self.script, self.stress, self.shared)
        cores = torch.get_num_threads() if self.model.device.type == "cpu" else 1
        yield from threads.in_order([partial(self._encode, state) for state in self.states], cores)

    def fill(self) -> Iterator[Filled]:
        """Let the rest of the prompt enter the caches of the lanes that read it through them, a pass a turn; then all
        lanes stand in their rows."""
        yield from self._entry.fill(self.states)
        prompt = len(self.prefill.ids)
        self.states_running = [state for state in self.states if state.cache is not None]
        caches = [state.cache for state in self.states_running if state.cache is not None]
        self.rows = Rows(self.prefill.groups, caches, self.rope, prompt, prompt + self.total)
        self._states = joined_states(self.prefill.states, self.states_running)
        if self._first == 0 and caches:
            lanes = list(range(1, len(caches) + 1))
            self.rows.keep(lanes)
            self._take_states(lanes)
        self._stepping = self.model.stepping()
        self._forced = self._stepping  # while the forced rows are fed
        for row, state in enumerate(self.states_running, 1):
            if state.kernel is not None:
                self._forced = state.kernel.stepping(self._forced, row)

    def _encode(self, state: LaneState) -> None:
        if state.error:  # known before it was tried
            return
        began = time.perf_counter()
        try:
            state.cache = self._entry.cache(state)
        except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
            state.error = failure_line(error)
        state.encode_prompt_s = time.perf_counter() - began

    def steps(self, score: Score, tap: Tap | None, close: Close) -> Iterator[None]:
        """Decode to the end, a turn a step: the reference's answer is given or chosen token by token.

        Forced rows are scored by ``score`` and seen by ``tap``; ``close`` is called once, when the reference has ended
        and the forced rows still stand.
        """
        self.rows.tap = tap
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
                self._score(score, out, hidden, follow)
                self._part_ways(chosen[:lanes])
                if self._end_reference(follow[-1]):
                    self._close(close)
            self._drop_finished()
            if hidden and self.model.device.type == "cpu":
                release_memory()  # what a chunk took, the allocator would keep beside what the next one takes
            yield

    def _score(self, score: Score, out: Tensor, hidden: bool, follow: list[int]) -> None:
        """Score the forced rows at the positions before ``follow``, from their logits or what the head reads there."""
        rows, scored = self._forced_rows(), len(self.token_ids) - len(follow) - 1
        for start in range(0, len(follow), POSITIONS):
            part = slice(start, start + POSITIONS)
            logits = self._stepping.head(out[:rows, part]) if hidden else out[:rows, part]
            at = slice(scored + start, scored + start + logits.shape[1])
            known = logits[0] if self._answered is None else self._answered[at]
            score(known, logits[self._first :], follow[part])

    def _begin(self, sampler: Sampler, close: Close) -> None:
        """The first new token: the reference's, and of lanes that read the prompt through their caches their own."""
        own = [self.prefill.logits] * self._first
        chosen = self._chosen(sampler, torch.stack([*own, *map(self.prompt_logits, self.states_running)]))
        self.token_ids = chosen[:1] if self.follow is None else self.follow[:1]
        self._part_ways(chosen)
        if self._end_reference(self.token_ids[0]):
            self._close(close)
        self._drop_finished()

    def prompt_logits(self, state: LaneState) -> Tensor:
        """Those that choose a lane's first new token, (vocabulary,)."""
        last = state.last_hidden
        return self.prefill.logits if last is None else self.model.head(last[None, None])[0, 0]

    def _chosen(self, sampler: Sampler, logits: Tensor) -> list[int]:
        """Each row's choice of its next token, the reference's first while it answers; none where all are given."""
        if self.follow is not None:
            return []
        sampler.draw(logits.shape[-1])
        chosen = sampler.choose(logits)
        if self._given is not None and not self.finish:
            chosen[: self._first] = [self._given[len(self.token_ids)]]
        return chosen

    def _fed(self) -> list[int]:
        """The tokens that forced rows read in the coming step; none once the reference has ended."""
        if self.finish:
            return []
        if self.follow is None:
            return self.token_ids[-1:]
        at = len(self.token_ids) - 1
        chunk = self.spec.score_chunk if self.model.shape.in_chunks else 1
        return self.follow[at : min(at + chunk, len(self.follow) - 1)]

    def _followed(self, chosen: list[int], count: int) -> list[int]:
        """The ``count`` tokens of the reference that follow those fed."""
        at = len(self.token_ids)
        new = chosen[:1] if self.follow is None else self.follow[at : at + count]
        self.token_ids += new
        return new

    def _close(self, close: Close) -> None:
        close(self.rows)
        self._lose(self._forced_rows())

    def _lose(self, forced: int) -> None:
        """Lanes whose choice of keys has failed are lost, and no others."""
        for row, error in self.rows.choosing.failed.items():
            state = self.states_running[row - self._first] if row < forced else self._free[row - forced]
            state.error = state.error or failure_line(error)
        self.rows.choosing.failed.clear()

    def _over(self) -> bool:
        return self.finish is not None and not self._free

    def _ends(self, token: int, count: int) -> Finish | None:
        if token in self.model.eos_ids and not self.spec.ignore_eos:
            return "eos"
        return "length" if count >= self.total else None

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

    def _part_ways(self, chosen: list[int]) -> None:
        """Give every lane whose choice differs from the reference's for the first time a row of its own."""
        for row, state in enumerate(self.states_running if chosen else (), 1):
            if state.own_text or state.error:
                continue
            state.token_ids.append(chosen[row])
            if chosen[row] == chosen[0]:
                continue
            state.first_divergence = len(self.token_ids) - 1
            state.finish = self._ends(chosen[row], len(state.token_ids))
            free = self.spec.free_text and state.kernel is None
            if state.finish is None and state.cache is not None and free:
                state.free = state.cache.fork()
                source = row - 1 + self._first
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
        keep = [] if self.finish else list(range(forced))
        keep += [forced + i for i, state in enumerate(self._free) if state not in gone]
        if len(keep) < len(self.rows.lane_of) and keep:
            if self.finish:
                self.rows.tap = None
            self.rows.keep(keep)
            self._take_states(keep)
        for state in gone:
            state.free = None
        self._free = [state for state in self._free if state not in gone]

    def _take_states(self, rows: list[int]) -> None:
        if self._states is not None:
            self._states = self._states.of_rows(rows)

    def _forced_rows(self) -> int:
        """Rows before the free ones: reference and forced lanes ride until the reference ends."""
        return len(self.rows.lane_of) - len(self._free)

    def _forward(self, inputs: list[list[int]], hidden: bool = False) -> Tensor:
        """One batched forward of all rows and the upkeep of their caches: logits (rows, tokens, vocabulary), or what
        the head reads, (rows, tokens, hidden size)."""
        began = time.perf_counter()
        out = self.passed(torch.tensor(inputs), hidden)
        self.settle(len(inputs[0]))
        self.step_seconds.append(time.perf_counter() - began)
        self.step_rows.append(len(inputs))
        return out

    def passed(self, ids: Tensor, hidden: bool = False) -> Tensor:
        """The forward of all rows' next tokens, which are in no store yet; the first half of ``_forward``."""
        with threads.one_thread(self.model.narrow):
            attend = self.rows if self.stress is None else self.stress.wrap(self.rows)
            stepping = self._forced if self._forced_rows() else self._stepping
            forward = stepping.hidden if hidden else stepping.forward
            return forward(ids, self.rows.tokens, attend, states=self._states)

    def settle(self, fresh: int) -> None:
        """Let the ``fresh`` tokens of a pass enter the stores of all rows."""
        forced = self._forced_rows()
        self._lose(forced)
        owners = [(row, s, s.cache) for row, s in enumerate(self.states_running, self._first) if row < forced]
        owners += [(forced + i, s, s.free) for i, s in enumerate(self._free)]
        settling = [
            partial(settle_part, self.rows, row, state, cache, part, fresh)
            for row, state, cache in owners
            if state.error is None and cache is not None
            for part in cache.parts  # keys and values know nothing of each other: a lane alone still fills two cores
        ]
        threads.each(settling, self.rows.cores)
        self.rows.advance(fresh)
