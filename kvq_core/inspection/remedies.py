"""What helps keys that are stored per token: each remedy is a lane, measured beside the lane without it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from kvq_core.engine.decode import Decode
from kvq_core.engine.fidelity import Fidelity
from kvq_core.engine.lane_state import LaneState
from kvq_core.inspection.report import Remedy, spans
from kvq_core.methods import ModelShape
from kvq_core.sizing.count import PlannedCache
from kvq_core.spec import Lane

BYTES_AT = 4_096  # tokens of the context that bytes are told for
_FILLING = 64  # contexts up to that one among which windows are once at their fullest
_GROUP = 32  # channels, or as many of them as divide a head
PLAIN = "Keys per token, 4 bits"
CENTRED = "Centre the keys"


def plain_lane(shape: ModelShape) -> Lane:
    """The lane that is remedied."""
    group = gcd(_GROUP, shape.head_dim)
    knobs = {"bits": 4, "residual_length": 0, **({} if group == _GROUP else {"group_size": group})}
    return Lane(label=PLAIN, method="per_token", knobs=knobs, tensors="keys")


def remedy_lanes(shape: ModelShape, at_risk: Iterable[int] = ()) -> dict[str, Lane]:
    """Lanes by what they change of the plain one; exempting layers is one where any are at risk, and any are left."""
    plain = plain_lane(shape)
    lanes = {
        CENTRED: _changed(plain, center="mean"),
        "Keys per channel": _changed(plain, method="per_channel", knobs={"bits": 4}),
        "8-bit keys": _changed(plain, knobs={**plain.knobs, "bits": 8}),
    }
    exempt = sorted(at_risk)
    if exempt and (left := tuple(layer for layer in shape.full if layer not in exempt)):
        lanes[f"{layer_words(exempt)} in fp16"] = _changed(plain, layers=left)
    return {name: lane.model_copy(update={"label": name}) for name, lane in lanes.items()}


def _changed(plain: Lane, **changes: object) -> Lane:
    return Lane.model_validate({**plain.model_dump(), "label": "", **changes})


def layer_words(layers: Sequence[int]) -> str:
    """``Layers 0-2, 8`` or ``Layer 4``."""
    return f"{'Layer' if len(layers) == 1 else 'Layers'} {spans(layers)}"


@dataclass(frozen=True)
class MeasuredRemedy:
    """KLD of a lane over the forced tokens, in nats."""

    lane: Lane
    kld: float

    def extra(self, plain: "MeasuredRemedy", shape: ModelShape, tokens: int) -> tuple[int, int]:
        """Bytes stored beyond the plain lane's for a context, at most, with windows at their fullest; and those of them
        that are stored once, whatever the context."""
        lengths = range(tokens - _FILLING + 1, tokens + 1)
        caches = [PlannedCache(each.lane, shape) for each in (self, plain)]
        own, other = ([cache.more(n, n) for n in lengths] for cache in caches)
        more = max(a.block + a.once - b.block - b.once for a, b in zip(own, other, strict=True))
        return round(more), round(own[-1].once - other[-1].once)


def measured_lanes(decode: Decode, fidelity: Fidelity, shape: ModelShape) -> dict[str, MeasuredRemedy | str]:
    """Every lane of a finished decode by its label; why it failed, where it did."""
    return dict(_each(decode.states, decode.states_running, fidelity, shape))


def _each(
    states: Sequence[LaneState], running: Sequence[LaneState], fidelity: Fidelity, shape: ModelShape
) -> Iterator[tuple[str, MeasuredRemedy | str]]:
    for state in states:
        name = state.lane.label
        if state.error or state.cache is None:
            yield name, state.error or "it could not be set up"
            continue
        kld = fidelity.column("kld", running.index(state)).double().mean().item()
        yield name, MeasuredRemedy(state.lane, kld)


def remedy(name: str, lane: Lane, found: MeasuredRemedy | str, plain: MeasuredRemedy, shape: ModelShape) -> Remedy:
    """One remedy as data."""
    told = lane.model_dump(mode="json", exclude_defaults=True)
    if isinstance(found, str):
        return Remedy(name=name, lane=told, kld=None, extra_bytes=None, refused=found)
    extra, fixed = found.extra(plain, shape, BYTES_AT)
    return Remedy(name=name, lane=told, kld=found.kld, extra_bytes=extra, fixed_bytes=fixed)
