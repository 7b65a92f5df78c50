"""A comparison in progress: its stages, and what is told of each step."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvq_core.capture.plan import CapturePlan, plan_of
from kvq_core.engine.fit import FitCache
from kvq_core.engine.kernel_floor import KernelFloor
from kvq_core.engine.key_log import Replay
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.prompt_memory import READINGS, ReadPrompt, key_of
from kvq_core.engine.script import Script
from kvq_core.engine.stress import AppliedStress, ReferenceShift, apply_stress
from kvq_core.models import LoadedModel
from kvq_core.models.rounding import KernelNoise
from kvq_core.models.text import Pieces
from kvq_core.pipeline.answer import ReferenceAnswer
from kvq_core.pipeline.batch import Batch, GivenAnswer
from kvq_core.pipeline.footprint import batch_size, batches, held_of
from kvq_core.pipeline.lanes import LaneResult, lanes_of
from kvq_core.pipeline.prompt_scores import prompt_positions, turn_positions
from kvq_core.record.events import Encoding, Event, LaneProgress, Step, Summarizing
from kvq_core.record.events import Prefill as PrefillEvent
from kvq_core.record.fields import Record
from kvq_core.spec import ComparisonSpec, Lane


@dataclass
class Run:
    """A comparison in progress; its fields are what the record is assembled from."""

    id: str
    model: LoadedModel
    spec: ComparisonSpec
    script: Script
    owner: str = ""  # whose reading of the prompt may be held
    parent: Record | None = None  # the finished run whose answer is followed
    against: ReferenceAnswer | None = None  # of a reference that is another file
    prefill: SharedPrefill = field(init=False)
    plan: CapturePlan | None = field(init=False, default=None)
    size: int = field(init=False)  # lanes of a batch, at most
    batches: list[Batch] = field(init=False, default_factory=list)
    stress: AppliedStress | None = field(init=False, default=None)
    kernel: KernelFloor | None = field(init=False, default=None)
    unchanged: ReferenceShift | None = field(init=False, default=None)
    answer: GivenAnswer | None = field(init=False, default=None)  # of the parent's reference
    seconds: dict[str, float] = field(init=False, default_factory=dict)
    _key: str = field(init=False)  # of the reading
    _reading: ReadPrompt = field(init=False)
    _shared: FitCache = field(init=False, default_factory=FitCache)
    _done: list[LaneProgress] = field(init=False, default_factory=list)  # of lanes whose batch has decoded
    _told: list[LaneResult] = field(
        init=False, default_factory=list
    )  # lanes of batches that have given back their caches

    @property
    def ids(self) -> list[int]:
        """Of the prompt."""
        return self.script.ids

    @property
    def first(self) -> Batch:
        """The batch that has the noise floor, and whose reference is the run's."""
        return self.batches[0]

    def lanes(self) -> tuple[list[LaneResult], list[LaneResult]]:
        """Every lane of a finished run, as the spec has them, and its floors."""
        told = [*self._told, *lanes_of(self.batches[-1])]
        floors = slice(len(self.first.lanes), len(self.first.decode.states))
        return told[: floors.start] + told[floors.stop :], told[floors]

    def stages(self) -> Iterator[Event]:
        began = time.perf_counter()
        self.plan = plan_of(self.model, self.spec, len(self.ids))  # refuses what could not be stored in the end
        yield from self._prefill()
        yield from self._stress()
        divided = batches(self.spec.lanes, self.size)
        for number, lanes in enumerate(divided, 1):
            yield from self._batch(lanes, len(divided))
            if number < len(divided):
                self._set_aside([lane for later in divided[number:] for lane in later])
        for batch in self.batches:
            for stage, seconds in batch.seconds.items():
                self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self._keep_reading()
        self.seconds["total"] = time.perf_counter() - began

    def _keep_reading(self) -> None:
        """Hold the prompt for lanes that are added, and the rows of the lanes for maps that are asked for."""
        places = [batch.places() for batch in self.batches]
        lanes = tuple(lane for own in places for lane in own[1:])
        if any(lanes):
            self._reading.replays[self.id] = Replay(places[0][0], lanes)
        READINGS.keep(self._key, self._reading)

    @property
    def _replayed(self) -> bool:
        """Whether maps may be asked for later: of runs that have some, and of lanes that are drawn beside such."""
        return self.plan is not None if self.parent is None else self.spec.free_text

    def _prefill(self) -> Iterator[Event]:
        began = time.perf_counter()
        passes, total = self._passes(), len(self.ids)
        follow = self.spec.continuation
        new = self.spec.max_new_tokens if follow is None else len(self.model.encode(follow))
        self.size = batch_size(self.model, self.spec, self.script, new)
        if passes:
            yield PrefillEvent(0, total * len(passes))
        for at, reading in enumerate(passes):
            for done in reading:
                yield PrefillEvent(at * total + done, total * len(passes))
        self.seconds["prefill"] = time.perf_counter() - began

    def _passes(self) -> list[Iterator[int]]:
        """The passes over the prompt that are to be run, the reference's own first."""
        prompt, turns = prompt_positions(self.spec, self.script), turn_positions(self.spec, self.script)
        later = [segment.start for segment in self.script.segments[1:]]
        scored = sorted({*prompt, *turns})
        held = held_of(self.model, self.spec, len(self.ids), captured=self.plan is not None)
        self._key = key_of(self.model, self.ids, scored, later, held, self.spec.stress, self.owner)
        model = self.model.stepping()  # whose products lanes meet, too
        self.prefill = SharedPrefill(model, self.ids, scored, later, held)
        passes = [self.prefill.run()]
        if self.spec.floors == "both":
            self.kernel = KernelFloor(KernelNoise(self.spec.seed))
            passes.append(self.kernel.read(model, self.ids, scored, later, held))
        return passes

    def _stress(self) -> Iterator[Event]:
        began = time.perf_counter()
        if self.spec.stress.active:
            self.stress, self.unchanged = apply_stress(self.model, self.prefill, self.spec.stress)
            if self.kernel is not None:
                self.stress.apply(self.kernel.prefill.groups)
        self._reading = ReadPrompt(self.prefill, self.stress, self.unchanged)
        self.seconds["encode"] = time.perf_counter() - began
        yield from ()

    def _batch(self, lanes: list[Lane], count: int) -> Iterator[Event]:
        first = self.first if self.batches else None
        what = self.model, self.spec, self.script, self.prefill
        followed = self.answer, self.against
        batch = Batch(*what, lanes, self.plan, self.stress, self._shared, first, self.kernel, *followed, self._replayed)
        encoded = sum(len(earlier.decode.states) for earlier in self.batches)
        self.batches.append(batch)
        for event in batch.encode():
            whole = self.spec.forced_rows
            yield replace(event, index=encoded + event.index, total=whole) if isinstance(event, Encoding) else event
        yield from self._steps(batch, count)
        if len(self.batches) == count:
            yield Summarizing()
        batch.score_prompt()

    def _steps(self, batch: Batch, count: int) -> Iterator[Step]:
        told, passed = BatchText(batch), (len(self.batches) - 1) * batch.decode.total
        later = self.spec.lanes[len(self._done) + len(batch.lanes) :]
        after = [LaneProgress(lane.label, [], [], [], None) for lane in later]
        now = range(len(self._done), len(self._done) + len(batch.lanes)) if count > 1 else None
        lanes: list[LaneProgress] = []
        for _ in batch.steps():
            lanes = told.lanes()
            every = [*self._done, *lanes, *after]
            yield Step(passed + told.reached, count * batch.decode.total, told.reference, every, now)
        self._done += lanes or told.lanes()

    def _set_aside(self, later: list[Lane]) -> None:
        """Make the records of the newest batch's lanes and give back what they were made from."""
        self._told += lanes_of(self.batches[-1])
        self.batches[-1].release()
        self._shared.keep(lane.plan(self.model.shape) for lane in later)


class BatchText:
    """What the rows of a batch have written and scored so far: pieces of text and measures by token."""

    def __init__(self, batch: Batch):
        self._batch = batch
        self._reference = Pieces(batch.model.tokenizer)
        self._pieces = [Pieces(batch.model.tokenizer) for _ in batch.decode.states]
        self._kld: list[list[float]] = [[] for _ in batch.running]
        self._same: list[list[bool]] = [[] for _ in batch.running]
        self._scored = 0

    @property
    def reached(self) -> int:
        """Tokens of the longest text; where the reference answers first, of its answer and of the lanes' half each."""
        decode = self._batch.decode
        own = max([len(decode.token_ids), *(len(state.token_ids) for state in decode.states)])
        return own if decode.written is decode.token_ids else (len(decode.written) + own) // 2

    @property
    def reference(self) -> list[str]:
        """Pieces of the reference's text; all of it from the second batch on."""
        return list(self._reference.extend((self._batch.first or self._batch).decode.written))

    def lanes(self) -> list[LaneProgress]:
        """Of every lane of the batch, the noise floor left out."""
        fidelity = self._batch.fidelity
        if fidelity.n_scored > self._scored:
            for at in range(len(self._batch.running)):
                self._kld[at] += fidelity.latest("kld", at, self._scored)
                self._same[at] += map(bool, fidelity.latest("same_top", at, self._scored))
            self._scored = fidelity.n_scored
        return [self._lane(i) for i in range(len(self._batch.lanes))]

    def _lane(self, index: int) -> LaneProgress:
        state = self._batch.decode.states[index]
        pieces = list(self._pieces[index].extend(state.token_ids))
        if state not in self._batch.running:
            return LaneProgress(state.lane.label, pieces, [], [], None, state.error)
        at = self._batch.running.index(state)
        return LaneProgress(
            state.lane.label,
            pieces,
            list(self._kld[at]),
            list(self._same[at]),
            state.first_divergence,
            state.error,
            state.finish,
        )
