"""Which lane a run speaks for: the smallest of those with the best verdict, and what stands beside it."""

from dataclasses import dataclass

from kvq_core.analysis.context_growth import growths
from kvq_core.analysis.plans import shape_of
from kvq_core.analysis.verdict import TIERS, verdict
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record

RECOMMENDED_FROM = 12  # prompts from which a study may say what to use; one says what broke
PLANNED_TOKENS, PLANNED_BATCH = 32_768, 8  # what memory is planned for, until somebody says otherwise


@dataclass(frozen=True)
class LaneChoice:
    """``tier``: the place in TIERS of the lane's verdict, the lower one where two cannot be told apart; None where too
    few positions were scored for any verdict. ``closer``: the lane with the least mean KLD, where that is another one.
    ``beyond``: lanes whose verdict is the last tier, in the run's order."""

    lane: int
    tier: int | None
    closer: int | None
    beyond: tuple[int, ...]


def choose(record: Record, arrays: Arrays) -> LaneChoice | None:
    """None of a run without a lane that was measured and quantized anything."""
    found = {
        index: lane.metrics.kld_mean
        for index, lane in enumerate(record.lanes)
        if lane.status == "done" and lane.memory and lane.metrics and lane.metrics.kld_mean is not None
        if not {"never_engaged", "nan"} & set(lane.flags)
    }
    if not found:
        return None
    placed = {index: told for index in found if (told := verdict(record, arrays, index).placed)}
    judged = {index: told.worst for index, told in placed.items()}
    closest = min(found, key=lambda index: (found[index], index))
    best = min(judged.values(), default=None)
    last = len(TIERS) - 1
    lane = closest
    if best is not None and best < last:
        lane = min((i for i, tier in judged.items() if tier == best), key=lambda i: (_ratio(record, i), found[i], i))
    beyond = tuple(index for index, told in placed.items() if told.best == last)
    return LaneChoice(lane, best, closest if closest != lane else None, beyond)


def planned_bytes(record: Record, index: int) -> tuple[float, float] | None:
    """Bytes of the caches of PLANNED_BATCH contexts of PLANNED_TOKENS as a lane stores them and in fp16, on the run's
    model; None where the lane's width at other lengths is not known."""
    growth, shape = growths(record).get(index), shape_of(record)
    stored = None if growth is None else growth.nbytes(shape, PLANNED_TOKENS, PLANNED_BATCH)
    if stored is None:
        return None
    return stored, float(shape.fp16_bytes(PLANNED_TOKENS) * PLANNED_BATCH)


def _ratio(record: Record, index: int) -> float:
    memory = record.lanes[index].memory
    assert memory is not None
    return memory.held_ratio
