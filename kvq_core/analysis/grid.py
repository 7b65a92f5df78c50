"""Key formats against value formats, where a run's lanes are such a grid."""

from dataclasses import dataclass

from kvq_core.analysis.plans import lane_of
from kvq_core.record.fields import Record
from kvq_core.spec import Tensor

FILLED = 0.6  # of the cells; with fewer, lanes are no grid


@dataclass(frozen=True)
class FormatGrid:
    """``cells[row][column]``: the lane of a key format and a value format, the most bits first; None where the run has
    none."""

    keys: list[str]
    values: list[str]
    cells: list[list[int | None]]


def grid_of(record: Record) -> FormatGrid | None:
    """The grid of a run's lanes; None where they differ in anything else, or leave many cells empty."""
    found: dict[tuple[str, str], int] = {}
    bits: tuple[dict[str, float], dict[str, float]] = {}, {}
    for index, lane in enumerate(record.lanes):
        named = (_stored(record, index, "keys"), _stored(record, index, "values"))
        if named[0] is None or named[1] is None or lane.memory is None or lane.metrics is None:
            return None
        if (named[0], named[1]) in found:
            return None
        found[named[0], named[1]] = index
        bits[0][named[0]], bits[1][named[1]] = lane.memory.key_bits, lane.memory.value_bits
    keys, values = (sorted(of, key=lambda name: -of[name]) for of in bits)
    if min(len(keys), len(values)) < 2 or len(found) < FILLED * len(keys) * len(values):
        return None
    return FormatGrid(keys, values, [[found.get((key, value)) for value in values] for key in keys])


def _stored(record: Record, index: int, tensor: Tensor) -> str | None:
    """How a lane stores its keys, or its values, in a word or two; None where that takes more than one rule."""
    lane = lane_of(record, index)
    own = [] if lane is None else [rule for rule in lane.every_rule if rule.covers(tensor)]
    if lane is None or len(own) > 1 or any(rule.tokens != "all" or rule.layers != "all" for rule in own):
        return None
    return own[0].build().short(tensor) if own else "fp16"
