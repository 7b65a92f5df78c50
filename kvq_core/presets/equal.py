"""Lanes that meet one budget: every family of methods at all its widths, and of each the knobs that meet it."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from math import inf
from typing import Any, NamedTuple

from kvq_core.errors import KvqError
from kvq_core.methods import ModelShape, make
from kvq_core.methods.svdq.method import NAMED
from kvq_core.sizing.count import CacheAt, PlannedCache
from kvq_core.spec import Lane

LaneData = dict[str, Any]

NEAR = 0.02  # of the budget, by which a lane may miss it and meets it all the same
PAIRS = ((8, 8), (8, 4), (4, 4), (4, 2), (3, 3), (2, 2))
LATENT = (("3", 8), ("3", 4), ("2.25", 4), ("2", 4), ("1.75", 4), ("2", 2), ("1.25", 2))  # SVDq's schedules, and values
LLAMA_CPP = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
# where neither a model nor a prompt is known: the model that comes along, and a page or two
USUAL = CacheAt(ModelShape(30, 9, 3, 64, 8192), 1024, 1087)
WORDS = {
    "group_size": "groups {}",
    "residual_length": "residual {}",
    "sink_tokens": "sinks {}",
    "recent_tokens": "recent {}",
    "rank": "rank {}",
    "outlier_fraction": "outliers {:.1%}",
    "boundary_layers": "boundary {}",
    "target_bits": "target {:g}",
}


class Knobs(NamedTuple):
    """Values of knobs that are tried beside the defaults, the least unlike these first."""

    values: dict[str, tuple[float, ...]]

    def tried(self) -> Iterator[dict[str, float]]:
        """All together, those that change the fewest knobs first."""
        every = [
            dict(zip(self.values, each, strict=True)) for each in product(*((None, *v) for v in self.values.values()))
        ]
        changed = [{name: value for name, value in each.items() if value is not None} for each in every]
        yield from sorted(changed, key=len)


WINDOWS = Knobs({"group_size": (64, 128, 16), "residual_length": (64, 128)})
SOLVED = {
    "TurboQuant": Knobs({"boundary_layers": (1, 0, 3, 4)}),
    "KIVI": WINDOWS,
    "SQuat": WINDOWS,
    "InnerQ": Knobs({"sink_tokens": (16, 0), "recent_tokens": (64, 32, 0, 128), "group_size": (64,)}),
    "Per token": WINDOWS,
    "KVarN": Knobs({"sink_tokens": (64, 32, 0)}),
    "GEAR": Knobs({"rank": (3, 2, 1, 6, 8, 12, 16), "outlier_fraction": (0.01, 0.005, 0, 0.05, 0.1)}),
}


def _widths(method: str, **more: Any) -> list[LaneData]:
    return [{"method": method, "knobs": {"key_bits": key, "value_bits": value, **more}} for key, value in PAIRS]


def _latent(schedule: str, value_bits: int) -> LaneData:
    # one that is chosen from the prompt keeps as many latent channels as it likes, each of them a row of the basis
    return {"method": "svdq", "knobs": {"schedule": list(NAMED[schedule]), "value_bits": value_bits}}


@cache
def compared_families() -> dict[str, list[LaneData]]:
    """Every family at the widths that are compared, most bits first."""
    exl = [(key, value) for key, value in product(range(8, 1, -1), repeat=2) if 0 <= key - value <= 2]
    return {
        "llama.cpp": [{"method": name} for name in LLAMA_CPP],
        "vLLM": [
            {"method": name}
            for name in ("int8_per_token_head", "fp8_per_token_head", "fp8", "nvfp4", "int4_per_token_head")
        ],
        "TurboQuant": [
            {"method": "turboquant", "knobs": {"preset": name}} for name in ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")
        ],
        "ExLlamaV3": [{"method": "exl3", "knobs": {"key_bits": key, "value_bits": value}} for key, value in exl],
        "KIVI": _widths("kivi"),
        "SQuat": _widths("squat"),
        "InnerQ": [lane for lane in _widths("innerq") if 8 not in lane["knobs"].values()],
        "Per token": _widths("per_token"),
        "KVarN": [{"method": "kvarn", "knobs": {"key_bits": k, "value_bits": v}} for k, v in ((4, 4), (4, 2), (2, 2))],
        "GEAR": [{"method": "gear", "knobs": {"bits": bits}} for bits in (4, 2)],
        "QAQ": [{"method": "qaq", "knobs": {"target_bits": bits}} for bits in (8.0, 6.0, 4.0, 3.0, 2.5, 2.0, 1.5)],
        "SVDq": [_latent(*each) for each in LATENT],
    }


def between(family: str) -> Iterator[LaneData]:
    """What a family can be beside its plain widths: keys and values in two types, widths in steps, knobs that decide
    what stays in full precision; what is least unlike the defaults first."""
    if family == "llama.cpp":
        for key, value in product(LLAMA_CPP, repeat=2):
            if key != value:
                rules = [{"method": key, "tensors": "keys"}, {"method": value, "tensors": "values"}]
                yield {"label": f"{key}/{value}", "rules": rules}
    if family == "QAQ":
        yield from ({"method": "qaq", "knobs": {"target_bits": n / 8}} for n in range(64, 7, -1))
    if family == "SVDq":
        yield from (_latent(name, value_bits) for value_bits, name in product((8, 4, 2), NAMED))
    if family in SOLVED:
        tried = (knobs for knobs in SOLVED[family].tried() if knobs)
        for knobs, lane in product(tried, compared_families()[family]):
            yield {**lane, "knobs": {**lane["knobs"], **knobs}}


def equal_bytes(
    bits: float = 4.5,
    tokens: int | None = None,
    layers: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    at: CacheAt = USUAL,
) -> list[LaneData]:
    """Of each family a lane that meets the budget: ``bits`` an element of the whole cache ``at`` that place,
    full-precision windows and layers included. A plain width where one does, else the fewest knobs changed; where none
    does the nearest one, whose label says so. What is given, is instead of what is known of the place."""
    if layers or kv_heads or head_dim:
        own, heads = at.shape, kv_heads or at.shape.kv_heads
        shape = ModelShape(layers or own.layers, heads, heads, head_dim or own.head_dim, own.context)
        at = replace(at, shape=shape)
    if tokens is not None:
        at = replace(at, prompt=tokens, tokens=tokens + at.tokens - at.prompt)
    return list(filter(None, (_solved(family, bits, at) for family in compared_families())))


@lru_cache(512)  # of prompts of any length
def _solved(family: str, budget: float, at: CacheAt) -> LaneData | None:
    known: list[tuple[float, LaneData]] = []
    for lane in compared_families()[family]:
        known += _sized(lane, at)
    met = [one for one in known if abs(one[0] - budget) <= NEAR * budget]
    if not met:
        for lane in _between(family, budget, at):
            found = _sized(lane, at)
            known += found
            if met := [one for one in found if abs(one[0] - budget) <= NEAR * budget]:
                break
    if not known:
        return None
    if met:
        lane = min(met, key=lambda one: abs(one[0] - budget))[1]
        return {**lane, "label": (f"about {budget:g}: " if _from_data(lane) else "") + _words(lane)}
    below = [one for one in known if one[0] < budget]
    _, lane = max(below, key=lambda one: one[0]) if below else min(known, key=lambda one: one[0])
    says = "below" if below and len(below) < len(known) else "cannot reach"
    return {**lane, "label": f"{says} {budget:g}: {_words(lane)}"}


def _between(family: str, budget: float, at: CacheAt) -> Iterable[LaneData]:
    """What is tried; of QAQ, whose bits fall with their target, only the first that takes no more than the budget."""
    every = list(between(family))
    if family != "QAQ":
        return every

    def falling(lane: LaneData) -> float:
        return -next((bits for bits, _ in _sized(lane, at)), inf)

    first = bisect_left(every, -budget * (1 + NEAR), key=falling)
    return every[first : first + 1] or every[-1:]


def _sized(lane: LaneData, at: CacheAt) -> list[tuple[float, LaneData]]:
    """A lane with its bits; nothing where it cannot run."""
    planned = _planned(json.dumps(lane), at.shape)
    return [] if planned is None else [(planned.bits(at.prompt, at.tokens), lane)]


@lru_cache(4096)  # a solve asks for hundreds of lanes, the next one, of another length, for the same
def _planned(lane: str, shape: ModelShape) -> PlannedCache | None:
    """A lane given as JSON on a shape; None where it cannot run."""
    try:
        built = Lane.model_validate({"label": "-", **json.loads(lane)})
        return None if built.why_not(shape) else PlannedCache(built, shape)
    except KvqError:
        return None


def _from_data(lane: LaneData) -> bool:
    """Whether widths follow from the prompt's tensors, here from random ones: some percent more, or fewer."""
    return "rules" not in lane and make(lane["method"], **lane.get("knobs", {})).from_data is not None


def _words(lane: LaneData) -> str:
    """The method, its width, and the knobs that were solved."""
    if "rules" in lane:
        return str(lane["label"])
    knobs = lane.get("knobs", {})
    short = make(lane["method"], **knobs).short()
    return ", ".join([short, *(words.format(knobs[name]) for name, words in WORDS.items() if name in knobs)])


def equal_loss() -> Iterator[LaneData]:
    """Each family at all its widths: which takes the fewest bytes within a loss is read off the run."""
    for family, lanes in compared_families().items():
        for lane in lanes:
            method = make(lane["method"], **lane.get("knobs", {}))
            knobs = lane.get("knobs", {})
            alike = "key_bits" not in knobs or knobs["key_bits"] == knobs["value_bits"]
            if alike or len(lanes) <= len(PAIRS):
                yield {**lane, "label": f"{family} {method.short()}"}
