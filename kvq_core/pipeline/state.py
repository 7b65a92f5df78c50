"""A comparison in progress: its stages, and what is told of each step."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from kvq_core.capture.collect import Captures
from kvq_core.capture.plan import Plan, plan_of
from kvq_core.capture.scores import Extent
from kvq_core.engine.decode import Decode, LaneState
from kvq_core.engine.kernel_floor import KernelFloor
from kvq_core.engine.prefill import Prefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.script import Script
from kvq_core.engine.stress import AppliedStress, ReferenceShift, apply_stress
from kvq_core.errors import MethodError
from kvq_core.events import Encoding, Event, Filling, LaneProgress, Step, Summarizing
from kvq_core.events import Prefill as PrefillEvent
from kvq_core.metrics.fidelity import Fidelity
from kvq_core.metrics.stored_bytes import quantized_keys
from kvq_core.models import LoadedModel
from kvq_core.models.rounding import Rounding
from kvq_core.models.text import Pieces
from kvq_core.pipeline.prompt_scores import Scores, prompt_positions, turn_positions
from kvq_core.spec import ComparisonSpec, Lane

NOISE_FLOOR = Lane(label="Noise floor", method="fp16")
KERNEL_FLOOR = Lane(label="Another kernel", method="fp16")


@dataclass
class Run:
    """A comparison in progress; its fields are what the record is assembled from."""

    id: str
    model: LoadedModel
    spec: ComparisonSpec
    script: Script
    decode: Decode = field(init=False)
    prefill: Prefill = field(init=False)
    fidelity: Fidelity = field(init=False)
    prompt: Scores | None = field(init=False, default=None)  # of tokens that were read, not answered
    turns: Scores | None = field(init=False, default=None)  # of given answers
    plan: Plan | None = field(init=False, default=None)
    captures: Captures | None = field(init=False, default=None)
    kernel: KernelFloor | None = field(init=False, default=None)
    unchanged: ReferenceShift | None = field(init=False, default=None)
    seconds: dict[str, float] = field(init=False, default_factory=dict)

    @property
    def ids(self) -> list[int]:
        """Of the prompt."""
        return self.script.ids

    @property
    def running(self) -> list[LaneState]:
        """States of the lanes that ride in the batch, in the order of their forced rows; the floors last."""
        return self.decode.states_running

    @property
    def floors(self) -> list[Lane]:
        """The noise floor, and behind the captured rows that of another kernel, where it is asked for."""
        return [NOISE_FLOOR, KERNEL_FLOOR][: self.spec.forced_rows - len(self.spec.lanes)]

    def stages(self) -> Iterator[Event]:
        began = time.perf_counter()
        self.plan = plan_of(self.model, self.spec, len(self.ids))  # refuses what could not be stored in the end
        prompt, turns = prompt_positions(self.spec, self.script), turn_positions(self.spec, self.script)
        yield from self._prefill(sorted({*prompt, *turns}))
        yield from self._encode()
        yield from self._steps()
        yield Summarizing()
        scored = partial(Scores.of, self.model, self.prefill, self.running, first=self.decode.token_ids[0])
        self.prompt, self.turns = scored(positions=prompt), scored(positions=turns)
        self.seconds["total"] = time.perf_counter() - began

    def _prefill(self, scored: list[int]) -> Iterator[Event]:
        began = time.perf_counter()
        self.prefill = Prefill(self.model, self.ids, scored)
        passes, total = [self.prefill.run()], len(self.ids)
        if self.spec.floors == "both":
            self.kernel = KernelFloor(Rounding(self.spec.seed))
            passes.append(self.kernel.read(self.model, self.ids, scored))
        yield PrefillEvent(0, total * len(passes))
        for at, reading in enumerate(passes):
            for done in reading:
                yield PrefillEvent(at * total + done, total * len(passes))
        self._lap("prefill", began)

    def _encode(self) -> Iterator[Event]:
        began = time.perf_counter()
        stress = None
        if self.spec.stress.active:
            stress, self.unchanged = apply_stress(self.model, self.prefill, self.spec.stress)
        self.decode = Decode(self.model, self.prefill, self.spec, [*self.spec.lanes, *self.floors], stress)
        self._enter_kernel(stress)
        self.decode.script = self.script
        for state in self.decode.states:
            reason = state.lane.why_not(self.model.shape)
            state.error = reason and f"{state.lane.title} cannot run on {self.model.title}: {reason}."
        for index in self.decode.encode():
            label = self.decode.states[index].lane.label
            yield Encoding(label, index, len(self.decode.states))
        if self.kernel is not None:
            self.kernel.prefill.groups = []  # its cache holds them now
        for filled in self.decode.fill():
            yield Filling(filled.labels, filled.done, filled.total)
        for state in self.decode.states[len(self.spec.lanes) :]:
            if state not in self.running:
                raise MethodError(f"The floor {state.lane.label!r} could not be set up: {state.error}")
        self._lap("encode", began)

    def _enter_kernel(self, stress: AppliedStress | None) -> None:
        """Give the other kernel's floor what its own pass read."""
        if self.kernel is None:
            return
        state, read = self.decode.states[-1], self.kernel.prefill
        state.kernel = self.kernel
        state.prompt_hidden = read.hidden if read.scored else None
        if stress is not None:
            stress.apply(read.groups)

    def _steps(self) -> Iterator[Event]:
        began = time.perf_counter()
        self.fidelity = Fidelity(len(self.running), len(self.floors))
        self._set_up_captures()
        told = _Told(self)
        for _ in self._observed(self.decode.steps(self._score, self.captures, self._close)):
            yield told.step()
        self._lap("decode", began)

    def _observed(self, steps: Iterator[None]) -> Iterator[None]:
        """Tell the captures which keys are quantized before every step."""
        while True:
            if self.captures is not None:
                self.captures.begin([quantized_keys(s.cache) for s in self._captured if s.cache is not None])
            try:
                next(steps)
            except StopIteration:
                return
            yield

    @property
    def _captured(self) -> list[LaneState]:
        """Of those running, whose rows are captured: all but the other kernel's, whose queries are its own."""
        return [state for state in self.running if state.kernel is None]

    def _set_up_captures(self) -> None:
        if self.plan is None:
            return
        extent = Extent.of(self.model.shape, len(self._captured), len(self.ids), self.decode.total)
        self.captures = Captures(self.model, self.spec, self.prefill, self.decode.rope, extent, self.plan)

    def _score(self, reference: torch.Tensor, lanes: torch.Tensor, targets: list[int]) -> None:
        self.fidelity(reference, lanes, targets)
        if self.captures is not None:  # before ``_close``, which may come within the same step
            self.captures.advance(len(targets))

    def _close(self, rows: Rows) -> None:
        if self.captures is not None:
            held = {at: s.cache for at, s in enumerate(self._captured) if s.error is None and s.cache is not None}
            self.captures.close(rows, held)

    def _lap(self, stage: str, began: float) -> None:
        self.seconds[stage] = time.perf_counter() - began


class _Told:
    """What has been told of a run so far: text pieces and per-token measures, for Step events."""

    def __init__(self, run: Run):
        self._run = run
        self._reference = Pieces(run.model.tokenizer)
        self._pieces = [Pieces(run.model.tokenizer) for _ in run.decode.states]
        self._kld: list[list[float]] = [[] for _ in run.running]
        self._same: list[list[bool]] = [[] for _ in run.running]
        self._scored = 0

    def step(self) -> Step:
        run = self._run
        if run.fidelity.n_scored > self._scored:
            for at in range(len(run.running)):
                self._kld[at] += run.fidelity.latest("kld", at, self._scored)
                self._same[at] += map(bool, run.fidelity.latest("same_top", at, self._scored))
            self._scored = run.fidelity.n_scored
        decode = run.decode
        reached = max([len(decode.token_ids), *(len(state.token_ids) for state in decode.states)])
        lanes = [self._lane(i) for i in range(len(run.spec.lanes))]
        return Step(reached, decode.total, list(self._reference.extend(decode.token_ids)), lanes)

    def _lane(self, index: int) -> LaneProgress:
        state = self._run.decode.states[index]
        pieces = list(self._pieces[index].extend(state.token_ids))
        if state not in self._run.running:
            return LaneProgress(state.lane.label, pieces, [], [], None, state.error)
        at = self._run.running.index(state)
        return LaneProgress(
            state.lane.label,
            pieces,
            list(self._kld[at]),
            list(self._same[at]),
            state.first_divergence,
            state.error,
            state.finish,
        )
