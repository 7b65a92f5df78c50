"""A run's lanes after its prefill: their encoded caches in the rows of a batch, and one pass over these rows."""

import threading
import time
from collections.abc import Iterator
from functools import cached_property, partial

import torch
from torch import Tensor

from kvq_core.codecs.doubts import doubting
from kvq_core.engine.cache import LaneCache, Part
from kvq_core.engine.entry import PromptEntry
from kvq_core.engine.fit import FitCache
from kvq_core.engine.lane_state import LaneState, failure_line, joined_states
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.script import Script
from kvq_core.engine.stress import AppliedStress
from kvq_core.machine import threads
from kvq_core.models import LoadedModel
from kvq_core.models.rope import Rope
from kvq_core.record.events import Filling
from kvq_core.spec import ComparisonSpec, Lane

_ADDING = threading.Lock()  # two parts of a lane may end at once


class EncodedLanes:
    """Lanes that are encoded and then stand in rows beside the reference; who steps them is ``Decode``."""

    def __init__(
        self,
        model: LoadedModel,
        prefill: SharedPrefill,
        spec: ComparisonSpec,
        lanes: list[Lane],
        stress: AppliedStress | None,
        total: int,
        beside: bool,
    ):
        """``total``: new tokens; ``beside``: whether the reference has a row beside the lanes."""
        self.model, self.prefill, self.spec, self.stress = model, prefill, spec, stress
        self.total = total
        self.rope: Rope = model.rope(len(prefill.ids) + self.total)
        self.script = Script.of_prompt(prefill.ids)
        self.shared = FitCache()  # streams that lanes have alike are encoded once
        self._first = int(beside)  # row of the first lane
        self.states = [LaneState(lane) for lane in lanes]
        self.states_running: list[LaneState] = []
        self.rows: Rows
        self._free: list[LaneState] = []  # owners of the rows after the forced ones

    def encode(self) -> Iterator[int]:
        """Encode the prompt under each lane; yields the index of the lane that is waited for."""
        self._entry = PromptEntry(self.model, self.prefill, self.rope, self.script, self.stress, self.shared)
        cores = torch.get_num_threads() if self.model.device.type == "cpu" else 1
        yield from threads.in_order([partial(self._encode, state) for state in self.states], cores)

    def fill(self) -> Iterator[Filling]:
        """Let the rest of the prompt enter the caches of the lanes that read it through them, a pass a turn; then all
        lanes stand in their rows."""
        yield from self._entry.fill(self.states)
        prompt = len(self.prefill.ids)
        self.states_running = [state for state in self.states if state.cache is not None]
        caches = [state.cache for state in self.states_running if state.cache is not None]
        self._stand(caches, prompt)

    @cached_property
    def _stepping(self) -> LoadedModel:
        """The model as steps compute it, whose weights are laid out when one is taken first."""
        return self.model.stepping()

    @cached_property
    def _forced(self) -> LoadedModel:
        """The same while the forced rows are fed."""
        return self._noisy(self._stepping)

    def _stand(self, caches: list[LaneCache], prompt: int) -> None:
        """Give each cache, of so many ``prompt`` tokens, a row, beside the reference's where that has one."""
        self.rows = Rows(self.prefill.groups, caches, self.rope, prompt, prompt + self.total)
        self._states = joined_states(self.prefill.states, self.states_running)
        if self._first == 0 and caches:
            lanes = list(range(1, len(caches) + 1))
            self.rows.keep(lanes)
            self._take_states(lanes)

    def _noisy(self, model: LoadedModel) -> LoadedModel:
        """The model with the floor of another kernel in its row, where one rides."""
        for row, state in enumerate(self.states_running, 1):
            if state.kernel is not None:
                model = state.kernel.stepping(model, row)
        return model

    def _encode(self, state: LaneState) -> None:
        if state.error:  # known before it was tried
            return
        began = time.perf_counter()
        try:
            state.cache = self._entry.cache(state)
        except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
            state.error = failure_line(error)
        state.encode_prompt_s = time.perf_counter() - began

    def prompt_logits(self, state: LaneState) -> Tensor:
        """Those that choose a lane's first new token, (vocabulary,)."""
        last = state.last_hidden
        return self.prefill.logits if last is None else self.model.head(last[None, None])[0, 0]

    def _lose(self, forced: int) -> None:
        """Lanes whose choice of keys has failed are lost, and no others."""
        ahead = {} if self.rows.ahead is None else self.rows.ahead.failed
        for row, error in [*self.rows.choosing.failed.items(), *ahead.items()]:
            state = self.states_running[row - self._first] if row < forced else self._free[row - forced]
            state.error = state.error or failure_line(error)
        self.rows.choosing.failed.clear()

    def _resolve(self) -> None:
        """Ask for what codecs were not sure of."""
        for state in self.states_running:
            state.resolve()

    def _catch_up(self) -> None:
        """Let all tokens of the forced rows enter their stores."""
        self._resolve()
        for row, state in enumerate(self.states_running, self._first):
            if state.cache is not None and not state.error:
                self.rows.catch_up(row, state.cache)

    def _take_states(self, rows: list[int]) -> None:
        if self._states is not None:
            self._states = self._states.of_rows(rows)

    def _forced_rows(self) -> int:
        """Rows before the free ones: reference and forced lanes ride until the reference ends."""
        return len(self.rows.lane_of) - len(self._free)

    def _stepper(self) -> LoadedModel:
        """What computes a pass of these rows."""
        return self._forced if self._forced_rows() else self._stepping

    def passed(self, ids: Tensor, hidden: bool = False) -> Tensor:
        """The forward of all rows' next tokens, which are in no store yet; the first half of ``_forward``."""
        with threads.one_thread(self.model.narrow):
            attend = self.rows if self.stress is None else self.stress.wrap(self.rows)
            stepper = self._stepper()
            forward = stepper.hidden if hidden else stepper.forward
            return forward(ids, self.rows.tokens, attend, states=self._states)

    def settle(self, fresh: int) -> None:
        """Let the ``fresh`` tokens of a pass enter the stores of all rows."""
        forced = self._forced_rows()
        self._lose(forced)
        owners = [(row, s, s.cache) for row, s in enumerate(self.states_running, self._first) if row < forced]
        owners += [(forced + i, s, s.free) for i, s in enumerate(self._free)]
        settling = [
            partial(self._settle_part, row, state, cache, part, fresh)
            for row, state, cache in owners
            if state.error is None and cache is not None
            for part in cache.parts  # keys and values know nothing of each other: a lane alone still fills two cores
        ]
        threads.each(settling, self.rows.cores)
        self.rows.advance(fresh)

    def _settle_part(self, row: int, state: LaneState, cache: LaneCache, part: Part, fresh: int) -> None:
        """Let a row's ``fresh`` tokens enter a part of its cache; any thread."""
        began = time.perf_counter()
        try:
            with doubting(state.doubts):
                self.rows.store_tokens(row, cache, part, fresh)
        except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
            state.error = failure_line(error)
        with _ADDING:
            state.encode_decode_s += time.perf_counter() - began
