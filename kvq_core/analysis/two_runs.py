"""Two stored runs beside each other: what was asked differently, which lanes belong together, what is not fair."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from kvq_core.analysis.two_specs import Change, field_changes, paired
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.spec import LANE_OPTIONS, READ_OPTIONS

# Of the environment: what decides a run's figures beside its spec.
_CONDITIONS = ("weights_hash", "device", "dtype", "attention")
_LANE = ("label", "method", *READ_OPTIONS, *LANE_OPTIONS)


@dataclass(frozen=True)
class LanePair:
    """Lanes that belong together: by label, else because they are the same cache; one of them None where none does."""

    one: LaneRecord | None
    other: LaneRecord | None

    @property
    def label(self) -> str:
        labels = [lane.label for lane in (self.one, self.other) if lane is not None]
        return " / ".join(dict.fromkeys(labels))


@dataclass(frozen=True)
class Versus:
    changes: tuple[Change, ...]
    pairs: tuple[LanePair, ...]
    same_tokens: int  # first tokens of the reference texts that are equal
    same_text: bool
    unfair: tuple[str, ...]  # why figures of the two must not be ranked against each other; empty: they may


def versus(one: Record, other: Record) -> Versus:
    """What tells two runs apart."""
    pairs = _pairs(one, other)
    tokens = zip(one.reference.token_ids, other.reference.token_ids, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], tokens))
    same_text = one.reference.token_ids == other.reference.token_ids
    changes = (
        *field_changes(one.spec, other.spec),
        *_under(one, other),
        *(c for pair in pairs for c in _of_lane(pair)),
    )
    return Versus(changes, pairs, same, same_text, tuple(_unfair(one, other, same, same_text)))


def _under(one: Record, other: Record) -> Iterator[Change]:
    for name in _CONDITIONS:
        a, b = getattr(one.environment, name), getattr(other.environment, name)
        if a != b:
            yield Change(name, a, b)
    if one.environment.weights_hash == other.environment.weights_hash and _configured_otherwise(one, other):
        yield Change("model_hash", one.environment.model_hash, other.environment.model_hash)
    if one.results_version != other.results_version:
        yield Change("results_version", one.results_version, other.results_version)


def _of_lane(pair: LanePair) -> Iterator[Change]:
    if pair.one is None or pair.other is None:
        one, other = (lane and (lane.method or lane.title) for lane in (pair.one, pair.other))
        yield Change(f"lane {pair.label}", one, other)
        return
    told = [_told(lane) for lane in (pair.one, pair.other)]
    for name in dict.fromkeys([*told[0], *told[1]]):
        if told[0].get(name) != told[1].get(name):
            yield Change(f"{pair.label}: {name}", told[0].get(name), told[1].get(name))


def _told(lane: LaneRecord) -> dict[str, Any]:
    """All that decides a lane, by the name of the field or knob; several rules are one value, in words."""
    if lane.knobs is None:
        return {**{name: getattr(lane, name) for name in ("label", *READ_OPTIONS)}, "rules": lane.summary}
    return {**{name: getattr(lane, name) for name in _LANE}, **lane.knobs}


def _pairs(one: Record, other: Record) -> tuple[LanePair, ...]:
    return tuple(LanePair(*lanes) for lanes in paired(one.lanes, other.lanes, _cache))


def _cache(lane: LaneRecord) -> list[dict[str, Any]]:
    return [rule.model_dump(exclude={"title", "summary"}) for rule in lane.every_rule]


def _configured_otherwise(one: Record, other: Record) -> bool:
    """Whether anything about the two models but their weights is known to differ."""
    hashes = {one.environment.model_hash, other.environment.model_hash}
    return len(hashes) == 2 and None not in hashes


def _unfair(one: Record, other: Record, same: int, same_text: bool) -> Iterator[str]:
    a, b = one.environment, other.environment
    same_model = a.weights_hash == b.weights_hash and not _configured_otherwise(one, other)
    if a.weights_hash != b.weights_hash:
        yield f"Other model: {a.model_title} and {b.model_title} are two references; distances to them have no order."
    elif not same_model:
        yield (
            f"Other configuration of {a.model_title}: the same weights with another configuration, tokenizer or chat "
            "template are another reference; distances to the two have no order."
        )
    if same_model and one.reference.prompt_token_ids != other.reference.prompt_token_ids:
        yield "Other prompt: the caches hold different tokens and were asked different questions."
    elif same_model and not same_text:
        yield f"Other reference text, from token {same} on: the lanes were scored on different tokens."
    if any(pair.one and pair.other and pair.one.prefill != pair.other.prefill for pair in _pairs(one, other)):
        yield "Other prefill: a lane that reads the prompt through its own cache holds more than one that does not."
    if one.spec.get("stress") != other.spec.get("stress"):
        yield "Other stress: one of the caches was made harder to quantize."
    if (a.device, a.dtype) != (b.device, b.dtype):
        yield "Other device or number format: the references themselves round differently."
    if one.results_version != other.results_version:
        yield (
            f"Computed by different versions of the program (results {one.results_version} and "
            f"{other.results_version}): run the older comparison again."
        )
