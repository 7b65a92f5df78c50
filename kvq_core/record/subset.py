"""Some lanes of a run, in the form of a run: what is drawn of one that has more lanes than can be told apart."""

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record

TOGETHER = 8  # lanes in one figure, a colour each
BEST = (
    "those that no other lane beats in size and KLD at once come first, then those of the least KLD"  # as ``best`` does
)


def best(record: Record) -> list[int]:
    """The TOGETHER lanes that are drawn until others are chosen, in the order of the run: see BEST."""
    costs = [_cost(lane) for lane in record.lanes]
    beaten = [any(_beats(other, cost) for other in costs) for cost in costs]
    ranked = sorted(range(len(costs)), key=lambda i: (beaten[i], costs[i][1], costs[i][0], i))
    return sorted(ranked[:TOGETHER])


def drawn_of(record: Record, arrays: Arrays) -> tuple[Record, Arrays]:
    """What is drawn of a run where nobody chooses: all of it, or the best of many lanes."""
    return (record, arrays) if len(record.lanes) <= TOGETHER else part_of(record, arrays, best(record))


def part_of(record: Record, arrays: Arrays, lanes: Sequence[int]) -> tuple[Record, dict[str, Any]]:
    """The run with some of its lanes alone, numbered anew; its id, reference and noise floor are the whole run's."""
    kept = {str(lane): str(at) for at, lane in enumerate(lanes)}
    own: dict[str, Any] = {}
    for name, values in arrays.items():
        room, _, rest = name.partition("/")
        lane, _, of_lane = rest.partition("/")
        if room != "lane" or lane == "noise":
            own[name] = values
        elif lane in kept:
            own[f"lane/{kept[lane]}/{of_lane}"] = values
    spec = {**record.spec, "lanes": [record.spec["lanes"][lane] for lane in lanes]}
    part = record.model_copy(update={"lanes": [record.lanes[lane] for lane in lanes], "spec": spec})
    part._whole = record.whole
    part._numbers = tuple(record.number(lane) for lane in lanes)
    return part, own


def adds_lanes(record: Record, child: Record) -> bool:
    """Whether a run beside another adds lanes to it: it neither looks at some of them nor is about one."""
    return bool(child.spec["capture"]["detail"] == "off" and child.spec["notes"] == record.spec.get("notes", ""))


def with_added(record: Record, arrays: Arrays, added: Sequence[tuple[Record, Arrays]]) -> tuple[Record, dict[str, Any]]:
    """The run with the lanes that were added to it behind its own, in the form of a run, to be drawn: their numbers are
    of batches of their own, and nothing that is stored changes."""
    lanes, asked, own = list(record.lanes), list(record.spec["lanes"]), dict(arrays)
    words, origins = dict(record.vocabulary), []
    for child, held in added:
        for at, (lane, spec) in enumerate(zip(child.lanes, child.spec["lanes"], strict=True)):
            label = _unused(lane.label, [known.label for known in lanes])
            own |= {
                f"lane/{len(lanes)}/{name.removeprefix(f'lane/{at}/')}": values
                for name, values in held.items()
                if name.startswith(f"lane/{at}/")
            }
            notes = [*lane.notes, f"added later, as run {child.id}, and computed in a batch of its own"]
            origins.append((child.id, at))
            lanes.append(lane.model_copy(update={"label": label, "notes": notes}))
            asked.append({**spec, "label": label})
        words |= child.vocabulary
    update = {"lanes": lanes, "spec": {**record.spec, "lanes": asked}, "vocabulary": words}
    whole = record.model_copy(update=update)
    whole._added = tuple(origins)
    return whole, own


def _unused(label: str, known: Sequence[str]) -> str:
    free = (name for n in count(1) if (name := label if n == 1 else f"{label} ({n})") not in known)
    return next(free)


def _cost(lane: LaneRecord) -> tuple[float, float]:
    """Size and mean KLD; infinite of a lane that was not measured."""
    if lane.memory is None or lane.metrics is None or lane.metrics.kld_mean is None:
        return math.inf, math.inf
    kld = lane.metrics.kld_mean
    return lane.memory.held_ratio, math.inf if math.isnan(kld) else kld


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether it is better in one and worse in neither."""
    return one != other and one[0] <= other[0] and one[1] <= other[1]
