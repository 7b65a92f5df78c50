"""How the prompt enters the lanes' caches: whole, after one prefill in full precision, or pass by pass."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from kvq_core.engine.ahead import Ahead
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.filling import LaneFilling
from kvq_core.engine.fit import FitCache
from kvq_core.engine.lane_state import LaneState, failure_line
from kvq_core.engine.prefill import CHUNK, SharedPrefill
from kvq_core.engine.script import Script, Segment
from kvq_core.engine.stress import AppliedStress
from kvq_core.models import LoadedModel
from kvq_core.models.rope import Rope
from kvq_core.record.events import Filling


@dataclass(frozen=True)
class PromptEntry:
    """Of a run's prompt, as its ``script`` has it."""

    model: LoadedModel
    prefill: SharedPrefill
    rope: Rope
    script: Script
    stress: AppliedStress | None
    shared: FitCache

    def cache(self, state: LaneState) -> LaneCache:
        """A lane's cache with the prompt in it, or with what its own passes begin after."""
        lane = state.lane
        if state.kernel is not None:  # what it holds is no other lane's
            return LaneCache.of_prompt(lane, state.kernel.prefill.groups, self.rope, self.model.ref)
        groups, passes = self.prefill.groups, self.script.passes(lane.chunks)
        if not passes:
            return LaneCache.of_prompt(lane, groups, self.rope, self.model.ref, self.shared)
        fitted = groups
        if lane.chunks is None:  # a server fits what the first turn's prefill shows
            fitted = [group.first(passes[0].start) for group in groups]
        elif lane.chunks.fit == "first_chunk":
            fitted = [group.first(lane.chunks.chunk) for group in groups]
        ends = passes[0].start, self.script.segments[0].end
        return LaneCache.of_prompt(lane, fitted, self.rope, self.model.ref, self.shared, *ends)

    def fill(self, states: list[LaneState]) -> Iterator[Filling]:
        """Let the rest of the prompt enter the caches of the lanes that read it through them, a pass a turn."""
        for some, todo, stored in self._together(states):
            yield from self._fill(some, todo, stored)

    def _together(self, every: list[LaneState]) -> Iterator[tuple[list[LaneState], list[Segment], bool]]:
        """Lanes whose prompts enter in the same passes, as many together as fill a pass of the prefill."""
        alike: dict[tuple[tuple[Segment, ...], bool, bool], list[LaneState]] = {}
        for state in every:
            chunks = state.lane.chunks
            todo = tuple(self.script.passes(chunks))
            if todo and state.cache is not None and state.kernel is None:
                stored = chunks is not None and chunks.own_chunk == "stored"
                given = max((each.end - each.start for each in todo if each.answered), default=1)
                ahead = given == 1 or Ahead([state.cache], 0).passes(given) is not None
                alike.setdefault((todo, stored, ahead), []).append(state)
        for (todo, stored, _), states in alike.items():
            together = max(1, CHUNK // max(each.end - each.start for each in todo if not each.answered))
            for first in range(0, len(states), together):
                yield states[first : first + together], list(todo), stored

    def _fill(self, states: list[LaneState], todo: list[Segment], stored: bool) -> Iterator[Filling]:
        began = time.perf_counter()
        caches = [state.cache for state in states if state.cache is not None]
        scored, first = list(self.prefill.scored), self.script.segments[0].end
        filling = LaneFilling(self.model, self.prefill, caches, todo, stored, scored, first, self.stress)
        try:
            for done in filling.run():
                yield Filling([state.lane.label for state in states], done, len(self.prefill.ids))
        except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
            if len(states) == 1:
                states[0].error, states[0].cache = failure_line(error), None
                return
            for state in states:  # which of them it was shows when each is filled by itself
                state.cache = self.cache(state)
                yield from self._fill([state], todo, stored)
            return
        for row, state in enumerate(states):
            state.prompt_hidden, state.last_hidden = filling.hidden[row], filling.last[row]
            state.states = None if filling.states is None else filling.states.of_rows([row])
            state.own_errors = filling.errors(row, "key"), filling.errors(row, "value")
            state.encode_prompt_s += (time.perf_counter() - began) / len(states)
