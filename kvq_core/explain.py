"""A lane's damage in plain words: where it concentrates, what it has in common, and the lane to try against it.

Rules over the record alone. A place is named when it stands out from the same lane's other places, never against an
absolute number, so that a lane with even damage is told to be even.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvq_core.errors import KvqError
from kvq_core.methods import methods
from kvq_core.record import LaneRecord, Record
from kvq_core.spec import Lane
from kvq_core.verdict import MIN_SCORED, verdict

Arrays = Mapping[str, Any]
STANDS_OUT = 3.0  # times the median head of the lane
LARGE_CHANNEL = 6.0  # times the rms of the head's median channel
COARSE = 2.0  # times the median head's relative error of its median channel: an outlier's scale is shared
SINK_SHIFT = 0.02  # attention mass that left or joined the first tokens, mean over heads
EARLY = 3.0  # times the median bucket's score error, at the first tokens
WIDTHS = (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Explanation:
    """Sentences for people; ``suggestion`` is a lane to compare with, ``because`` why it would help."""

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
        return f"layer {self.layer}, KV head {self.head}, {self.kind}"


def explain(record: Record, arrays: Arrays, index: int) -> Explanation:
    """Why lane ``index`` suffers, if it does, and what to compare it with; empty without enough scored positions."""
    lane = record.lanes[index]
    m = lane.metrics
    unfit = lane.status == "failed" or {"never_engaged", "nan"} & set(lane.flags)
    if unfit or m is None or m.kld_mean is None or m.n_scored < MIN_SCORED:
        return Explanation(())
    places = [*_places(record, arrays, index)]
    sentences = [_where(places)] if places else []
    sentences += [_channels(record, place) for place in places if place.channels and place.coarse]
    depth = _depth(arrays, index)
    if depth:
        sentences.append(depth)
    if not sentences:
        sentences.append("The damage is spread evenly: no layer, head or depth stands out from the others.")
    if record.stress is not None:
        sentences.append(_under_stress(record, arrays, index, places))
    if verdict(lane).word == "close":
        return Explanation(tuple(sentences))
    return _with_suggestion(record, arrays, index, tuple(sentences), places, bool(depth))


def _places(record: Record, arrays: Arrays, index: int) -> Iterator[_Place]:
    """Heads whose score error (keys) or relative error (values) stands out, worst first, two of a kind at most."""
    env = record.environment
    scores = _array(arrays, f"lane/{index}/delta_mean")
    values = _array(arrays, f"lane/{index}/value_error")
    grids = []
    if scores is not None and scores.size:
        grids.append(("keys", scores.mean(-1).reshape(env.layers, env.kv_heads, -1).mean(-1)))
    if values is not None:
        grids.append(("values", values))
    for kind, grid in grids:
        typical = _median(grid)
        for flat in np.argsort(-grid, axis=None)[:2]:
            layer, head = (int(i) for i in np.unravel_index(flat, grid.shape))
            times = float(grid[layer, head]) / typical if typical else 0.0
            if times >= STANDS_OUT:
                found = _Place(kind, layer, head, times)
                yield _with_channels(found, arrays, index) if kind == "keys" else found


def _with_channels(place: _Place, arrays: Arrays, index: int) -> _Place:
    """The place with its outlying key channels, if the lane's error there shows that others share their scale."""
    energy = _array(arrays, "reference/key_channel_energy")
    error = _array(arrays, f"lane/{index}/key_channel_error")
    if energy is None or error is None:
        return place
    own = np.sqrt(energy[place.layer, place.head])
    typical = np.median(own)
    large = [int(c) for c in np.argsort(-own) if own[c] > LARGE_CHANNEL * typical][:4]
    # relative error of each head's median channel: outliers are few, so the median is an ordinary one
    relative = np.median(np.sqrt(error / np.maximum(energy, 1e-30)), -1)
    coarse = float(relative[place.layer, place.head]) > COARSE * _median(relative)
    times = float(own[large[0]] / typical) if large else 0.0
    return _Place(place.kind, place.layer, place.head, place.times, tuple(sorted(large)), times, coarse)


def _where(places: list[_Place]) -> str:
    told = "; ".join(f"{place.named()} ({place.times:.1f} times the lane's median head)" for place in places)
    return f"Errors concentrate in {told}."


def _channels(record: Record, place: _Place) -> str:
    half = record.environment.head_dim // 2
    names = []
    for channel in place.channels:
        if channel >= half and channel - half in place.channels:
            continue  # told with its partner: RoPE turns the two together
        names.append(f"{channel}/{channel + half}" if channel + half in place.channels else str(channel))
    return (
        f"In layer {place.layer}, KV head {place.head}, key channels {', '.join(names)} are up to "
        f"{place.channel_times:.0f} times as large as the median channel, and the ordinary channels beside them lost "
        "more than elsewhere: they share a scale with these outliers. Per-channel grouping would keep them apart."
    )


def _depth(arrays: Arrays, index: int) -> str:
    """Whether the first tokens bear the damage."""
    error, sink = _array(arrays, f"lane/{index}/depth_score_error"), _array(arrays, f"lane/{index}/sink_mass")
    if error is None or sink is None or not sink.size:
        return ""
    by_depth = error.mean((0, 1))
    early = len(by_depth) > 2 and by_depth[0] > EARLY * max(float(np.median(by_depth)), 1e-9)
    shift = float(sink.mean())
    if abs(shift) < SINK_SHIFT and not early:
        return ""
    moved = "lost" if shift < 0 else "gained"
    told = [f"the first tokens {moved} {abs(shift):.1%} of all attention"] if abs(shift) >= SINK_SHIFT else []
    told += ["score errors are largest at the beginning of the context"] if early else []
    return f"{' and '.join(told).capitalize()}: a sink window that keeps the first tokens in fp16 would help."


def _under_stress(record: Record, arrays: Arrays, index: int, places: list[_Place]) -> str:
    stress = record.stress
    assert stress is not None
    hit = [p for p in places if p.layer in stress.layers and p.head in stress.kv_heads]
    whole = len(stress.layers) == record.environment.layers and len(stress.kv_heads) == record.environment.kv_heads
    if whole:
        told = "Every head of this run is stressed; the reference is that of a run without stress, so compare the two."
        return f"{told} {_shared_scale(arrays, index)}".strip()
    if hit:
        return f"This run is stressed in {hit[0].named().rsplit(',', 1)[0]}: the damage found there is its doing."
    return "The stressed heads of this run do not stand out: this lane is not hurt by the stress."


def _shared_scale(arrays: Arrays, index: int) -> str:
    """Whether outlying key channels take the others' precision: then these lose a larger share of themselves."""
    energy = _array(arrays, "reference/key_channel_energy")
    error = _array(arrays, f"lane/{index}/key_channel_error")
    if energy is None or error is None:
        return ""
    large = energy > LARGE_CHANNEL**2 * np.median(energy, -1, keepdims=True)
    relative = np.sqrt(error / np.maximum(energy, 1e-30))
    lost = float(np.median(relative[large])) if large.any() else 0.0
    if not lost:
        return ""
    times = float(np.median(relative[~large])) / lost
    if times > COARSE:
        return (
            f"Ordinary key channels lose {times:.0f} times as much of themselves as outlying ones: they share scales."
        )
    return "Outlying key channels lose as much of themselves as the others: each has a scale of its own."


def _with_suggestion(
    record: Record, arrays: Arrays, index: int, sentences: tuple[str, ...], places: list[_Place], early: bool
) -> Explanation:
    better = _better(record, index)
    if better is not None and better.memory is not None:
        size = f"{better.memory.kv_ratio:.1%} of the fp16 cache"
        sentences += (f"Compare lane {better.label!r}: {size} and less than half the mean KLD.",)
    for suggestion, because in _suggestions(record, arrays, index, places, early):
        if suggestion is not None and not _held(record, suggestion):
            return Explanation(sentences, suggestion, because)
    return Explanation(sentences)


def _suggestions(
    record: Record, arrays: Arrays, index: int, places: list[_Place], early: bool
) -> Iterator[tuple[Lane | None, str]]:
    """Lanes that answer what was found, the most telling first."""
    lane = record.lanes[index]
    if lane.method not in methods():  # it is gone since the run was stored
        return
    if any(place.channels and place.coarse for place in places):
        bits = next((lane.knobs[name] for name in ("key_bits", "bits") if lane.knobs.get(name)), 4)
        yield (
            _lane(f"KIVI {bits}-bit", "kivi", {"bits": bits}, lane),
            "it groups the keys by channel, so that an outlying channel has a scale of its own",
        )
    if early and not lane.sink_tokens and not lane.knobs.get("sink_tokens"):
        yield _changed(lane, "32 sinks", sink_tokens=32), "it keeps the first 32 tokens in fp16"
    if places and len({place.layer for place in places}) == 1 and record.environment.layers > 1:
        worst = places[0].layer
        if isinstance(lane.layers, str):
            rest = tuple(i for i in range(record.environment.layers) if i != worst)
            yield _changed(lane, f"layer {worst} fp16", layers=rest), f"it leaves layer {worst} in fp16"
    kl, key, value = (_array(arrays, f"lane/{index}/{n}") for n in ("attention_kl", "key_error", "value_error"))
    if lane.tensors == "both" and key is not None and value is not None:
        keys_first = bool(kl is not None and kl.size and kl.mean() > 0.02) or key.mean() > value.mean()
        tensor = "key" if keys_first else "value"
        yield (
            _wider(lane, tensor),
            f"attention {'moves' if keys_first else 'hardly moves'}: bits help the {tensor}s most",
        )


def _wider(lane: LaneRecord, tensor: str) -> Lane | None:
    """The lane with the next wider codes for its keys or its values, where the method has such knobs."""
    now = lane.knobs.get(f"{tensor}_bits") or lane.knobs.get("bits")
    if f"{tensor}_bits" not in methods()[lane.method].model_fields or now not in WIDTHS[:-1]:
        return None
    for wider in WIDTHS[WIDTHS.index(now) + 1 :]:
        found = _lane(
            f"{lane.label}, {tensor}s {wider}-bit", lane.method, {**lane.knobs, f"{tensor}_bits": wider}, lane
        )
        if found is not None:
            return found
    return None


def _lane(label: str, method: str, knobs: dict[str, Any], like: LaneRecord) -> Lane | None:
    """A lane with the options of another; None where the method does not allow these knobs."""
    try:
        return Lane(label=label[:60], method=method, knobs=knobs, tensors=like.tensors, layers=like.layers)  # type: ignore[arg-type]
    except (ValueError, KvqError):  # pydantic's and this project's refusals
        return None


def _changed(lane: LaneRecord, what: str, **options: Any) -> Lane | None:
    """The lane itself with other lane options; knobs an option sets are left to it."""
    means = {
        (info.json_schema_extra or {}).get("means"): name  # type: ignore[union-attr]
        for name, info in methods()[lane.method].model_fields.items()
    }
    given = {
        "sink_tokens": lane.sink_tokens, "recent_tokens": lane.recent_tokens, "layers": lane.layers,
        "tensors": lane.tensors, **options,
    }  # fmt: skip
    knobs = {k: v for k, v in lane.knobs.items() if k not in {means.get(o) for o, set_to in given.items() if set_to}}
    try:
        return Lane(label=f"{lane.label}, {what}"[:60], method=lane.method, knobs=knobs, **given)
    except (ValueError, KvqError):
        return None


def _better(record: Record, index: int) -> LaneRecord | None:
    """The best lane of the run that stores no more than this one and moves the distribution less than half as much."""
    size, kld = _size_and_kld(record.lanes[index])
    found = [(*_size_and_kld(other), i) for i, other in enumerate(record.lanes) if i != index]
    better = [(own_kld, i) for own_size, own_kld, i in found if own_size <= size * 1.02 and own_kld < kld / 2]
    return record.lanes[min(better)[1]] if better else None


def _size_and_kld(lane: LaneRecord) -> tuple[float, float]:
    """Share of the fp16 cache and mean KLD, infinite where a lane has none."""
    m, memory = lane.metrics, lane.memory
    if lane.status == "failed" or memory is None or m is None or m.kld_mean is None:
        return float("inf"), float("inf")
    return memory.kv_ratio, m.kld_mean


def _held(record: Record, lane: Lane) -> bool:
    """Whether the run already has this lane, under whatever label."""
    same = ("tensors", "layers", "sink_tokens", "recent_tokens")
    built = lane.build().model_dump(mode="json")
    for other in record.lanes:
        layers = other.layers if isinstance(other.layers, str) else tuple(other.layers)
        mine = {name: getattr(lane, name) for name in same}
        theirs = {name: getattr(other, name) for name in same} | {"layers": layers}
        if other.method == lane.method and other.knobs == built and mine == theirs:
            return True
    return False


def _array(arrays: Arrays, name: str) -> np.ndarray | None:
    if name not in arrays:
        return None
    found = arrays[name]
    raw = found.float().numpy() if hasattr(found, "numpy") else np.asarray(found, dtype=np.float32)
    return np.nan_to_num(raw.astype(np.float32))


def _median(grid: np.ndarray) -> float:
    """Over the places with any damage at all: layers a lane leaves alone are no measure."""
    held = grid[grid > 0]
    return float(np.median(held)) if held.size else 0.0
