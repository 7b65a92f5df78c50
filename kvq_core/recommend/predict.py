"""Tests whether what captures show of layers foretells what they cost: rank correlations of predictors with the KLD of
a layer alone, and of a lane.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvq_core.analysis.foretells import mean_by_layer, measure_by_layer
from kvq_core.analysis.key_constants import constant_sizes
from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.errors import SpecError, excerpt
from kvq_core.machine.files import keep_memo, read_memo
from kvq_core.methods import ModelShape
from kvq_core.models import LoadedModel, load, outline
from kvq_core.pipeline.added import adding_on, spec_of
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.estimate import estimate_on
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.events import end_of
from kvq_core.settings import settings
from kvq_core.spec import MAX_LANES, Capture, ComparisonSpec, Lane, Rule, rules_for
from kvq_core.spec.part import SpecPart
from kvq_core.studies.cells import Cell, CellPlan
from kvq_core.studies.intervals import FEWEST, RESAMPLES

OF_CHANNELS = 4  # one direction in so many is of the subspace; what lies beyond is the spectrum's tail
Predictor = Callable[[Arrays, int], np.ndarray | None]  # arrays and a lane's number -> (layers,), or not captured


def _of(name: str) -> Predictor:
    return lambda arrays, at: mean_by_layer(arrays, at, name)


def _by_layer(measure: str) -> Predictor:
    return lambda arrays, at: measure_by_layer(arrays, at, measure)


def _spectrum_tail(arrays: Arrays, at: int) -> np.ndarray | None:
    """Share of the size of a head's centred keys that lies beyond its strongest directions, mean over heads."""
    values = array(arrays, "centred/key_post")
    if values is None:
        return None
    squares = np.square(values.astype(np.float64))
    kept = squares[..., : squares.shape[-1] // OF_CHANNELS].sum(-1) / np.maximum(squares.sum(-1), 1e-30)
    return np.asarray(np.sqrt(np.clip(1 - kept, 0, 1)).mean(1))


def _query_deviation(arrays: Arrays, at: int) -> np.ndarray | None:
    found = array(arrays, "subspace/deviation_prompt")
    return None if found is None else np.asarray(found[..., (found.shape[-1] - 1) // OF_CHANNELS].mean(1), np.float64)


def _key_bias(arrays: Arrays, at: int) -> np.ndarray | None:
    found = array(arrays, "pairs/key_bias")
    return None if found is None else np.sqrt(np.square(found.astype(np.float64)).sum((1, 2)))


def _key_constant(arrays: Arrays, at: int) -> np.ndarray | None:
    mean, centred = array(arrays, "mean/key_pre"), array(arrays, "centred/key_pre")
    return None if mean is None or centred is None else constant_sizes(mean, centred)


SHOWN = {  # by measure of the view Where, the predictor that it is
    "relative": "key_and_value_error",
    "score": "score_error_own_query",
    "attention": "attention_kl",
    "output": "output_error",
}
# Of a lane's whole run, as the view Where shows it, mean over heads and steps; the last four are of the prompt alone.
PREDICTORS: dict[str, tuple[str, Predictor]] = {
    "key_error": ("relative key error", _of("key_error")),
    "value_error": ("relative value error", _of("value_error")),
    "key_and_value_error": ("sum of key and value error", _by_layer("relative")),
    "score_error": ("score error by the keys alone", _of("uncentred_by_keys")),
    "score_error_centred": ("score error by the keys alone, modulo a constant per query", _of("delta_by_keys")),
    "score_error_own_query": ("score error with the lane's own query", _by_layer("score")),
    "attention_kl": ("KL of the attention", _by_layer("attention")),
    "weighted_value_error": ("attention-weighted value error", _of("value_weighted")),
    "output_error": ("relative error of the attention output", _by_layer("output")),
    "spectrum_tail": ("keys beyond a quarter of their directions", _spectrum_tail),
    "query_deviation": ("queries beyond a quarter of their directions", _query_deviation),
    "key_bias": ("norm of the key bias", _key_bias),
    "key_constant": ("constant of the keys over what differs", _key_constant),
}


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
    read = load if any(kept_prompt(cell) is None for cell in cells) else outline
    return read(cells[0].model, cells[0].spec.revision)


def work_sentence(model: LoadedModel, cells: Sequence[Cell]) -> str:
    """What is to be done: prompts, lanes, passes, and about how many minutes, by the prompts that are done, else by
    what runs took on this machine. Raises SpecError where nothing can be foretold of the model or of the lanes."""
    if not model.shape.captured:
        raise SpecError(f"{model.title} has no layer that captures look at; they look at those that attend to all.")
    known = [held.seconds for cell in cells if (held := kept_prompt(cell)) is not None]
    todo = [cell for cell in cells if kept_prompt(cell) is None]
    whole = _shown(cells[0].spec)
    alone = [one for lane in whole.lanes for _, one in _alone(lane, model.shape)]
    if not alone:
        raise SpecError("No lane of this study quantizes a layer that captures look at; give lanes that do.")
    quiet = whole.model_copy(update={"capture": Capture(detail="off")})
    passes = [tuple(alone[at : at + MAX_LANES]) for at in range(0, len(alone), MAX_LANES)]
    runs = [whole, *(quiet.model_copy(update={"lanes": lanes}) for lanes in passes)]
    told = [sum(known) / len(known)] if known else [estimate_on(model, spec).cost.seconds for spec in runs]
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
        found = kept_prompt(cell)
        if found is None:
            began = time.monotonic()
            seen = tuple(_of_prompt(model, cell))
            found = PromptSeen(version=VERSION, run=cell.id, seconds=time.monotonic() - began, seen=seen)
            keep_memo(_file(cell), found.model_dump(mode="json"))
        yield found


def kept_prompt(cell: Cell) -> PromptSeen | None:
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


# All lanes, layers and prompts together; the layers of each lane and prompt, mean of their correlations; whole lanes.
LEVELS = ("layer", "layer of a lane", "lane")
LEAST = 3  # points that a correlation is told of
Part = list[np.ndarray]  # of a prompt: (points, 2) predictor and KLD, an entry a lane


def correlations(prompts: Sequence[PromptSeen]) -> list[dict[str, Any]]:
    """Of every level and predictor Spearman's rank correlation with the KLD, of ``n`` points, and its 95 % interval,
    which resamples prompts with all their points (cluster bootstrap); none from fewer than FEWEST prompts. Where there
    is no correlation it is None, and ``why`` says the reason. The strongest first."""
    found = [_row(prompts, name, level) for level in LEVELS for name in PREDICTORS]
    return sorted(found, key=lambda row: (LEVELS.index(row["level"]), -(row["spearman"] or -2.0)))


def _row(prompts: Sequence[PromptSeen], name: str, level: str) -> dict[str, Any]:
    parts = [_lanes(prompt, name, whole=level == "lane") for prompt in prompts]
    points = np.concatenate([np.empty((0, 2)), *(lane for own in parts for lane in own)])
    within = level == "layer of a lane"
    value = _correlation(parts, within)
    row: dict[str, Any] = {"predictor": name, "level": level, "spearman": value, "low": None, "high": None}
    if value is not None and len(parts) >= FEWEST:
        row["low"], row["high"] = _interval(parts, within)
    return {**row, "n": len(points), "why": _why(points) if value is None else None}


def _lanes(prompt: PromptSeen, name: str, whole: bool) -> Part:
    """Of each lane its points: of the whole of it one, else one a layer."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seen in prompt.seen:
        if (seen.layer is None) == whole and name in seen.predictors:
            found.setdefault(seen.lane, []).append((seen.predictors[name], seen.kld))
    return [np.array(points) for points in found.values()]


def _correlation(parts: Sequence[Part], within: bool) -> float | None:
    """Of all points together, or ``within`` each lane of a prompt; None where one side of all is constant."""
    from scipy.stats import spearmanr

    lanes = [np.empty((0, 2)), *(lane for own in parts for lane in own)]
    groups = [each for each in (lanes if within else [np.concatenate(lanes)]) if len(each) >= LEAST]
    found = [float(spearmanr(each).statistic) for each in groups if np.ptp(each, axis=0).all()]
    return sum(found) / len(found) if found else None


def _interval(parts: Sequence[Part], within: bool) -> list[float]:
    count = len(parts)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    each, times = np.unique(drawn, axis=0, return_counts=True)
    values = [
        _correlation([part for part, k in zip(parts, own, strict=True) for _ in range(k)], within) for own in each
    ]
    outside = 50 * (1 - CONFIDENCE)
    told = np.repeat(np.array(values, dtype=float), times)  # NaN where a resample has no correlation
    return [float(end) for end in np.nanpercentile(told, [outside, 100 - outside])]


def _why(points: np.ndarray) -> str:
    if len(points) < LEAST:
        return f"{len(points)} points; at least {LEAST} are needed" if len(points) else "not captured: there is none"
    side = "the KLD" if np.ptp(points[:, 0]) else "the predictor"
    return f"{side} is the same wherever ranks are compared"
