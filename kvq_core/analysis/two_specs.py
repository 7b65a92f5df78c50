"""Two comparisons beside each other: what is asked differently, field by field and lane by lane."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kvq_core.spec import ComparisonSpec, Lane

ORDER = "order of lanes"
KNOB = "knobs."


@dataclass(frozen=True)
class Change:
    """A field with two values; ``place`` as in the spec: ``capture.detail``, or of a lane ``knobs.bits``."""

    place: str
    one: Any
    other: Any
    lane: str = ""


class Labelled(Protocol):
    @property
    def label(self) -> str: ...


L = TypeVar("L", bound=Labelled)


def changes(one: ComparisonSpec, other: ComparisonSpec) -> Iterator[Change]:
    """What tells two comparisons apart; of a lane that only one of them has, the other's value is None."""
    yield from field_changes(one.model_dump(mode="json"), other.model_dump(mode="json"))
    pairs = paired(one.lanes, other.lanes, lambda lane: lane.model_dump(exclude={"label"}))
    for a, b in pairs:
        if a is not None and b is not None:
            yield from _of_lane(a, b)
        else:
            yield Change("", a and a.title, b and b.title, (a or b).label)  # type: ignore[union-attr]
    orders = [[lane.label for lane in spec.lanes if _both(lane, pairs)] for spec in (one, other)]
    if [_other(label, pairs) for label in orders[0]] != orders[1]:
        yield Change(ORDER, *(", ".join(order) for order in orders))


def field_changes(one: dict[str, Any], other: dict[str, Any]) -> Iterator[Change]:
    """Fields of two specs but their lanes."""
    specs = [{name: value for name, value in _flat(spec) if name != "lanes"} for spec in (one, other)]
    for name in dict.fromkeys([*specs[0], *specs[1]]):
        if specs[0].get(name) != specs[1].get(name):
            yield Change(name, specs[0].get(name), specs[1].get(name))


def paired(one: Sequence[L], other: Sequence[L], cache: Callable[[L], Any]) -> tuple[tuple[L | None, L | None], ...]:
    """Lanes that belong together: by label, else because they are the same ``cache``; one of them None where none
    does."""
    left = list(other)
    found = {}
    for same in (lambda a, b: a.label == b.label, lambda a, b: cache(a) == cache(b)):
        for index, lane in enumerate(one):
            match = next((b for b in left if index not in found and same(lane, b)), None)
            if match is not None:
                found[index] = match
                left.remove(match)
    pairs = [(lane, found.get(index)) for index, lane in enumerate(one)]
    return (*pairs, *((None, lane) for lane in left))


def _of_lane(one: Lane, other: Lane) -> Iterator[Change]:
    told = [_told(lane) for lane in (one, other)]
    for name in dict.fromkeys([*told[0], *told[1]]):
        if one.method != other.method and name.startswith(KNOB):
            continue  # each method has its own
        if told[0].get(name) != told[1].get(name):
            yield Change(name, told[0].get(name), told[1].get(name), one.label)


def _told(lane: Lane) -> dict[str, Any]:
    """All that decides a lane, every knob with its value; several rules are one value, in words."""
    found = {name: value for name, value in _flat(lane.model_dump(mode="json")) if not name.startswith((KNOB, "rules"))}
    if lane.rules is not None:
        return {**found, "rules": lane.title}
    return {**found, **{f"{KNOB}{name}": value for name, value in _flat(lane.build().model_dump(mode="json"))}}


def _both(lane: Lane, pairs: Sequence[tuple[Lane | None, Lane | None]]) -> bool:
    return any(lane in pair and None not in pair for pair in pairs)


def _other(label: str, pairs: Sequence[tuple[Lane | None, Lane | None]]) -> str | None:
    """The label that a lane of the first has in the second."""
    return next((b.label for a, b in pairs if a is not None and b is not None and a.label == label), None)


def _flat(data: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested objects by their dotted place."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value
