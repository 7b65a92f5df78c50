"""One comparison from spec to record. The page, the CLI, the API and the tests all call this."""

import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from kvq_core.capture.collect import Captures
from kvq_core.capture.plan import Plan, plan_of
from kvq_core.capture.scores import Extent
from kvq_core.engine.decode import Decode, LaneState
from kvq_core.engine.prefill import Prefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.stress import Unchanged, disturb
from kvq_core.errors import MethodError, StoreError
from kvq_core.events import Encoding, Event, Finished, LaneProgress, Loading, Step, Summarizing
from kvq_core.events import Prefill as PrefillEvent
from kvq_core.logs import tell_error, telling_run
from kvq_core.machine.memory import recovering
from kvq_core.metrics.fidelity import Fidelity
from kvq_core.metrics.stored_bytes import quantized_keys
from kvq_core.models import LoadedModel, load, with_model
from kvq_core.models.text import Pieces
from kvq_core.pipeline.assemble import assemble, run_id
from kvq_core.pipeline.estimate import remember
from kvq_core.pipeline.prompt import render
from kvq_core.record.fields import Record
from kvq_core.spec import ComparisonSpec, Lane
from kvq_core.store.store import Store

NOISE_FLOOR = Lane(label="Noise floor", method="fp16")


def run(spec: ComparisonSpec, store: Store | None = None) -> Record:
    """Run a comparison to its end and return the record; ``compare`` tells what happens meanwhile.

    Raises StoreError where the store cannot keep the run.
    """
    for event in compare(spec, store):
        if isinstance(event, Finished):
            if event.unkept:
                raise StoreError(event.unkept)
            return event.record
    raise AssertionError("a comparison ends with Finished")


def compare(spec: ComparisonSpec, store: Store | None = None) -> Generator[Event]:
    """Run a comparison, reporting every stage; the last event is Finished.

    A run the store already holds is returned at once. A finished run is saved there, or says why it is not. Closing the
    generator cancels within a step or a prefill chunk and saves nothing. Raises KvqError where the spec cannot be run,
    LimitError where memory ran out: what the run held is free again then.
    """
    spec = with_model(spec)
    with recovering():
        yield Loading(spec.model)
        yield from compare_on(load(spec.model, spec.revision), spec, store)


def compare_on(model: LoadedModel, spec: ComparisonSpec, store: Store | None = None) -> Generator[Event]:
    """``compare`` on a model that is in memory already."""
    ids = render(model, spec)
    id = run_id(model, spec, ids)
    methods = [lane.method for lane in spec.lanes]
    with telling_run(id, spec.prompt, model=spec.model, methods=methods, prompt_tokens=len(ids)) as told:
        finished = _stored(id, store)
        if finished is None:
            comparison = Run(id, model, spec, ids)
            yield from comparison.stages()
            finished = _kept(*assemble(comparison), store)
            remember(finished.record)
        reference = finished.record.reference
        told |= {"new_tokens": len(reference.token_ids), "reused": finished.reused, "text": reference.text}
    yield finished


def _stored(id: str, store: Store | None) -> Finished | None:
    """The run, where the store holds it. One that is damaged is computed again: saving replaces it."""
    if store is not None and store.exists(id):
        with suppress(StoreError):
            return Finished(*store.load(id), reused=True)
    return None


def _kept(record: Record, arrays: dict[str, torch.Tensor], store: Store | None) -> Finished:
    """The finished run, saved where that is possible: a full store must not cost the result."""
    try:
        if store is not None:
            store.save(record, arrays)
    except StoreError as error:
        tell_error("run not kept", error, run=record.id)
        return Finished(record, arrays, unkept=str(error))
    return Finished(record, arrays)


@dataclass
class Run:
    """A comparison in progress; its fields are what the record is assembled from."""

    id: str
    model: LoadedModel
    spec: ComparisonSpec
    ids: list[int]
    decode: Decode = field(init=False)
    prefill: Prefill = field(init=False)
    fidelity: Fidelity = field(init=False)
    plan: Plan | None = field(init=False, default=None)
    captures: Captures | None = field(init=False, default=None)
    unchanged: Unchanged | None = field(init=False, default=None)
    seconds: dict[str, float] = field(init=False, default_factory=dict)

    @property
    def running(self) -> list[LaneState]:
        """States of the lanes that ride in the batch, in the order of their forced rows; the noise floor last."""
        return self.decode.states_running

    def stages(self) -> Iterator[Event]:
        began = time.perf_counter()
        self.plan = plan_of(self.model, self.spec, len(self.ids))  # refuses what could not be stored in the end
        self.prefill = Prefill(self.model, self.ids)
        yield PrefillEvent(0, len(self.ids))
        for done in self.prefill.run():
            yield PrefillEvent(done, len(self.ids))
        self._lap("prefill", began)
        yield from self._encode()
        yield from self._steps()
        yield Summarizing()
        self.seconds["total"] = time.perf_counter() - began

    def _encode(self) -> Iterator[Event]:
        began = time.perf_counter()
        stress = None
        if self.spec.stress.active:
            stress, self.unchanged = disturb(self.model, self.prefill, self.spec.stress)
        self.decode = Decode(self.model, self.prefill, self.spec, [*self.spec.lanes, NOISE_FLOOR], stress)
        for state in self.decode.states:
            reason = state.lane.why_not(self.model.shape)
            state.error = reason and f"{state.lane.build().title} cannot run on {self.model.title}: {reason}."
        for index in self.decode.encode():
            label = self.decode.states[index].lane.label
            yield Encoding(label, index, len(self.decode.states))
        if not self.running or self.running[-1].lane is not NOISE_FLOOR:
            raise MethodError(f"The noise floor could not be set up: {self.decode.states[-1].error}")
        self._lap("encode", began)

    def _steps(self) -> Iterator[Event]:
        began = time.perf_counter()
        self.fidelity = Fidelity(len(self.running))
        self._set_up_captures()
        told = _Told(self)
        for _ in self._observed(self.decode.steps(self._score, self.captures, self._close)):
            yield told.step()
        self._lap("decode", began)

    def _observed(self, steps: Iterator[None]) -> Iterator[None]:
        """Tell the captures which keys are quantized before every step."""
        while True:
            if self.captures is not None:
                self.captures.begin([quantized_keys(s.cache) for s in self.running if s.cache is not None])
            try:
                next(steps)
            except StopIteration:
                return
            yield

    def _set_up_captures(self) -> None:
        if self.plan is None:
            return
        extent = Extent.of(self.model.shape, len(self.running), len(self.ids), self.decode.total)
        self.captures = Captures(self.model, self.spec, self.prefill, self.decode.rope, extent, self.plan)

    def _score(self, reference: torch.Tensor, lanes: torch.Tensor, targets: list[int]) -> None:
        self.fidelity(reference, lanes, targets)
        if self.captures is not None:  # before ``_close``, which may come within the same step
            self.captures.advance(len(targets))

    def _close(self, rows: Rows) -> None:
        if self.captures is not None:
            held = {at: s.cache for at, s in enumerate(self.running) if s.error is None and s.cache is not None}
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
            self._scored = run.fidelity.n_scored
            for at in range(len(run.running)):
                self._kld[at] += run.fidelity.latest("kld", at)
                self._same[at] += map(bool, run.fidelity.latest("same_top", at))
        decode = run.decode
        tokens = decode.token_ids if decode.follow is None else decode.token_ids[: self._scored + 1]
        reached = max([len(tokens), *(len(state.token_ids) for state in decode.states)])
        lanes = [self._lane(i) for i in range(len(run.spec.lanes))]
        return Step(reached, decode.total, list(self._reference.extend(tokens)), lanes)

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
