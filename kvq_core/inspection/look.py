"""Looking at a model: facts and formats from weights and configuration, the rest from one short prefill."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kvq_core.capture.plan import LOOKED
from kvq_core.engine.decode import Decode
from kvq_core.engine.fidelity import Fidelity
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.stress import AppliedStress, apply_stress
from kvq_core.errors import ModelError
from kvq_core.inspection.facts import facts_of
from kvq_core.inspection.figures import figures_of
from kvq_core.inspection.remedies import (
    BYTES_AT,
    CENTRED,
    PLAIN,
    MeasuredRemedy,
    measured_lanes,
    plain_lane,
    remedy,
    remedy_lanes,
)
from kvq_core.inspection.report import FormatBytes, Inspection, LayerFigures, Remedy
from kvq_core.inspection.risk import known_of, reasons_of, sentence_of
from kvq_core.inspection.rules import rules
from kvq_core.machine.files import keep_memo, read_memo
from kvq_core.machine.memory import memory_errors_as_limits
from kvq_core.machine.progress import Progress, calling
from kvq_core.methods import methods
from kvq_core.models import LoadedModel, in_memory, load, prepare
from kvq_core.presets import preset
from kvq_core.settings import settings
from kvq_core.sizing.count import NotKnown, cache_bytes
from kvq_core.spec import ComparisonSpec, Lane, Stress

LENGTHS = (2_048, 8_192, 32_768, 131_072)  # tokens of a context


def formats_of(model: LoadedModel) -> tuple[FormatBytes, ...]:
    """Every method at its defaults.

    Widths that a method reads from the data (QAQ's) are those of random numbers; a run measures them on a prompt's.
    """
    return tuple(_format(model, Lane(method=name)) for name in methods())


def _format(model: LoadedModel, lane: Lane) -> FormatBytes:
    method = lane.build()
    named = {"method": lane.method, "title": method.title, "settings": method.summary()}
    if reason := lane.why_not(model.shape):
        return FormatBytes(**named, nbytes={}, why_not=reason)
    sizes, counted = {}, tuple[str, ...]()
    for tokens in LENGTHS:
        found = cache_bytes(lane, model.shape, tokens, tokens, model=model.ref)
        if isinstance(found, NotKnown):
            return FormatBytes(**named, nbytes={}, why_not=found.reason)
        sizes[tokens], counted = found.tensors, (*found.from_data, *found.learned)
    return FormatBytes(**named, nbytes=sizes, counted=counted)


VERSION = 4  # raised whenever a change alters figures, so that kept ones are measured again
TEXT = "long-prompt"  # the preset whose prompt is read, as it is
TOKENS, FORCED = 256, 64
NOT_LOOKED = f"No layer was looked at: {LOOKED}, and this model has none; measure."
CHUNK = 16  # forced tokens a forward pass


def inspect_model(
    model: str | LoadedModel,
    revision: str | None = None,
    *,
    remedies: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Inspection:
    """Look at a model before any run: its cache's facts and formats, figures of a prefill of 256 tokens, and which
    layers are at risk under keys stored per token; with ``remedies`` the measured gain of each.

    What was found is kept under KVQ_HOME by the model's hash, and read from there the next time. Raises ModelError
    where the model cannot be had, or not be run, and KvqError where it cannot read the text.
    """
    report = calling(progress)
    for event in looking(model, revision, remedies=remedies):
        if isinstance(event, Inspection):
            return event
        report(event)
    raise AssertionError("a look ends with what was found")


def looking(
    model: str | LoadedModel, revision: str | None = None, *, remedies: bool = True
) -> Generator[Progress | Inspection]:
    """``inspect_model`` as it goes on; what was found comes last. Closing it stops the look."""
    with memory_errors_as_limits():
        if isinstance(model, str):
            yield from prepare(model, revision)
            yield Progress("Loading the model")
            model = load(model, revision)
        kept = stored_inspection(model)
        if kept is not None and (kept.remedies or not remedies):
            yield kept
            return
        for event in Look(model).stages(remedies):
            if isinstance(event, Inspection):
                keep_memo(_memo(model), event.model_dump(mode="json"))
            yield event


def kept_inspection(id: str, revision: str | None = None) -> Inspection | None:
    """What is known of the model of an id without loading it; None where it is not in memory, or was not looked at."""
    model = in_memory(id, revision)
    return stored_inspection(model) if model is not None else None


def stored_inspection(model: LoadedModel) -> Inspection | None:
    """What was found when the model was looked at before; None where it was not."""
    held = read_memo(_memo(model))
    try:
        found = Inspection.model_validate(held) if held is not None else None
    except ValueError:  # of another version of this project
        return None
    return found if found is not None and found.version == VERSION else None


def _memo(model: LoadedModel) -> Path:
    return settings().home / "inspections" / f"{model.model_hash}-{_dtype(model)}.json"


def _dtype(model: LoadedModel) -> str:
    return str(model.dtype).removeprefix("torch.")


@dataclass
class Look:
    """One look at a model; under ``stress`` where the rules themselves are looked at."""

    model: LoadedModel
    stress: Stress | None = None
    _applied: AppliedStress | None = field(init=False, default=None)

    def inspection(self) -> Inspection:
        """Without remedies. Raises KvqError where the model cannot run the text."""
        *_, found = self.stages(with_remedies=False)
        assert isinstance(found, Inspection)
        return found

    def stages(self, with_remedies: bool) -> Iterator[Progress | Inspection]:
        """``inspection`` stage by stage; what was found comes last."""
        model, steps = self.model, 3 if with_remedies else 2
        yield Progress("Reading weights and configuration", 0, steps)
        facts, formats = facts_of(model), formats_of(model)
        with_remedies &= bool(model.shape.captured)
        figures: tuple[LayerFigures, ...] = ()
        if model.shape.captured:
            yield Progress(f"Reading {TOKENS} tokens", 1, steps)
            figures = self.figures
        reasons = reasons_of(facts, figures, rules())
        at_risk = tuple(reason.layer for reason in reasons)
        plain: float | None = None
        told: tuple[Remedy, ...] = ()
        if with_remedies:
            yield Progress("Measuring remedies", 2, steps)
            plain, told = self._remedies(at_risk)
        yield Inspection(
            version=VERSION,
            model=model.id,
            title=model.title,
            model_hash=model.model_hash,
            dtype=_dtype(model),
            facts=facts,
            formats=formats,
            sentence=sentence_of(facts, reasons, told, plain, rules()) if figures else NOT_LOOKED,
            at_risk_layers=at_risk,
            reasons=reasons,
            figures=figures,
            remedies=told,
            plain_kld=plain,
            tokens=TOKENS if figures else 0,
            forced_tokens=FORCED if with_remedies else 0,
            bytes_at=BYTES_AT,
            quantization=model.quantization,
            published=known_of(model.id, model.title, facts.architecture),
        )

    @cached_property
    def spec(self) -> ComparisonSpec:
        """What is scored after the prefill: the FORCED tokens that follow."""
        ids = self._ids[TOKENS:]
        follow = self.model.tokenizer.decode(ids)
        return ComparisonSpec(prompt=TEXT, continuation=follow, score_chunk=CHUNK)

    @cached_property
    def prefill(self) -> SharedPrefill:
        """The first TOKENS tokens of the text, stressed where that is asked for."""
        prefill = SharedPrefill(self.model, self._ids[:TOKENS])
        for _ in prefill.run():
            pass
        self._applied = apply_stress(self.model, prefill, self.stress)[0] if self.stress is not None else None
        return prefill

    @cached_property
    def figures(self) -> tuple[LayerFigures, ...]:
        """Of every layer. Raises ModelError where keys per token cannot be had."""
        decode = self._encoded([plain_lane(self.model.shape), remedy_lanes(self.model.shape)[CENTRED]])
        rows = {state.lane.label: row for row, state in enumerate(decode.states_running, 1)}
        if PLAIN not in rows:
            raise ModelError(f"{self.model.title} cannot be looked at: {decode.states[0].error}.")
        held = self.prefill.groups, decode.rows, decode.rope, self.model.scoring
        return tuple(figures_of(*held, rows[PLAIN], rows.get(CENTRED)))

    def measured(self, lanes: Sequence[Lane]) -> dict[str, MeasuredRemedy | str]:
        """Every lane by its label: its mean KLD over the forced tokens and its bytes, or why it cannot be had."""
        decode = self._encoded(lanes)
        fidelity = Fidelity(len(decode.states_running))
        for _ in decode.steps(fidelity, None, lambda rows: None):
            pass
        return measured_lanes(decode, fidelity, self.model.shape)

    def _remedies(self, at_risk: tuple[int, ...]) -> tuple[float, tuple[Remedy, ...]]:
        """KLD without a remedy, and every remedy."""
        shape = self.model.shape
        lanes = remedy_lanes(shape, at_risk)
        found = self.measured([plain_lane(shape), *lanes.values()])
        plain = found[PLAIN]
        if isinstance(plain, str):
            raise ModelError(f"{self.model.title} cannot be looked at: {plain}.")
        return plain.kld, tuple(remedy(name, lane, found[name], plain, shape) for name, lane in lanes.items())

    def _encoded(self, lanes: Sequence[Lane]) -> Decode:
        prefill = self.prefill
        decode = Decode(self.model, prefill, self.spec, list(lanes), self._applied)
        for state in decode.states:
            state.error = state.lane.why_not(self.model.shape)
        for _ in (*decode.encode(), *decode.fill()):
            pass
        return decode

    @cached_property
    def _ids(self) -> list[int]:
        """Tokens of the text: those that are prefilled, and those that are scored after them."""
        ids = self.model.render(preset(TEXT).spec.prompt, None, False)
        needed, there = TOKENS + FORCED + 1, min(len(ids), self.model.shape.context)
        if there < needed:
            raise ModelError(
                f"{self.model.title} takes {there} tokens of the text that models are looked at with; {needed} are "
                "needed."
            )
        return ids[:needed]
