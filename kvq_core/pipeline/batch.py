"""Lanes that run at once, on the prefill of their run and beside a reference row of their own."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from kvq_core.capture.collect import Captures
from kvq_core.capture.plan import CapturePlan
from kvq_core.capture.scores import Extent
from kvq_core.engine.decode import Decode
from kvq_core.engine.fidelity import Fidelity
from kvq_core.engine.fit import FitCache
from kvq_core.engine.kernel_floor import KernelFloor
from kvq_core.engine.key_log import Kit, Place
from kvq_core.engine.lane_state import LaneState
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.replaying import kit_of, log_of
from kvq_core.engine.rows import Rows
from kvq_core.engine.script import Script
from kvq_core.engine.stored_bytes import quantized_keys
from kvq_core.engine.stress import AppliedStress
from kvq_core.errors import MethodError
from kvq_core.models import LoadedModel
from kvq_core.pipeline.answer import ReferenceAnswer
from kvq_core.pipeline.prompt_scores import Scores, prompt_positions, turn_positions
from kvq_core.record.events import Encoding, Filling
from kvq_core.spec import ComparisonSpec, Lane

NOISE_FLOOR = Lane(label="Noise floor", method="fp16")
KERNEL_FLOOR = Lane(label="Another kernel", method="fp16")


@dataclass(frozen=True)
class GivenAnswer:
    """What a reference answered in a run before: its tokens, up to which of its margins a flip is a near-tie, and its
    logits (positions, vocabulary) by scored position, of a batch of its own; without them it rides beside the lanes."""

    token_ids: list[int]
    near_tie_margin: float
    logits: torch.Tensor | None = None


@dataclass
class Batch:
    """Some lanes of a run; the noise floor rides in its first batch, and what the reference answered there is given to
    the ones after it: on a GPU the logits of a batch of another size would choose otherwise at a near-tie.

    Numbers of a lane are against the reference row of its own batch, or against another file's logits. Its fields are
    what records are made from.
    """

    model: LoadedModel
    spec: ComparisonSpec
    script: Script
    prefill: SharedPrefill
    lanes: list[Lane]
    plan: CapturePlan | None
    stress: AppliedStress | None = None
    shared: FitCache = field(default_factory=FitCache)
    first: "Batch | None" = None  # None: this one
    kernel: KernelFloor | None = None  # rides in the first batch
    answer: GivenAnswer | None = None  # that is followed again
    against: ReferenceAnswer | None = None  # of a reference that is another file
    replayed: bool = False  # whether what maps can be computed from later is to be kept
    kit: Kit | None = field(init=False, default=None)
    decode: Decode = field(init=False)
    fidelity: Fidelity = field(init=False)
    prompt: Scores | None = field(init=False, default=None)  # of tokens that were read, not answered
    turns: Scores | None = field(init=False, default=None)  # of given answers
    captures: Captures | None = field(init=False, default=None)
    seconds: dict[str, float] = field(init=False, default_factory=dict)

    @property
    def running(self) -> list[LaneState]:
        """States of the lanes that ride in the batch, in the order of their forced rows; the floors last."""
        return self.decode.states_running

    @property
    def floors(self) -> list[Lane]:
        """The noise floor, and behind the captured rows that of another kernel, where it is asked for."""
        if self.first is not None or self.answer is not None:
            return []
        return [NOISE_FLOOR] if self.kernel is None else [NOISE_FLOOR, KERNEL_FLOOR]

    @property
    def _captured(self) -> list[LaneState]:
        """Of those running, whose rows are captured: all but the other kernel's, whose queries are its own."""
        return [state for state in self.running if state.kernel is None]

    @property
    def near_tie_margin(self) -> float:
        """The noise floor decides it, for the lanes of every batch."""
        if self.answer is not None:
            return self.answer.near_tie_margin
        return (self.first or self).fidelity.near_tie_margin()

    def encode(self) -> Iterator[Encoding | Filling]:
        """Raises MethodError where a floor cannot be set up."""
        began = time.perf_counter()
        given = self.first.decode.token_ids if self.first else None
        logits = None
        if self.against is not None and self.spec.continuation is None:
            given = self.against.token_ids
        if self.answer is not None:
            given, logits = self.answer.token_ids, self.answer.logits
        what = self.model, self.prefill, self.spec, [*self.lanes, *self.floors], self.stress
        self.decode = Decode(*what, given, answered=logits)
        self._enter_kernel()
        self.decode.script, self.decode.shared = self.script, self.shared
        for state in self.decode.states:
            reason = state.lane.why_not(self.model.shape)
            state.error = reason and f"{state.lane.title} cannot run on {self.model.title}: {reason}."
        for index in self.decode.encode():
            label = self.decode.states[index].lane.label
            yield Encoding(label, index, len(self.decode.states))
        if self.first is None and self.kernel is not None:
            self.kernel.prefill.groups = []  # its cache holds them now
        yield from self.decode.fill()
        for state in self.decode.states[len(self.lanes) :]:
            if state not in self.running:
                raise MethodError(f"The floor {state.lane.label!r} could not be set up: {state.error}")
        self._lap("encode", began)

    def _enter_kernel(self) -> None:
        """Give the other kernel's floor what its own pass read."""
        if self.first is None and self.kernel is not None:
            state, read = self.decode.states[-1], self.kernel.prefill
            state.kernel = self.kernel
            state.prompt_hidden = read.hidden if read.scored else None

    def steps(self) -> Iterator[None]:
        """Decode, a turn a step; none where no lane is left to ride."""
        began = time.perf_counter()
        self.fidelity = Fidelity(len(self.running), len(self.floors))
        if self.running:
            self._set_up_captures()
            if self.replayed:
                looked = frozenset(self.model.shape.captured)
                self.decode.rows.log = log_of(self.decode.rows, len(self.script.ids) + self.decode.total, looked)
            yield from self._observed(self.decode.steps(self._score, self.captures, self._close))
        self._lap("decode", began)

    def score_prompt(self) -> None:
        """Score the tokens of the prompt that lanes read through their own caches; none where no lane is left."""
        if not self.running:
            return
        new = (self.first or self).decode.token_ids[0]
        given = None if self.against is None else self.against.logits[:1]
        scored = partial(Scores.of, self.model, self.prefill, self.running, first=new, given=given)
        self.prompt = scored(positions=prompt_positions(self.spec, self.script))
        self.turns = scored(positions=turn_positions(self.spec, self.script))

    def release(self) -> None:
        """Give back what the records of its lanes were made from, but what later batches and the run's own need."""
        for state in self.decode.states:
            state.cache = state.prompt_hidden = state.last_hidden = None
        del self.decode.rows
        if self.first is not None:
            self.captures = None

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

    def _set_up_captures(self) -> None:
        if self.plan is None:
            return
        model, prompt, new = self.model, len(self.script.ids), self.decode.total
        whole = len(self.spec.lanes) + 1 if len(self.lanes) < len(self.spec.lanes) else 0
        sizes = Extent.of(model.shape, len(self._captured), prompt, new, bool(self.floors), whole)
        first = self.first.captures if self.first else None
        self.captures = Captures(model, self.spec, self.prefill, self.decode.rope, sizes, self.plan, first)

    def _score(self, reference: torch.Tensor, lanes: torch.Tensor, targets: list[int]) -> None:
        if self.against is None:
            self.fidelity(reference, lanes, targets)
        else:
            after = self.fidelity.n_scored + 1  # the first token is the prompt's own prediction
            kept = self.against.logits[after : after + len(targets)].to(reference.device)
            self.fidelity(kept, lanes, targets, reference)
        if self.captures is not None:  # before ``_close``, which may come within the same step
            self.captures.advance(len(targets))

    def places(self) -> list[Place | None]:
        """Where its reference and each of its lanes can be computed again; None of those that cannot."""
        if self.kit is None:
            return [None] * (1 + len(self.lanes))
        kit, first = self.kit, 0 if self.answer is not None and self.answer.logits is not None else 1
        rows = {id(state): row for row, state in enumerate(self.running, first) if state.error is None}
        own = (rows.get(id(state)) for state in self.decode.states[: len(self.lanes)])
        return [(kit, 0) if first else None, *(None if row is None else (kit, row) for row in own)]

    def _close(self, rows: Rows) -> None:
        if rows.log is not None:
            self.kit, rows.log = kit_of(rows, rows.log, self.prefill, self.model.scoring), None
        if self.captures is not None:
            held = {at: s.cache for at, s in enumerate(self._captured) if s.error is None and s.cache is not None}
            self.captures.close(rows, held)

    def _lap(self, stage: str, began: float) -> None:
        self.seconds[stage] = time.perf_counter() - began
