"""What a run shows of a layer and head: as its captures kept it, or as a look at that layer afterwards found it."""

from typing import Any

from kvq_core.analysis.plans import lane_of
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.spec import Lane

LOOKED_AT = "The lanes of a run in one layer"  # notes of such a run
_OF_LANES = ("delta_map", "delta_scale", "delta_offset", "attention_rows", "key_quantiles", "latent_quantiles")
_OF_RUN = ("reference/attention_rows", "spectra/key_quantiles", "spectra/latent_quantiles")
Look = tuple[Record, Arrays]


def keeps(record: Record, layer: int, head: int) -> bool:
    """Whether a run kept the maps of a layer and query head."""
    return layer in record.capture.layers and head in record.capture.heads


def looked_at(record: Record, arrays: Arrays, layer: int, head: int) -> Look | None:
    """The run with the maps of a layer and head: its own, else those of a look at that layer, of the lanes it had; None
    where nobody has looked. Its other captures are those of its own: see ``distributions_at``."""
    if keeps(record, layer, head):
        return record, arrays
    return next((_seen(record, arrays, look) for look in record.looks if keeps(look[0], layer, head)), None)


def distributions_at(record: Record, arrays: Arrays, layer: int) -> Look | None:
    """``looked_at`` of the spread of a layer's keys."""
    if layer in record.capture.distribution_layers:
        return record, arrays
    found = (look for look in record.looks if layer in look[0].capture.distribution_layers)
    return next((_seen(record, arrays, look) for look in found), None)


def steps_at(record: Record, arrays: Arrays, layer: int, head: int, step: int) -> Look | None:
    """``looked_at`` of attention at a step: of a look that has the step, where the run's own captures have not."""
    own = looked_at(record, arrays, layer, head)
    if own is not None and step in own[0].capture.attention_steps:
        return own
    for look in record.looks:
        if keeps(look[0], layer, head) and step in look[0].capture.attention_steps:
            return _seen(record, arrays, look)
    return own


def noise(record: Record, layer: int, head: int) -> list[tuple[str, float, float]]:
    """Of the look that shows a layer and head: the label of each lane, its mean KLD there and as it was recorded."""
    if keeps(record, layer, head):
        return []
    look = next((look for look, _ in record.looks if keeps(look, layer, head)), None)
    if look is None:
        return []
    klds = ((at, _kld(look, other), _kld(record, at)) for at, other in _pairs(record, look).items())
    return [(record.lanes[at].label, here, own) for at, here, own in klds if here is not None and own is not None]


def _kld(record: Record, index: int) -> float | None:
    metrics = record.lanes[index].metrics
    return None if metrics is None else metrics.kld_mean


def _seen(record: Record, arrays: Arrays, look: Look) -> Look:
    seen, found = look
    pairs = _pairs(record, seen)
    names = [f"lane/{at}/{name}" for at in range(len(record.lanes)) for name in _OF_LANES]
    own: dict[str, Any] = {name: values for name, values in arrays.items() if name not in {*names, *_OF_RUN}}
    own |= {name: found[name] for name in _OF_RUN if name in found}
    for at, other in pairs.items():
        there = ((name, f"lane/{other}/{name}") for name in _OF_LANES)
        own |= {f"lane/{at}/{name}": found[key] for name, key in there if key in found}
    return record.model_copy(update={"capture": seen.capture}), own


def _pairs(record: Record, look: Record) -> dict[int, int]:
    """Which of a look's lanes each lane of the run is: the same in all but its label."""
    asked, own = ([_unnamed(each, at) for at in range(len(each.lanes))] for each in (look, record))
    return {at: asked.index(lane) for at, lane in enumerate(own) if lane is not None and lane in asked}


def _unnamed(record: Record, index: int) -> Lane | None:
    lane = lane_of(record, index)
    return None if lane is None else lane.model_copy(update={"label": ""})
