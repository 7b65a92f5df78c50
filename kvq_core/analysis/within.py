"""Of each family of methods in a run, the fewest bits whose loss is small enough."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvq_core.analysis.plans import lane_of
from kvq_core.methods import Method
from kvq_core.record.fields import Record

LOSSES = (0.001, 0.01, 0.1)  # mean KLD in nats


@dataclass(frozen=True)
class LaneWithin:
    """A lane that lost little: its number, bits an element of keys and values together, and mean KLD in nats."""

    lane: int
    bits: float
    kld: float


def fewest(record: Record, losses: Sequence[float] = LOSSES) -> dict[str, list[LaneWithin | None]]:
    """By family the lane with the fewest bits within each loss, None where none of its lanes is; families of which a
    run has one width alone are left out, as there is nothing to choose."""
    found: dict[str, list[LaneWithin]] = {}
    for index, lane in enumerate(record.lanes):
        family = _family(record, index)
        if family is None or lane.memory is None or lane.metrics is None or lane.metrics.kld_mean is None:
            continue
        bits = (lane.memory.key_bits + lane.memory.value_bits) / 2
        found.setdefault(family, []).append(LaneWithin(index, bits, lane.metrics.kld_mean))
    several = {name: kept for name, kept in found.items() if len({round(one.bits, 2) for one in kept}) > 1}
    return {name: [_least(kept, loss) for loss in losses] for name, kept in several.items()}


def _least(kept: list[LaneWithin], loss: float) -> LaneWithin | None:
    return min((one for one in kept if one.kld <= loss), key=lambda one: (one.bits, one.kld), default=None)


def _family(record: Record, index: int) -> str | None:
    """The engine or the method that all of a lane is stored by; None where several rules say how."""
    lane = lane_of(record, index)
    if lane is None:
        return None
    (rule, *others) = lane.every_rule
    whole = rule.tensors == "both" and rule.layers == "all" and rule.tokens == "all"
    return _named(rule.build()) if whole and not others else None


def _named(method: Method) -> str:
    return type(method).title if method.home is None else method.home.engine
