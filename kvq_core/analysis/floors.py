"""What is no damage: how far the reference is from itself under changes that quantize nothing."""

from kvq_core.analysis.scored import At, pooled
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record


def floors(record: Record) -> dict[At, LaneRecord]:
    """The floors a run measured, by their place in the arrays."""
    found: dict[At, LaneRecord] = {"noise": record.noise_floor}
    return found if record.kernel_floor is None else {**found, "kernel": record.kernel_floor}


def lane_of(record: Record, at: At) -> LaneRecord:
    """A lane by its index, or a floor by its place."""
    return record.lanes[at] if isinstance(at, int) else floors(record)[at]


def larger(record: Record) -> At:
    """The floor with the larger mean KLD of those measured."""
    return max(floors(record).items(), key=lambda floor: (floor[1].metrics and floor[1].metrics.kld_mean) or 0.0)[0]


def above_floor(record: Record, arrays: Arrays, at: At) -> float | None:
    """Share of the scored positions at which a lane's KLD is above the larger floor's, position by position; None of
    floors themselves, and where positions are not those of the floor."""
    floor = pooled(arrays, larger(record), "kld")
    lane = pooled(arrays, at, "kld")
    if not isinstance(at, int) or not len(lane) or len(floor) != len(lane):
        return None
    return float((lane > floor).mean())


def floor_title(record: Record, at: At) -> str:
    """What a run calls one of its floors: by what it measures where there are two."""
    if len(floors(record)) == 1:
        return "noise floor"
    return {"noise": "storage", "kernel": "another kernel"}[str(at)]
