"""The lanes that tell causes of a lane's damage apart: as it is, and with one part of its cache in fp16 at a time."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.analysis.why import Kind, Why, why
from kvq_core.errors import KvqError, SpecError
from kvq_core.methods import ModelShape
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.spec import TENSORS, Lane, Rule, layer_words, rules_for

THIRDS = ("first", "middle", "last")
ABOUT, FROM = "What the damage of ", " comes from"
ITSELF = "as it is"
LEAST_WINDOWS = "the smallest windows"  # of methods that store tokens in groups alone


def about_why(label: str) -> str:
    """What such a run's notes say: it is about a lane, and none of its lanes is the parent's."""
    return f"{ABOUT}{label}{FROM}"


def variants(lane: Lane, shape: ModelShape) -> list[tuple[Kind | None, Lane]]:
    """The lane as it is, and with each cause taken out that can be, on a model of that shape; of what kind it is.
    Raises SpecError for a lane that quantizes nothing."""
    if not lane.quantizes:
        raise SpecError(f"{lane.label} quantizes nothing, so nothing can be taken out of it.")
    found: list[tuple[Kind | None, Lane]] = [(None, lane.model_copy(update={"label": ITSELF}))]
    kept = lane.model_dump(mode="json", include={"prefill", "select"})
    for kind, label, rules in _causes(lane, shape):
        with suppress(SpecError):  # windows that rules of some tokens, or the way the prompt is read, cannot do without
            left = Lane(label=label, rules=rules_for(rules, shape), **kept)
            if any(left.plan(shape)):  # else the whole lane is in fp16 then
                found.append((kind, left))
    return found


def why_lane(record: Record, at: int, lane: Lane, child: Record, arrays: Arrays) -> Why:
    """What the damage of a run's lane comes from, as a run of its ``variants`` tells. Raises SpecError as ``why``
    does."""
    shape = shape_of(record)
    kinds = {label.label: kind for kind, label in variants(lane, shape) if kind is not None}
    rules = list(lane.every_rule)
    own = _hold_windows(rules) and _without_windows(rules) == rules
    return replace(why(record.lanes[at], child, arrays, kinds), own_windows=own)


def told_of(record: Record, child: Record, arrays: Arrays) -> tuple[int, Why] | None:
    """The lane of a run that a run beside it was computed for, and what its damage comes from; None where the other is
    no such run, or none of this one's lanes."""
    asked = lane_of(child, 0)
    if asked is None or not child.spec.get("notes", "").startswith(ABOUT):
        return None
    for at in range(len(record.lanes)):
        lane = lane_of(record, at)
        if lane is None or lane.model_copy(update={"label": asked.label}) != asked:
            continue
        with suppress(KvqError):  # the lane failed, or nothing was scored
            return at, why_lane(record, at, lane, child, arrays)
    return None


def _causes(lane: Lane, shape: ModelShape) -> Iterator[tuple[Kind, str, list[Rule]]]:
    rules, plan, sliding = list(lane.every_rule), lane.plan(shape), bool(shape.windowed)
    for tensor in TENSORS:
        if any(assigned.tensor == tensor for assigned in plan):
            yield "tensors", f"{tensor} in fp16", [Rule(method="fp16", tensors=tensor, sliding=sliding), *rules]
    layers = sorted({layer for assigned in plan for layer in assigned.layers})
    for third, name in enumerate(THIRDS if len(layers) >= len(THIRDS) else ()):
        some = tuple(layers[len(layers) * third // 3 : len(layers) * (third + 1) // 3])
        words = f"{name} third in fp16 ({layer_words(some).partition(' ')[2]})"
        yield "layers", words, [Rule(method="fp16", layers=some, sliding=sliding), *rules]
    without = _without_windows(rules)
    if without != rules:
        yield "windows", LEAST_WINDOWS if _hold_windows(without) else "no full-precision windows", without


def _without_windows(rules: Sequence[Rule]) -> list[Rule]:
    """With windows as small as their methods can have them, and no first or newest tokens in fp16."""
    return [_bare(rule) for rule in rules if rule.build().quantizes or rule.tier[0] not in ("first", "last")]


def _hold_windows(rules: Sequence[Rule]) -> bool:
    """Whether any of what they quantize is held in full precision for a while."""
    quantized = ((rule, at) for rule in rules for at, tensor in enumerate(TENSORS) if rule.quantizes(tensor))
    windows = (rule.windows()[at] for rule, at in quantized)
    return any(window.sink or window.recent or (window.step or 1) > 1 for window in windows)


def _bare(rule: Rule) -> Rule:
    built = rule.build()
    for recent in (0, 1, getattr(built, "group_size", 1)) if built.quantizes else ():
        with suppress(SpecError):
            bare = rule.with_options(sink_tokens=0, recent_tokens=recent)
            return bare if bare.windows() != rule.windows() else rule
    return rule
