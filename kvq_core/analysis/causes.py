"""The lanes that tell causes of a lane's damage apart: as it is, and with one part of its cache in fp16 at a time."""

from collections.abc import Iterator
from contextlib import suppress

from kvq_core.analysis.plans import lane_of
from kvq_core.analysis.why import Kind, Why, why
from kvq_core.errors import KvqError, SpecError
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.spec import TENSORS, Lane, Rule

THIRDS = ("first", "middle", "last")
ABOUT, FROM = "What the damage of ", " comes from"
ITSELF = "as it is"


def about_why(label: str) -> str:
    """What such a run's notes say: it is about a lane, and none of its lanes is the parent's."""
    return f"{ABOUT}{label}{FROM}"


def variants(lane: Lane, layers: int) -> list[tuple[Kind | None, Lane]]:
    """The lane as it is, and with each cause taken out that can be, on a model of so many layers; of what kind it is.
    Raises SpecError for a lane that quantizes nothing."""
    if not lane.quantizes:
        raise SpecError(f"{lane.label} quantizes nothing, so nothing can be taken out of it.")
    found: list[tuple[Kind | None, Lane]] = [(None, lane.model_copy(update={"label": ITSELF}))]
    for kind, label, rules in _causes(lane, layers):
        kept = lane.model_dump(mode="json", include={"prefill", "select"})
        with suppress(SpecError):  # a rule that nothing would be left for: the whole lane is in fp16 then
            found.append((kind, Lane(label=label, rules=tuple(rules), **kept)))
    return found


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
        with suppress(KvqError, ValueError):  # the lane failed, or this version takes it apart in another way
            kinds = [kind for kind, _ in variants(lane, record.environment.layers) if kind is not None]
            return at, why(record.lanes[at], child, arrays, kinds)
    return None


def _causes(lane: Lane, layers: int) -> Iterator[tuple[Kind, str, list[Rule]]]:
    rules = list(lane.every_rule)
    for tensor in TENSORS:
        if not any(rule.quantizes(tensor) for rule in rules):
            continue
        yield "tensors", f"{tensor} in fp16", [Rule(method="fp16", tensors=tensor), *rules]
    for third, name in enumerate(THIRDS if layers >= len(THIRDS) else ()):
        some = tuple(range(layers * third // 3, layers * (third + 1) // 3))
        words = f"{name} third in fp16 ({some[0]}-{some[-1]})"
        yield "layers", words, [Rule(method="fp16", layers=some), *rules]
    with suppress(SpecError):  # a method that has no such windows
        yield "windows", "no full-precision windows", [_without_windows(rule) for rule in rules]


def _without_windows(rule: Rule) -> Rule:
    return rule.with_options(sink_tokens=0, recent_tokens=0) if rule.build().quantizes else rule
