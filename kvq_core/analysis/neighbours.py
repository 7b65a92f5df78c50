"""Lanes of a run compared with one another: which setting costs a lane most, and the wider lane to try instead."""

from dataclasses import dataclass
from typing import Any

from kvq_core.errors import KvqError
from kvq_core.methods import knobs, methods
from kvq_core.record.fields import LaneRecord, Record, Tensors
from kvq_core.spec import LANE_OPTIONS, READ_OPTIONS, TENSORS, Lane, in_words

HALF = 0.5  # of a lane's mean KLD: what another has to stay below to be named


@dataclass(frozen=True)
class SettingCost:
    """A lane that differs from another in one setting and moves the distribution less than half as much."""

    setting: str  # keys, values: how they are stored; else the name of a knob or an option
    lane: LaneRecord


def setting_cost(record: Record, index: int) -> SettingCost | None:
    """The smallest lane that shows what one setting costs lane ``index``."""
    own, kld = _settings(record.lanes[index]), _size_and_kld(record.lanes[index])[1]
    found = []
    for other in record.lanes:
        theirs = _settings(other)
        differ = [name for name in dict.fromkeys([*own, *theirs]) if own.get(name) != theirs.get(name)]
        size, moved = _size_and_kld(other)
        if len(differ) == 1 and moved < HALF * kld:
            found.append((size, moved, SettingCost(differ[0], other)))
    return min(found, key=lambda each: each[:2])[2] if found else None


def cost_most(lane: LaneRecord, other: SettingCost | None) -> Tensors:
    """What its damage comes from as far as this is known: of keys and values those it quantizes, or the one that
    another lane of the run shows to cost most."""
    if other is not None and other.setting in lane.quantized:
        return tuple(tensor for tensor in lane.quantized if tensor == other.setting)
    return lane.quantized


def better_lane(record: Record, index: int) -> LaneRecord | None:
    """The best lane of the run that stores no more than this one and moves the distribution less than half as much."""
    size, kld = _size_and_kld(record.lanes[index])
    found = [(*_size_and_kld(other), i) for i, other in enumerate(record.lanes) if i != index]
    best = [(moved, i) for stored, moved, i in found if stored <= size * 1.02 and moved < HALF * kld]
    return record.lanes[min(best)[1]] if best else None


def setting_cost_sentence(lane: LaneRecord, other: SettingCost) -> str:
    (size, kld), (small, less) = _size_and_kld(lane), _size_and_kld(other.lane)
    setting = f"the {other.setting}" if other.setting in lane.quantized else other.setting.replace("_", " ")
    return (
        f"Lane {other.lane.label!r} differs in {setting} alone: mean KLD {less:.2g} instead of {kld:.2g} nats, at "
        f"{small:.1%} of the fp16 cache instead of {size:.1%}."
    )


def better_lane_sentence(best: LaneRecord) -> str:
    return (
        f"Compare lane {best.label!r}: {_size_and_kld(best)[0]:.1%} of the fp16 cache and less than half the mean KLD."
    )


def neighbour_offer(record: Record, lane: LaneRecord, other: SettingCost | None) -> tuple[Lane | None, str]:
    """A lane to add whose gain is certain, and why: the same with wider codes for what costs most. None where the run
    has it, or the method has no such knob."""
    tensors = cost_most(lane, other)
    found = _wider(lane, tensors)
    if found is None or _held(record, found):
        return None, ""
    if len(lane.quantized) == 1:
        return found, f"wider codes for the {tensors[0]}, which are all it quantizes"
    if len(tensors) == 1 and other is not None:
        return found, f"wider codes for the {tensors[0]}; lane {other.lane.label!r} shows that they cost most"
    return found, "wider codes for keys and values; no lane of this run shows which of them costs more"


def _settings(lane: LaneRecord) -> dict[str, Any]:
    """All that decides a lane's cache: the widths of keys and of values, and every other knob and option; of several
    rules those for keys and those for values."""
    if lane.knobs is None:
        return {tensor: [rule.model_dump() for rule in lane.rules_for(tensor)] for tensor in TENSORS}
    own = dict(lane.knobs)
    common, widths = own.pop("bits", None), {}
    for tensor in ("key", "value"):
        width = own.pop(f"{tensor}_bits", None)
        stored = common if width is None else width
        widths[f"{tensor}s"] = stored if f"{tensor}s" in lane.quantized else "fp16"
    layers = lane.layers if isinstance(lane.layers, str) else tuple(lane.layers)
    options = {name: getattr(lane, name) for name in LANE_OPTIONS if name != "tensors"} | {"layers": layers}
    read = {name: getattr(lane, name) for name in READ_OPTIONS}
    return {"method": lane.method, **read, **widths, **options, **own}


def _wider(lane: LaneRecord, tensors: Tensors) -> Lane | None:
    """The lane with the next wider codes for some of what it quantizes, where the method has such knobs."""
    if not tensors or lane.knobs is None or lane.method is None or lane.method not in methods():
        return None
    known, settings, said = {knob.name: knob for knob in knobs(methods()[lane.method])}, dict(lane.knobs), []
    apart = settings.get("key_bits") is not None or settings.get("value_bits") is not None or tensors != lane.quantized
    for name, tensor in [(f"{t.removesuffix('s')}_bits", f"{t} ") for t in tensors] if apart else [("bits", "")]:
        now = settings.get(name) or settings.get("bits")
        choices = (known[name].choices if name in known else None) or ()
        width = next((w for w in choices if isinstance(w, int) and now is not None and w > now), None)
        if width is None:
            return None
        settings[name] = width
        said.append(f"{tensor}{width}-bit")
    return _lane(f"{lane.label}, {' and '.join(said)}", settings, lane)


def _lane(label: str, settings: dict[str, Any], like: LaneRecord) -> Lane | None:
    """A lane with the options of another; knobs that an option sets are left to it. None where that is no lane."""
    if like.method is None or like.method not in methods():  # it is gone since the run was stored
        return None
    knobs = methods()[like.method].window_knobs()
    read = {"prefill": in_words(like.prefill)}
    options = {name: getattr(like, name) for name in (*LANE_OPTIONS, *READ_OPTIONS)} | read
    left = {knobs.get(name) for name, value in options.items() if value is not None}
    try:
        lane = Lane(
            label=label[:60],
            method=like.method,
            knobs={k: v for k, v in settings.items() if k not in left},
            **options,
        )
        lane.build()
    except (ValueError, KvqError):  # pydantic's and this project's refusals
        return None
    return lane


def _size_and_kld(lane: LaneRecord) -> tuple[float, float]:
    """Share of the fp16 cache and mean KLD, infinite where a lane has none."""
    m, memory = lane.metrics, lane.memory
    if lane.status == "failed" or memory is None or m is None or m.kld_mean is None:
        return float("inf"), float("inf")
    return memory.held_ratio, m.kld_mean


def _held(record: Record, lane: Lane) -> bool:
    """Whether the run already has this lane, under whatever label."""
    built, names = lane.build().model_dump(mode="json"), ("method", *LANE_OPTIONS, *READ_OPTIONS)
    mine = lane.model_dump(mode="json", include={*names}) | {"prefill": in_words(lane.prefill)}
    for other in record.lanes:
        layers = other.layers if isinstance(other.layers, str) else list(other.layers)
        read = {"layers": layers, "prefill": in_words(other.prefill)}
        if other.knobs == built and mine == {name: getattr(other, name) for name in names} | read:
            return True
    return False
