"""What a run shows of a layer and head: as its captures kept it, or as a look at that layer afterwards found it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvq_core.analysis.plans import lane_of
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from kvq_core.spec import Lane

LOOKED_AT = "The lanes of a run in one layer"  # notes of such a run
REPLAYED = "Maps of one layer, of the very rows of the run"
_OF_LANES = ("delta_map", "delta_scale", "delta_offset", "attention_rows", "key_quantiles", "latent_quantiles")
_OF_RUN = ("reference/attention_rows", "spectra/key_quantiles", "spectra/latent_quantiles")
# Of all layers: by step of the answer, layer and head, or at the end of the run; and at the steps that were looked at.
_OF_LAYERS = (
    *("delta_mean", "delta_max", "delta_offset", "key_error", "value_error", "key_channel_error"),
    *("value_channel_error", "depth_key_error", "depth_value_error", "depth_score_error", "output_relative"),
    *("centred_key", "angles_query_key", "angles_key_key", "key_error_energy", "output_error", "output_bound"),
    *("key_code_counts", "value_code_counts", "key_symmetric_share", "value_symmetric_share", "key_outlier_share"),
    *("value_outlier_share", "key_latent_bits", "value_weighted"),
)
_AT_STEPS = ("delta_by_keys", "uncentred_by_keys", "attention_kl", "sink_mass")
Look = tuple[Record, Arrays]


@dataclass(frozen=True)
class Noise:
    """How far a look's own batch is from what was recorded: ``of`` what, and of each lane its label, the mean there and
    as recorded."""

    of: str
    lanes: list[tuple[str, float, float]]


def attention_shares(codes: np.ndarray) -> np.ndarray:
    """Shares of the attention by position bin, of what ``attention_rows`` keeps of them, uint8."""
    return (np.asarray(codes, np.float32) / 255) ** 2


def keeps(record: Record, layer: int, head: int) -> bool:
    """Whether a run kept the maps of a layer and query head."""
    return layer in record.capture.layers and head in record.capture.heads


def captured_indices(record: Record, layer: int, head: int) -> tuple[int, int] | None:
    """Indices into the maps of a layer and query head; None where theirs were not kept."""
    info = record.capture
    return (info.layers.index(layer), info.heads.index(head)) if keeps(record, layer, head) else None


def looked_at(record: Record, arrays: Arrays, layer: int, head: int) -> Look | None:
    """The run with the maps of a layer and head: its own, else those of a look at that layer, of the lanes it had, and
    where lanes were added whichever has most of them; None where nobody has looked. Its other captures are those of its
    own: see ``distributions_at``."""
    return max(_each(record, arrays, layer, head), key=_mapped, default=None)


def distributions_at(record: Record, arrays: Arrays, layer: int) -> Look | None:
    """``looked_at`` of the spread of a layer's keys."""
    if layer in record.capture.distribution_layers:
        return record, arrays
    found = (look for look in record.looks if layer in look[0].capture.distribution_layers)
    return next((_seen(record, arrays, look) for look in found), None)


def steps_at(record: Record, arrays: Arrays, layer: int, head: int, step: int) -> Look | None:
    """``looked_at`` of attention at a step: of whatever looked at that step; None where nothing did."""
    found = [look for look in _each(record, arrays, layer, head) if step in look[0].capture.attention_steps]
    return max(found, key=_mapped, default=None)


def most_steps_at(record: Record, arrays: Arrays, layer: int, head: int) -> Look | None:
    """``looked_at`` of attention at as many steps as any look has."""
    found = [look for look in _each(record, arrays, layer, head) if "reference/attention_rows" in look[1]]
    return max(found, key=lambda look: (len(look[0].capture.attention_steps), _mapped(look)), default=None)


def has_every_lane(look: Look) -> bool:
    """Whether what was seen is of all lanes that were scored, those that were added included."""
    return _mapped(look) == sum(lane.status == "done" for lane in look[0].lanes)


def with_layers(record: Record, arrays: Arrays) -> Arrays:
    """The arrays of a run with lanes that were added to it and, of those that were looked at in all layers since, what
    the run keeps of its own lanes: of a batch of their own, as their KLD is."""
    own: dict[str, Any] = dict(arrays)
    steps = record.capture.attention_steps
    for seen, found in record.looks:
        there = seen.capture.attention_steps
        for at, other in _pairs(record, seen).items():
            if record.added(at) is None or f"lane/{at}/delta_mean" in own or f"lane/{other}/delta_mean" not in found:
                continue
            names = ((name, f"lane/{other}/{name}") for name in _OF_LAYERS)
            own |= {f"lane/{at}/{name}": found[key] for name, key in names if key in found}
            if set(steps) <= set(there):
                picked = [there.index(step) for step in steps]
                names = ((name, f"lane/{other}/{name}") for name in _AT_STEPS)
                own |= {f"lane/{at}/{name}": found[key][picked] for name, key in names if key in found}
    return own


def cosines_at(record: Record, layer: int, pair: str, lane: int | None) -> np.ndarray | None:
    """(kv_heads, head_dim, head_dim) cosines between the directions of two subspaces of a layer, of the reference or of
    a lane, as a look found them."""
    for look, found in record.looks:
        if layer in look.capture.layers:
            other = None if lane is None else _pairs(record, look).get(lane)
            name = f"reference/looked_cosines_{pair}" if lane is None else f"lane/{other}/looked_cosines_{pair}"
            if (cosines := array(found, name)) is not None:
                return cosines
    return None


def noise(record: Record, arrays: Arrays, layer: int, head: int) -> list[Noise]:
    """Of the look that shows a layer and head, where that is of a batch of its own: KL of the attention there, and KLD
    where it went up to the logits, as older ones always did."""
    if keeps(record, layer, head):
        return []
    look = next((look for look in record.looks if keeps(look[0], layer, head)), None)
    if look is None or REPLAYED in look[0].notes:
        return []
    seen, found = look
    pairs = _pairs(record, seen)
    if not any(name.endswith("/looked_kl") for name in found):
        return _noise(record, "mean KLD", {at: _klds(record, at, seen, other) for at, other in pairs.items()})
    of = f"KL of the attention of layer {layer}, query head {head}"
    kls = {at: _attention_kls(record, arrays, look, at, other, layer, head) for at, other in pairs.items()}
    klds = {at: _scored_klds(arrays, found, at, other) for at, other in pairs.items()}
    return [*_noise(record, "mean KLD", klds), *_noise(record, of, kls)]


def _noise(record: Record, of: str, told: dict[int, tuple[float, float] | None]) -> list[Noise]:
    lanes = [(record.lanes[at].label, *both) for at, both in told.items() if both is not None]
    return [Noise(of, lanes)] if lanes else []


def _scored_klds(arrays: Arrays, found: Arrays, at: int, other: int) -> tuple[float, float] | None:
    """Mean KLD of a lane over the positions that a look scored, and as recorded."""
    here, own = array(found, f"lane/{other}/looked_kld"), array(arrays, f"lane/{at}/kld")
    return None if here is None or own is None or not here.size else (float(here.mean()), float(own.mean()))


def _attention_kls(
    record: Record, arrays: Arrays, look: Look, at: int, other: int, layer: int, head: int
) -> tuple[float, float] | None:
    """Means over the steps that both the look and the run looked at."""
    seen, found = look
    own, here = array(arrays, f"lane/{at}/attention_kl"), array(found, f"lane/{other}/looked_kl")
    there, steps = record.capture.attention_steps, seen.capture.attention_steps
    both = [step for step in there if step in steps]
    if own is None or here is None or not both:
        return None
    recorded = own[[there.index(step) for step in both], layer, head].mean()
    return float(here[[steps.index(step) for step in both], head].mean()), float(recorded)


def _each(record: Record, arrays: Arrays, layer: int, head: int) -> list[Look]:
    """The run's own captures of a layer and head, where it has them, and those of every look."""
    own: list[Look] = [(record, arrays)] if keeps(record, layer, head) else []
    return [*own, *(_seen(record, arrays, look) for look in record.looks if keeps(look[0], layer, head))]


def _mapped(look: Look) -> int:
    """Lanes whose maps are there."""
    return sum(f"lane/{at}/delta_map" in look[1] for at in range(len(look[0].lanes)))


def _klds(record: Record, at: int, look: Record, other: int) -> tuple[float, float] | None:
    """Mean KLD of a lane in a look and as recorded."""
    here, own = look.lanes[other].metrics, record.lanes[at].metrics
    if here is None or own is None or here.kld_mean is None or own.kld_mean is None:
        return None
    return here.kld_mean, own.kld_mean


def _seen(record: Record, arrays: Arrays, look: Look) -> Look:
    seen, found = look
    pairs = _pairs(record, seen)
    names = [f"lane/{at}/{name}" for at in range(len(record.lanes)) for name in _OF_LANES]
    own: dict[str, Any] = {name: values for name, values in arrays.items() if name not in {*names, *_OF_RUN}}
    own |= {name: found[name] for name in _OF_RUN if name in found}
    for at, other in pairs.items():
        there = ((name, f"lane/{other}/{name}") for name in _OF_LANES)
        own |= {f"lane/{at}/{name}": found[key] for name, key in there if key in found}
        if (offset := array(found, f"lane/{other}/looked_offset")) is not None:
            every = np.zeros((record.environment.layers, *offset.shape), np.float32)
            every[seen.capture.layers] = offset
            own[f"lane/{at}/delta_offset"] = every
    return record.model_copy(update={"capture": seen.capture}), own


def _pairs(record: Record, look: Record) -> dict[int, int]:
    """Which of a look's lanes each lane of the run is: the same in all but its label."""
    asked, own = ([_unnamed(each, at) for at in range(len(each.lanes))] for each in (look, record))
    return {at: asked.index(lane) for at, lane in enumerate(own) if lane is not None and lane in asked}


def _unnamed(record: Record, index: int) -> Lane | None:
    lane = lane_of(record, index)
    return None if lane is None else lane.model_copy(update={"label": ""})
