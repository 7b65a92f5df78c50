"""Lock-step decoding: one batched forward a step for the reference, the forced lanes and the free lanes."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache, Part
from kvq_core.engine.fit import Shared
from kvq_core.engine.prefill import Prefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.sampling import Sampler
from kvq_core.engine.stress import AppliedStress
from kvq_core.engine.tap import Tap
from kvq_core.errors import KvqError
from kvq_core.machine import threads
from kvq_core.machine.memory import is_out_of_memory
from kvq_core.models import LoadedModel
from kvq_core.models.rope import Rope
from kvq_core.models.shared_products import divide_products
from kvq_core.spec import ComparisonSpec, Lane

_ADDING = threading.Lock()  # two parts of a lane may end at once

Finish = Literal["eos", "length", "continuation"]
# logits of the reference (n, vocabulary) and of the forced lanes (lanes, n, vocabulary), and the n tokens that follow
Score = Callable[[Tensor, Tensor, list[int]], None]
Close = Callable[[Rows], None]


@dataclass
class LaneState:
    """One lane of a run. ``token_ids`` is the lane's own (free) text, equal to the reference's until it diverges."""

    lane: Lane
    cache: LaneCache | None = None
    free: LaneCache | None = None
    error: str | None = None
    token_ids: list[int] = field(default_factory=list)
    first_divergence: int | None = None
    finish: Finish | None = None
    encode_prompt_s: float = 0.0
    encode_decode_s: float = 0.0

    @property
    def own_text(self) -> bool:
        return self.first_divergence is not None


class Decode:
    """A run after its prefill: encode the lanes, then step. Public fields are results once iteration is over."""

    def __init__(
        self,
        model: LoadedModel,
        prefill: Prefill,
        spec: ComparisonSpec,
        lanes: list[Lane],
        stress: AppliedStress | None = None,
    ):
        self.model, self.prefill, self.spec, self.stress = model, prefill, spec, stress
        self.follow = model.encode(spec.continuation) if spec.continuation is not None else None
        self.total = len(self.follow) if self.follow is not None else spec.max_new_tokens
        self.rope: Rope = model.rope(len(prefill.ids) + self.total)
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
        cores = torch.get_num_threads() if self.model.device.type == "cpu" else 1
        shared = Shared()  # streams that lanes have alike are encoded once
        yield from threads.in_order([partial(self._encode, state, shared) for state in self.states], cores)
        prompt = len(self.prefill.ids)
        self.states_running = [state for state in self.states if state.cache is not None]
        caches = [state.cache for state in self.states_running if state.cache is not None]
        self.rows = Rows(self.prefill.groups, caches, self.rope, prompt, prompt + self.total)
        self._narrow = self.model.widest < threads.NARROW
        self._stepping = replace(
            self.model, model=divide_products(self.model.model, self.rows.cores if self._narrow else 1)
        )

    def _encode(self, state: LaneState, shared: Shared) -> None:
        if state.error:  # known before it was tried
            return
        began = time.perf_counter()
        try:
            state.cache = LaneCache.of_prompt(state.lane, self.prefill.groups, self.rope, self.model.ref, shared)
        except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
            state.error = _said(error)
        state.encode_prompt_s = time.perf_counter() - began

    def steps(self, score: Score, tap: Tap | None, close: Close) -> Iterator[None]:
        """Decode to the end, a turn a step.

        Forced rows are scored by ``score`` and seen by ``tap``; ``close`` is called once, when the reference has ended
        and the forced rows still stand.
        """
        self.rows.tap = tap
        if self.follow is None:
            yield from self._generate(score, close)
        else:
            yield from self._score_continuation(score)
            close(self.rows)

    def _score_continuation(self, score: Score) -> Iterator[None]:
        tokens = self.follow or []
        self.token_ids, self.finish = list(tokens), "continuation"
        for start in range(0, len(tokens) - 1, self.spec.score_chunk):
            inputs = tokens[start : min(start + self.spec.score_chunk, len(tokens) - 1)]
            logits = self._forward([inputs] * (len(self.states_running) + 1))
            score(logits[0], logits[1:], tokens[start + 1 : start + 1 + len(inputs)])
            yield

    def _generate(self, score: Score, close: Close) -> Iterator[None]:
        sampler = Sampler(self.spec.temperature, self.spec.seed)
        sampler.draw(self.prefill.logits.shape[-1])
        first = sampler.choose(self.prefill.logits[None])[0]
        self.token_ids = [first]
        for state in self.states_running:
            state.token_ids = [first]
        if self._end_reference(first):
            close(self.rows)
        while not self._over():
            inputs = [] if self.finish else [self.token_ids[-1]] * (len(self.states_running) + 1)
            logits = self._forward([[token] for token in inputs + [state.token_ids[-1] for state in self._free]])
            sampler.draw(logits.shape[-1])
            chosen = sampler.choose(logits[:, -1])
            forced = len(inputs)
            self._extend_free(chosen[forced:])
            if not self.finish:
                self.token_ids.append(chosen[0])
                score(logits[0], logits[1:forced], [chosen[0]])
                self._part_ways(chosen[:forced])
                if self._end_reference(chosen[0]):
                    close(self.rows)
            self._drop_finished()
            yield

    def _over(self) -> bool:
        return self.finish is not None and not self._free

    def _ends(self, token: int, count: int) -> Finish | None:
        if token in self.model.eos_ids and not self.spec.ignore_eos:
            return "eos"
        return "length" if count >= self.total else None

    def _end_reference(self, token: int) -> bool:
        """Note whether the reference ends with this token; lanes that never diverged end with it."""
        self.finish = self._ends(token, len(self.token_ids))
        for state in self.states_running:
            if not state.own_text:
                state.finish = self.finish
        return self.finish is not None

    def _part_ways(self, chosen: list[int]) -> None:
        """Give every lane whose choice differs from the reference's for the first time a row of its own."""
        for row, state in enumerate(self.states_running, 1):
            if state.own_text or state.error:
                continue
            state.token_ids.append(chosen[row])
            if chosen[row] == chosen[0]:
                continue
            state.first_divergence = len(self.token_ids) - 1
            state.finish = self._ends(chosen[row], len(state.token_ids))
            if state.finish is None and state.cache is not None:
                state.free = state.cache.fork()
                self.rows.fork(row)
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
        for state in gone:
            state.free = None
        self._free = [state for state in self._free if state not in gone]

    def _forced_rows(self) -> int:
        """Rows before the free ones: reference and forced lanes ride until the reference ends."""
        return len(self.rows.lane_of) - len(self._free)

    def _forward(self, inputs: list[list[int]]) -> Tensor:
        """One batched forward of all rows and the upkeep of their caches: logits (rows, tokens, vocabulary)."""
        began = time.perf_counter()
        ids = torch.tensor(inputs)
        with threads.one_thread(self._narrow):
            attend = self.rows if self.stress is None else self.stress.wrap(self.rows)
            logits = self._stepping.forward(ids, self.rows.tokens, attend)
        forced = self._forced_rows()
        owners = [(row, s, s.cache) for row, s in enumerate(self.states_running, 1) if row < forced]
        owners += [(forced + i, s, s.free) for i, s in enumerate(self._free)]
        settling = [
            partial(self._settle, row, state, cache, part, ids.shape[1])
            for row, state, cache in owners
            if state.error is None and cache is not None
            for part in cache.parts  # keys and values know nothing of each other: a lane alone still fills two cores
        ]
        threads.each(settling, self.rows.cores)
        self.rows.advance(ids.shape[1])
        self.step_seconds.append(time.perf_counter() - began)
        self.step_rows.append(len(inputs))
        return logits

    def _settle(self, row: int, state: LaneState, cache: LaneCache, part: Part, fresh: int) -> None:
        began = time.perf_counter()
        try:
            self.rows.store_tokens(row, cache, part, fresh)
        except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
            state.error = _said(error)
        with _ADDING:
            state.encode_decode_s += time.perf_counter() - began


def _said(error: Exception) -> str:
    """What a failed lane shows. Memory that ran out is no lane's own failure: the run ends with it."""
    if is_out_of_memory(error):
        raise error
    if isinstance(error, KvqError):
        return str(error)
    return " ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]])[:200]
