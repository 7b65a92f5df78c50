"""Does the picture predict? Of every prompt of a study each lane with captures, and each of its layers alone, on one
reading of the prompt: what the captures show of a layer beside what it costs.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from kvq_core.decision.predictors import PREDICTORS
from kvq_core.errors import SpecError, excerpt
from kvq_core.machine.files import keep_memo, read_memo
from kvq_core.methods import ModelShape
from kvq_core.models import LoadedModel, load, outline
from kvq_core.pipeline.added import adding_on, spec_of
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.estimate import estimate_on
from kvq_core.record.events import end_of
from kvq_core.settings import settings
from kvq_core.spec import MAX_LANES, Capture, ComparisonSpec, Lane, Rule, rules_for
from kvq_core.spec.part import SpecPart
from kvq_core.studies.cells import Cell, CellPlan

VERSION = 1  # raised whenever what is kept of a prompt changes its form


class Seen(SpecPart):
    """A lane on one prompt, whole or, of ``layer``, in that layer alone: its mean KLD in nats, and what the captures of
    the whole lane show of that layer, of a whole lane the mean over its layers."""

    lane: str
    layer: int | None
    kld: float
    predictors: dict[str, float]


class PromptSeen(SpecPart):
    """All of a prompt, by the id of its run in the study, and the seconds it took."""

    version: int
    run: str
    seconds: float
    seen: tuple[Seen, ...]


def cells_of(planned: CellPlan, model: str | None) -> tuple[Cell, ...]:
    """The cells of one model, by its id or title; the first one's unless it is named. Raises SpecError where it has
    none, and for a study that this cannot be asked of."""
    if planned.spec.comparison.reference is not None:
        raise SpecError(f"Study {planned.id} is scored against another file; give one without reference.")
    titles = {cell.model: cell.title for cell in planned.cells}
    wanted = next(iter(titles)) if model is None else model
    found = tuple(cell for cell in planned.cells if wanted in (cell.model, cell.title))
    if not found:
        there = ", ".join(titles)
        raise SpecError(f"--model {excerpt(wanted)} has no cells in study {planned.id}; its models: {there}.")
    return found


def model_of(cells: Sequence[Cell]) -> LoadedModel:
    """Theirs, without its weights where nothing is left to do. Raises KvqError where it cannot be had."""
    read = load if any(kept(cell) is None for cell in cells) else outline
    return read(cells[0].model, cells[0].spec.revision)


def work_sentence(model: LoadedModel, cells: Sequence[Cell]) -> str:
    """What is to be done: prompts, lanes, passes, and about how many minutes, by the prompts that are done, else by
    what runs took on this machine. Raises SpecError where nothing can be foretold of the model or of the lanes."""
    if not model.shape.captured:
        raise SpecError(f"{model.title} has no layer that captures look at; they look at those that attend to all.")
    known = [held.seconds for cell in cells if (held := kept(cell)) is not None]
    todo = [cell for cell in cells if kept(cell) is None]
    whole = _shown(cells[0].spec)
    alone = [one for lane in whole.lanes for _, one in _alone(lane, model.shape)]
    if not alone:
        raise SpecError("No lane of this study quantizes a layer that captures look at; give lanes that do.")
    quiet = whole.model_copy(update={"capture": Capture(detail="off")})
    passes = [tuple(alone[at : at + MAX_LANES]) for at in range(0, len(alone), MAX_LANES)]
    runs = [whole, *(quiet.model_copy(update={"lanes": lanes}) for lanes in passes)]
    told = [sum(known) / len(known)] if known else [estimate_on(model, spec).seconds for spec in runs]
    each = [seconds for seconds in told if seconds is not None]
    minutes = f"about {len(todo) * sum(each) / 60:.1f} minutes" if len(each) == len(told) else "a time not known yet"
    return (
        f"{len(todo)} of {len(cells)} prompts to do; each is read once, for {len(whole.lanes)} lanes with captures and "
        f"{len(alone)} of a single layer in {len(passes)} passes of up to {MAX_LANES}: {minutes}."
    )


def look(model: LoadedModel, cells: Sequence[Cell]) -> Generator[PromptSeen]:
    """Every prompt in turn; what was done is kept, and not done again. Closing it stops, and loses one prompt at most.
    Raises KvqError where a prompt cannot be run."""
    for cell in cells:
        found = kept(cell)
        if found is None:
            began = time.monotonic()
            seen = tuple(_of_prompt(model, cell))
            found = PromptSeen(version=VERSION, run=cell.id, seconds=time.monotonic() - began, seen=seen)
            keep_memo(_file(cell), found.model_dump(mode="json"))
        yield found


def kept(cell: Cell) -> PromptSeen | None:
    """What is known of a prompt; its run's id has the weights, the lanes and the version of results in it."""
    held = read_memo(_file(cell))
    return PromptSeen.model_validate(held) if isinstance(held, dict) and held.get("version") == VERSION else None


def _file(cell: Cell) -> Path:
    return settings().home / "predict" / f"{cell.id}.json"


def _shown(spec: ComparisonSpec) -> ComparisonSpec:
    """The study's comparison as it is looked at: with captures, and no text of the lanes' own."""
    return spec.model_copy(update={"capture": Capture(), "floors": "storage", "free_text": False})


def _of_prompt(model: LoadedModel, cell: Cell) -> Iterator[Seen]:
    whole = end_of(compare_on(model, _shown(cell.spec)))
    layers = list(model.shape.captured)
    waiting: list[tuple[Seen, Lane]] = []
    for at, (lane, told) in enumerate(zip(cell.spec.lanes, whole.record.lanes, strict=True)):
        if told.metrics is None or told.metrics.kld_mean is None:
            continue
        shown = {name: found for name, (_, of) in PREDICTORS.items() if (found := of(whole.arrays, at)) is not None}
        if not shown:
            raise SpecError(f"Captures of {len(cell.spec.lanes)} lanes do not fit; take fewer lanes or new tokens.")
        means = {name: float(values[layers].mean()) for name, values in shown.items()}
        yield Seen(lane=lane.label, layer=None, kld=told.metrics.kld_mean, predictors=means)
        for layer, one in _alone(lane, model.shape):
            here = {name: float(values[layer]) for name, values in shown.items()}
            waiting.append((Seen(lane=lane.label, layer=layer, kld=0.0, predictors=here), one))
    for first in range(0, len(waiting), MAX_LANES):
        some = waiting[first : first + MAX_LANES]
        asked = spec_of(whole.record, [one for _, one in some], "What layers cost alone")
        lanes = end_of(adding_on(model, whole.record, asked)).record.lanes
        for (seen, _), told in zip(some, lanes, strict=True):
            if told.metrics is not None and told.metrics.kld_mean is not None:
                yield seen.model_copy(update={"kld": told.metrics.kld_mean})


def _alone(lane: Lane, shape: ModelShape) -> Iterator[tuple[int, Lane]]:
    """The lane in each of the layers that it quantizes and captures look at, all others fp16."""
    own = {layer for assigned in lane.plan(shape) for layer in assigned.layers}
    given = lane.model_dump(mode="json", include={"prefill", "select"})
    for layer in sorted(own.intersection(shape.captured)):
        others = tuple(each for each in shape.keyed if each != layer)
        held = [Rule(method="fp16", layers=others, sliding=bool(shape.windowed))] if others else []
        label = f"{layer}: {lane.label}"[:60]
        yield layer, Lane(label=label, rules=rules_for([*held, *lane.every_rule], shape), **given)
