"""The counter of planned bytes, held to what lanes store of random tensors."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.codebooks.files import codebooks
from kvq_core.engine.cache import LaneCache, Part
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.stored_bytes import measure
from kvq_core.errors import MethodError, SpecError
from kvq_core.methods import ModelRef, methods
from kvq_core.models.rope import Rope
from kvq_core.presets import bundle_lanes
from kvq_core.record.shipped import RUNS, find_run
from kvq_core.shape import LayerKind, ModelShape
from kvq_core.sizing.count import CacheBytes, NotKnown, ServedBy, cache_bytes
from kvq_core.spec import Lane

SHAPE = ModelShape(2, 4, 2, 64, 4096)
LENGTHS = ((1, 1), (31, 31), (32, 33), (128, 160), (200, 200), (300, 344), (555, 555))  # of the prompt, of the end
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"sink_tokens": 4},
    {"recent_tokens": 16},
    {"sink_tokens": 4, "recent_tokens": 64},
    {"tensors": "keys"},
    {"tensors": "values"},
    {"layers": (1,)},
    {"center": "mean"},
    {"fold": "keys"},
    {"center": "mean", "fold": "keys"},
    {"rotate": "hadamard"},
)
LEARNED = {"commvq": {}, "kvquant": {"calibration": "default"}, "oscar": {"calibration": "default"}}
WITHIN = 0.02  # of bytes that follow from the prompt's numbers


class Tensors:
    """Random ones of every layer of a shape, and the cache that a lane makes of them."""

    def __init__(self, shape: ModelShape, tokens: int):
        self.shape, self.tokens = shape, tokens
        g = torch.Generator().manual_seed(0)
        heads = shape.kv_heads, shape.kv_heads, shape.query_heads
        keys, values, queries = (torch.randn(shape.layers, n, tokens, shape.head_dim, generator=g) for n in heads)
        layers = [*range(shape.layers)]
        windowed = frozenset(shape.windowed)
        self.group = LayerGroup(layers, torch.device("cpu"), keys, values, queries, windowed=windowed)

    def stored(self, lane: Lane, prompt: int, model: ModelRef | None = None) -> LaneCache:
        """After a prompt and the other tokens one by one."""
        dim = self.shape.head_dim
        angles = torch.arange(self.tokens)[:, None] * torch.logspace(0, -3, dim // 2).repeat(2)
        rope = Rope.of(angles.cos(), angles.sin(), dim)
        cache = LaneCache.of_prompt(lane, [self.group.first(prompt)], rope, model)
        for at in range(prompt, self.tokens):
            for part in cache.parts:
                own = self.group.keys if part.kind == "key" else self.group.values
                cache.append(part, own[part.layers, :, at : at + 1], at)
                cache.flush(part)
                if part.stream.observes:
                    self._look_back(part, at)
        return cache

    def _look_back(self, part: Part, at: int) -> None:
        """What a step's queries see, which decides widths anew."""
        groups = self.shape.query_groups
        asked = self.group.queries[part.layers, :, at : at + 1]
        keys = self.group.keys[part.layers, :, : at + 1].repeat_interleave(groups, 1)
        part.stream.observe(asked, (asked @ keys.mT / self.shape.head_dim**0.5).softmax(-1))


def held(lane: Lane, shape: ModelShape, prompt: int, tokens: int, model: ModelRef | None = None) -> CacheBytes:
    """The same counted from the tensors of its cache. Raises MethodError where it cannot store them."""
    cache = Tensors(shape, tokens).stored(lane, prompt, model)
    found = measure(cache, shape)
    return CacheBytes(found.stored_bytes, cache.model_bytes, found.host_bytes)


def check(
    lane: Lane, shape: ModelShape, prompt: int, tokens: int, model: ModelRef | None = None, within: float = 0.0
) -> None:
    """Exactly, or ``within`` a share, and within WITHIN where widths follow from numbers."""
    found = cache_bytes(lane, shape, prompt, tokens, model=model)
    try:
        stored = held(lane, shape, prompt, tokens, model)
    except MethodError as error:
        assert found == NotKnown(str(error)), lane
        return
    assert isinstance(found, CacheBytes), (lane, found)
    within = WITHIN if found.from_data else within
    told = (found.tensors, found.shared, found.host_copy)
    own = (stored.tensors, stored.shared, stored.host_copy)
    assert told == pytest.approx(own, rel=within, abs=0), (lane, prompt, tokens)


def lanes_of(name: str, **options: Any) -> Iterator[tuple[Lane, ModelShape]]:
    """The lane on the smallest shape on which it stores anything, where there is one."""
    try:
        lane = Lane(label="-", method=name, **options)
    except (SpecError, ValueError):
        return
    shape = ModelShape(5, 4, 2, 64, 4096) if lane.build().kept_layers(2) else SHAPE
    if lane.why_not(shape) is None:
        yield lane, shape


@pytest.mark.parametrize("name", [name for name in methods() if name not in LEARNED or LEARNED[name]])
def test_every_method_with_every_option_stores_what_is_counted(name: str) -> None:
    """Every length with each of both as well."""
    at = list(methods()).index(name)
    for number, options in enumerate(OPTIONS):
        for lane, shape in lanes_of(name, **options):
            check(lane, shape, *LENGTHS[(at + number) % len(LENGTHS)])


RULES: dict[str, list[dict[str, Any]]] = {
    "first": [{"method": "b", "tokens": "first:128"}, {"method": "a"}],
    "last": [{"method": "b", "tokens": "last:160"}, {"method": "a"}],
    "both ends": [{"method": "b", "tokens": "first:64"}, {"method": "c", "tokens": "last:160"}, {"method": "a"}],
    "spans": [{"method": "b", "tokens": [[32, 64], [96, 160]]}, {"method": "a"}],
    "tensors": [{"method": "a", "tensors": "keys"}, {"method": "b", "tensors": "values"}],
    "layers": [{"method": "a", "layers": [0]}, {"method": "b"}],
    "fp16 first": [{"method": "fp16", "tokens": "first:20"}, {"method": "b", "tokens": "last:160"}, {"method": "a"}],
    "fp16 last": [{"method": "fp16", "tokens": "last:40"}, {"method": "a"}],
    "fp16 spans": [{"method": "fp16", "tokens": [[40, 60]]}, {"method": "b", "tokens": "last:160"}, {"method": "a"}],
}


@pytest.mark.parametrize("kind", RULES)
def test_rules_that_share_a_cache_store_what_is_counted(kind: str) -> None:
    """Of three methods in turn, whose windows and steps differ."""
    names = ["kivi", "q4_0", "per_token", "innerq", "turboquant", "kvarn", "fp8", "hqq", "squat", "gear", "exl3"]
    ran = 0
    for at, name in enumerate(names):
        by_letter = {letter: names[(at + step) % len(names)] for letter, step in (("a", 0), ("b", 3), ("c", 5))}
        rules = [{**rule, "method": by_letter.get(rule["method"], rule["method"])} for rule in RULES[kind]]
        try:
            lane = Lane(label=name, rules=rules)
        except (SpecError, ValueError):
            continue
        prompt, later = (161, 192, 256, 444)[at % 4], (0, 1, 33, 100)[(at // 4 + at) % 4]
        if lane.why_not(SHAPE) is None:
            check(lane, SHAPE, prompt, prompt + later)
            ran += 1
    assert ran >= 3


@pytest.mark.parametrize("name", ["baselines", "deploy", "equal-windows", "eight-bit"])
def test_formats_with_their_knobs_store_what_is_counted(name: str) -> None:
    for at, data in enumerate(bundle_lanes(name)):
        lane = Lane(**data)
        shape = ModelShape(5, 4, 2, 64, 4096) if lane.build().kept_layers(2) else SHAPE
        if lane.why_not(shape) is None:
            check(lane, shape, *LENGTHS[2:][at % 5])


@pytest.mark.parametrize("name", LEARNED)
def test_learned_data_is_counted_as_the_models_own_takes(name: str) -> None:
    """By formula and from files alike; without a model it is told, not refused."""
    info = next(book.info for book in codebooks() if book.info.layers >= 2 and book.info.kv_heads == 3)
    shape = ModelShape(2, 9, info.kv_heads, info.head_dim, 4096)
    model = ModelRef(info.model, info.weights_hash)
    for knobs in ({}, {"bits": 2}) if name == "commvq" else ({},):
        lane = Lane(label="-", method=name, knobs={**LEARNED[name], **knobs})
        for prompt, tokens in LENGTHS[3:] if name != "kvquant" else ():  # random keys are outside a model's ranges
            check(lane, shape, prompt, tokens, model)
        own, formula = (cache_bytes(lane, shape, 777, 777, model=ref) for ref in (model, None))
        assert isinstance(own, CacheBytes) and isinstance(formula, CacheBytes)
        assert own == replace(formula, learned=own.learned)
        assert own.shared == Tensors(shape, 200).stored(lane, 200, model).model_bytes > 0
        assert [told.rpartition(", ")[2] for told in (*own.learned, *formula.learned)] == ["of the model", "by formula"]


def test_many_heads_and_tokens_take_what_few_tell() -> None:
    """Twelve heads and two thousand tokens, of which some hundreds in four heads are encoded."""
    shape = ModelShape(1, 24, 12, 32, 4096)
    for name in ("kivi", "squat", "q4_0", "innerq", "gear", "think", "zipcache", "shadowkv", "svdq", "oscar"):
        for lane, own in lanes_of(name):
            check(lane, shape if own is SHAPE else replace(own, kv_heads=12, query_heads=24), 2111, 2111, within=0.001)


@pytest.mark.parametrize("budget", [1024, 65536])
def test_outlier_chunks_are_as_many_however_long_the_prompt(budget: int) -> None:
    """All 24 of a budget of 1,024 fit into what is encoded; 1,536 of 65,536 are more than the prompt has."""
    for name in ("svdq", "shadowkv"):
        own = {"sparsity": {"budget_tokens": budget}} if name == "svdq" else {"budget_tokens": budget}
        check(Lane(method=name, knobs=own), ModelShape(1, 4, 2, 32, 1 << 17), 5000, 5000, within=0.001)


def test_windows_states_and_latents_are_counted() -> None:
    """By hand: a full layer in 8.5 bits, a window and a latent in fp16 unless they are meant, a state in bfloat16."""
    full = LayerKind(kind="full", kv_heads=2, key_dim=64, value_dim=64)
    sliding = LayerKind(kind="sliding", window=128, kv_heads=2, key_dim=64, value_dim=64)
    state = LayerKind(kind="none", conv=100, recurrent=1000)
    shape = ModelShape.of_layers((full, sliding, state), 4, 4096)
    found = cache_bytes(Lane(method="q8_0"), shape, 1000, 1000, batch=3)
    assert isinstance(found, CacheBytes)
    assert found.tensors == 3 * (1000 * 256 * 34 // 32 + 128 * 256 * 2 + 2 * 1100)
    meant = cache_bytes(Lane(method="q8_0", sliding=True), shape, 1000, 1000)
    assert isinstance(meant, CacheBytes) and meant.tensors == (1000 + 128) * 256 * 34 // 32 + 2 * 1100


def test_what_cannot_be_stored_is_not_known() -> None:
    found = cache_bytes(Lane(method="q4_0"), ModelShape(2, 4, 2, 40, 4096), 100, 100)
    assert isinstance(found, NotKnown) and "40" in found.reason


def test_an_engine_reserves_whole_pages() -> None:
    shape = ModelShape(4, 8, 2, 64, 4096)
    found = cache_bytes(Lane(method="fp8"), shape, 1001, 1001, batch=2, served=ServedBy("vLLM"))
    assert isinstance(found, CacheBytes) and found.reserved == 2 * 1008 * 4 * 256
    assert found.taken == found.reserved > found.tensors
    some = cache_bytes(Lane(method="fp8", layers=(1, 2)), shape, 1001, 1001, served=ServedBy("vLLM"))
    assert isinstance(some, CacheBytes) and some.reserved is None and some.taken == some.tensors


@pytest.mark.parametrize("run", [folder.name for folder in sorted(RUNS.iterdir())])
def test_shipped_runs_stored_what_is_counted(run: str) -> None:
    """Of real tensors; QAQ's widths follow from these."""
    record, _ = find_run(run)
    shape, prompt = shape_of(record), len(record.reference.prompt_token_ids)
    for at, row in enumerate(record.lanes):
        memory, lane = row.memory, lane_of(record, at)
        if memory is None or lane is None:
            continue
        found = cache_bytes(lane, shape, prompt, memory.tokens)
        assert isinstance(found, CacheBytes)
        stored = memory.stored_bytes + memory.window_bytes + memory.state_bytes
        assert (found.shared, found.host_copy) == (memory.shared_bytes, memory.host_bytes)
        assert found.tensors == pytest.approx(stored, rel=0.05 if found.from_data else 0, abs=0), lane.label
