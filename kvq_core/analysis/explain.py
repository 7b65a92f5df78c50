"""A lane's damage in plain words: where it concentrates, what it has in common, and the lane to try against it.

Rules over the record alone. A place is named when it stands out from the same lane's other places, never against an
absolute number, so that a lane with even damage is told to be even. What a lane leaves alone is not named, and what a
method does is what it declares. Lanes of the run are named for what was measured of them (``neighbours``).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from kvq_core.analysis.neighbours import (
    better_lane,
    better_lane_sentence,
    cost_most,
    neighbour_offer,
    setting_cost,
    setting_cost_sentence,
)
from kvq_core.analysis.plans import lane_plan
from kvq_core.analysis.reached import positions_read
from kvq_core.analysis.verdict import MIN_SCORED, verdict
from kvq_core.methods import Method, methods
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record, RuleRecord, Tensors
from kvq_core.spec import Lane

STANDS_OUT = 3.0  # times the median head of the lane
LARGE_CHANNEL = 6.0  # times the rms of the head's median channel
COARSE = 2.0  # times the median head's relative error of its median channel: an outlier's scale is shared
SINK_SHIFT = 0.02  # attention mass that left or joined the first tokens, mean over heads
EARLY = 3.0  # times the median bucket's score error, at the first tokens


@dataclass(frozen=True)
class Explanation:
    """Sentences for people; ``suggestion`` is a lane to compare with, ``because`` why it helps."""

    sentences: tuple[str, ...]
    suggestion: Lane | None = None
    because: str = ""


@dataclass(frozen=True)
class _Place:
    """A layer and KV head whose damage stands out; ``times`` the lane's median head."""

    kind: str  # keys or values
    layer: int
    head: int
    times: float
    channels: tuple[int, ...] = ()  # of the keys there, far larger than the others
    channel_times: float = 0.0
    coarse: bool = False  # its ordinary channels lost more than ordinary channels elsewhere

    def named(self) -> str:
        return f"layer {self.layer}, KV head {self.head}"


def explain(record: Record, arrays: Arrays, index: int) -> Explanation:
    """Why lane ``index`` suffers, if it does, and what to compare it with; empty without enough scored positions."""
    lane = record.lanes[index]
    m = lane.metrics
    unfit = lane.status == "failed" or {"never_engaged", "nan"} & set(lane.flags)
    if unfit or m is None or m.kld_mean is None or m.n_scored < MIN_SCORED:
        return Explanation(())
    other = setting_cost(record, index)
    costly = cost_most(lane, other)
    places = [*_places(record, arrays, index, costly)]
    sentences = [_where(places)] if places else []
    sentences += [_channels(record, arrays, index, place) for place in places if place.channels and place.coarse]
    if "keys" in costly and (depth := _depth(record, arrays, index)):
        sentences.append(depth)
    if not sentences:
        sentences.append("The damage is spread evenly: no layer or head stands out from the others.")
    if record.stress is not None:
        sentences.append(_under_stress(record, arrays, index, places))
    if verdict(record, arrays, index).word == "close":
        return Explanation(tuple(sentences))
    if other is not None:
        sentences.append(setting_cost_sentence(lane, other))
    if (best := better_lane(record, index)) is not None and (other is None or best is not other.lane):
        sentences.append(better_lane_sentence(best))
    return Explanation(tuple(sentences), *neighbour_offer(record, lane, other))


def _places(record: Record, arrays: Arrays, index: int, kinds: Tensors) -> Iterator[_Place]:
    """Heads whose score error (keys) or relative error (values) stands out, worst first, two of a kind at most."""
    for kind in kinds:
        grid = _grid(record, arrays, index, kind)
        if grid is None:
            continue
        typical = _median(grid)
        for flat in np.argsort(-grid, axis=None)[:2]:
            layer, head = (int(i) for i in np.unravel_index(flat, grid.shape))
            times = float(grid[layer, head]) / typical if typical else 0.0
            if times >= STANDS_OUT:
                found = _Place(kind, layer, head, times)
                yield _with_channels(found, record, arrays, index) if kind == "keys" else found


def _grid(record: Record, arrays: Arrays, index: int, kind: str) -> np.ndarray | None:
    """Damage by layer and KV head, 0 in layers the lane leaves alone: there, other layers' errors pass through."""
    env = record.environment
    if kind == "values":
        grid = array(arrays, f"lane/{index}/value_error")
    else:  # what the keys alone do to the scores, where it was captured
        alone, scores = (array(arrays, f"lane/{index}/{name}") for name in ("delta_by_keys", "delta_mean"))
        by_head = alone.mean(0) if alone is not None and alone.size else None
        if by_head is None and scores is not None and scores.size:
            by_head = scores.mean(-1)
        grid = None if by_head is None else by_head.reshape(env.layers, env.kv_heads, -1).mean(-1)
    layers = _layers(record, index, kind)
    if grid is not None and layers is not None:
        grid = np.where(np.isin(np.arange(len(grid)), layers)[:, None], grid, 0)
    return grid


def _layers(record: Record, index: int, kind: str) -> list[int] | None:
    """Layers whose keys, or values, the lane quantizes; None for all."""
    lane = record.lanes[index]
    plan = lane_plan(record, index) if len(lane.every_rule) > 1 else None
    if plan is not None:
        return [layer for assigned in plan if assigned.tensor == kind for layer in assigned.layers]
    return None if isinstance(lane.layers, str) else list(lane.layers)


def _with_channels(place: _Place, record: Record, arrays: Arrays, index: int) -> _Place:
    """The place with its outlying key channels, where the lane's channels share scales and its error there shows it."""
    energy, relative = array(arrays, "reference/key_channel_energy"), _ordinary_loss(arrays, index)
    if energy is None or relative is None or _key_scales(record.lanes[index]) != "channels":
        return place
    own = np.sqrt(energy[place.layer, place.head])
    typical = np.median(own)
    large = [int(c) for c in np.argsort(-own) if own[c] > LARGE_CHANNEL * typical][:4]
    times = float(own[large[0]] / typical) if large else 0.0
    coarse = _is_coarse(relative, place)
    return _Place(place.kind, place.layer, place.head, place.times, tuple(sorted(large)), times, coarse)


def _ordinary_loss(arrays: Arrays, index: int) -> np.ndarray | None:
    """Relative error of each head's median key channel: outliers are few, so the median is an ordinary one."""
    energy = array(arrays, "reference/key_channel_energy")
    error = array(arrays, f"lane/{index}/key_channel_error")
    if energy is None or error is None:
        return None
    return np.median(np.sqrt(error / np.maximum(energy, 1e-30)), -1)


def _is_coarse(relative: np.ndarray, place: _Place) -> bool:
    return float(relative[place.layer, place.head]) > COARSE * _median(relative)


def _where(places: list[_Place]) -> str:
    """Of keys and of values apart: it is another question which of the two costs more."""
    told = []
    for kind in dict.fromkeys(place.kind for place in places):
        own = [f"{p.named()} ({p.times:.1f} times the lane's median head)" for p in places if p.kind == kind]
        told.append(f"{kind.removesuffix('s')} errors concentrate in {' and '.join(own)}")
    said = "; ".join(told)
    return f"{said[:1].upper()}{said[1:]}."


def _channels(record: Record, arrays: Arrays, index: int, place: _Place) -> str:
    half = record.environment.head_dim // 2
    names = []
    for channel in place.channels:
        if channel >= half and channel - half in place.channels:
            continue  # told with its partner: RoPE turns the two together
        names.append(f"{channel}/{channel + half}" if channel + half in place.channels else str(channel))
    said = (
        f"In layer {place.layer}, KV head {place.head}, key channels {', '.join(names)} are up to "
        f"{place.channel_times:.0f} times as large as the median channel, and the ordinary channels beside them lost "
        "more than elsewhere: they share a scale with these outliers."
    )
    for at, other in enumerate(record.lanes):
        relative = _ordinary_loss(arrays, at)
        apart = "keys" in other.quantized and _key_scales(other) == "tokens"
        if at != index and apart and relative is not None and not _is_coarse(relative, place):
            return f"{said} Lane {other.label!r} gives every key channel scales of its own and has no such loss there."
    return said


def _key_scales(lane: LaneRecord) -> str | None:
    """Along what the elements of keys that share a scale lie, as all methods of its keys declare it; None: neither, or
    unknown."""
    known = [methods().get(rule.method) for rule in lane.rules_for("keys")]
    # not its parent's: it may store otherwise
    found = {vars(cls).get("scales", Method.scales)[0] if cls else None for cls in known if not cls or cls.quantizes}
    return found.pop() if len(found) == 1 else None


def _sinks(lane: LaneRecord) -> int:
    """First keys the lane keeps in fp16 in every layer."""
    kept = (_sinks_of(rule) for rule in lane.rules_for("keys"))
    return min((sinks for sinks in kept if sinks is not None), default=0)


def _sinks_of(rule: RuleRecord) -> int | None:
    """First keys a rule keeps in fp16; None where it keeps all."""
    known = methods().get(rule.method)
    if known is not None and not known.quantizes:
        return None
    try:
        own = known.model_validate(rule.knobs).windows()[0].sink if known else 0
    except ValidationError:  # a run of an older version, whose method had other knobs
        own = 0
    return max(own, rule.sink_tokens or 0)


def _depth(record: Record, arrays: Arrays, index: int) -> str:
    """Whether the first tokens bear the damage."""
    error, sink = array(arrays, f"lane/{index}/depth_score_error"), array(arrays, f"lane/{index}/sink_mass")
    if error is None or sink is None or not sink.size:
        return ""
    buckets = max(0, len(positions_read(record, record.capture.depth_edges)) - 1)
    by_depth = error.mean((0, 1))[:buckets]
    early = len(by_depth) > 2 and by_depth[0] > EARLY * max(float(np.median(by_depth)), 1e-9)
    shift = float(sink.mean())
    if abs(shift) < SINK_SHIFT and not early:
        return ""
    moved = "lost" if shift < 0 else "gained"
    told = [f"the first tokens {moved} {abs(shift):.1%} of all attention"] if abs(shift) >= SINK_SHIFT else []
    told += ["score errors are largest at the beginning of the context"] if early else []
    kept = _sinks(record.lanes[index])
    keeps = f"though this lane keeps the first {kept} in fp16" if kept else "this lane keeps no first tokens in fp16"
    return f"{' and '.join(told).capitalize()}; {keeps}."


def _under_stress(record: Record, arrays: Arrays, index: int, places: list[_Place]) -> str:
    stress = record.stress
    assert stress is not None
    if "keys" not in record.lanes[index].quantized:
        return "The stress is on keys, which this lane leaves alone."
    hit = [p for p in places if p.kind == "keys" and p.layer in stress.layers and p.head in stress.kv_heads]
    whole = len(stress.layers) == record.environment.layers and len(stress.kv_heads) == record.environment.kv_heads
    if whole:
        told = "Every head of this run is stressed; the reference is that of a run without stress, so compare the two."
        return f"{told} {_shared_scale(record.lanes[index], arrays, index)}".strip()
    if hit:
        return f"This run is stressed in {hit[0].named()}: the damage found there is its doing."
    return "The stressed heads of this run do not stand out: this lane is not hurt by the stress."


def _shared_scale(lane: LaneRecord, arrays: Arrays, index: int) -> str:
    """Whether outlying key channels take the others' precision: then these lose a larger share of themselves."""
    energy = array(arrays, "reference/key_channel_energy")
    error = array(arrays, f"lane/{index}/key_channel_error")
    if energy is None or error is None:
        return ""
    large = energy > LARGE_CHANNEL**2 * np.median(energy, -1, keepdims=True)
    relative = np.sqrt(error / np.maximum(energy, 1e-30))
    lost = float(np.median(relative[large])) if large.any() else 0.0
    if not lost:
        return ""
    times, scales = float(np.median(relative[~large])) / lost, _key_scales(lane)
    if times > COARSE:
        why = ": they share scales" if scales == "channels" else ""
        return f"Ordinary key channels lose {times:.0f} times as much of themselves as outlying ones{why}."
    why = ": each has a scale of its own" if scales == "tokens" else ""
    return f"Outlying key channels lose as much of themselves as the others{why}."


def _median(grid: np.ndarray) -> float:
    """Over the places with any damage at all: layers a lane leaves alone are no measure."""
    held = grid[grid > 0]
    return float(np.median(held)) if held.size else 0.0
