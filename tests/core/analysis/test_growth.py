"""Bits against context length: exact where it can be measured, and the known limits elsewhere."""

from dataclasses import replace

import pytest
import torch

from kvq_core.analysis.context_growth import Growth
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.stored_bytes import measure, whole_note
from kvq_core.methods import ModelShape
from kvq_core.models.rope import Rope
from kvq_core.shape import LayerKind
from kvq_core.spec import Lane
from tests.support.growth_bits import effective_bits

SHAPE = ModelShape(layers=2, query_heads=4, kv_heads=2, head_dim=32, context=4096)
LANES = [
    Lane(method="kivi", label="kivi", knobs={"group_size": 32}),
    Lane(method="kivi", label="sinks", knobs={"sink_tokens": 16, "bits": 4}),
    Lane(method="per_token", label="token", layers=(1,)),
    Lane(method="per_channel", label="keys", tensors="keys"),
    Lane(method="innerq", label="innerq", knobs={"mode": "asymmetric", "zero_point": "float16"}),
    Lane(method="svdq", label="svdq", knobs={"value_bits": 4}),
    Lane(method="svdq", label="per head", knobs={"per_head": True}),
    Lane(method="svdq", label="target", knobs={"target_bits": 2.5}),
    Lane(method="svdq", label="sparse", knobs={"sparsity": {"budget_tokens": 128, "outlier_chunks": 3}}),
    Lane(method="fp16", label="fp16"),
]


def memory_at(lane: Lane, tokens: int, shape: ModelShape = SHAPE):
    torch.manual_seed(0)
    kv = (shape.layers, shape.kv_heads, tokens, shape.head_dim)
    queries = torch.randn(shape.layers, shape.query_heads, tokens, shape.head_dim)
    keys, values, windowed = torch.randn(kv), torch.randn(kv), frozenset(shape.windowed)
    group = LayerGroup(list(range(shape.layers)), torch.device("cpu"), keys, values, queries, windowed=windowed)
    angles = torch.arange(tokens)[:, None] * torch.logspace(0, -3, shape.head_dim // 2).repeat(2)
    rope = Rope.of(angles.cos(), angles.sin(), shape.head_dim)
    return measure(LaneCache.of_prompt(lane, [group], rope), shape)


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.label)
def test_extrapolation_meets_what_a_longer_prompt_really_stores(lane: Lane) -> None:
    growth = Growth.of(lane, memory_at(lane, 320), SHAPE)
    for tokens in (400, 1000):
        real = memory_at(lane, tokens)
        key, value = effective_bits(growth, SHAPE, tokens)
        assert key == pytest.approx(real.key_bits, rel=2e-3)
        assert value == pytest.approx(real.value_bits, rel=2e-3)
        stored = sum(real.bytes_by_part.values())
        assert growth.nbytes(SHAPE, tokens, 3) == pytest.approx(3 * stored, rel=2e-3)


def test_another_shape_pays_for_its_own_basis() -> None:
    lane, wide = LANES[5], ModelShape(layers=3, query_heads=8, kv_heads=4, head_dim=64, context=4096)
    growth = Growth.of(lane, memory_at(lane, 320), SHAPE)
    real = memory_at(lane, 700, wide)
    assert effective_bits(growth, wide, 700)[0] == pytest.approx(real.key_bits, rel=0.01)
    assert effective_bits(growth, wide, 10**7)[0] == pytest.approx(2.0, abs=0.05)  # the basis has stopped mattering


def test_windows_stop_mattering() -> None:
    growth = Growth.of(LANES[0], memory_at(LANES[0], 320), SHAPE)
    bits = [effective_bits(growth, SHAPE, tokens)[1] for tokens in (16, 64, 1024, 10**6)]
    assert bits[0] == 16 and bits == sorted(bits, reverse=True) and bits[-1] == pytest.approx(3.0, abs=0.01)


def test_a_width_nothing_was_measured_of_is_not_known() -> None:
    lane = LANES[0]
    growth = Growth.of(lane, memory_at(lane, 20), SHAPE)  # all in the windows
    assert effective_bits(growth, SHAPE, 20) == (16, 16)
    assert effective_bits(growth, SHAPE, 4000) == (None, None) and growth.nbytes(SHAPE, 4000, 1) is None


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.label)
def test_what_does_not_grow_is_as_declared(lane: Lane) -> None:
    """Twice the tokens: the stored bytes less the declared fixed ones double."""
    layers = 2 if lane.layers == "all" else len(lane.layers)
    growing = []
    for tokens in (512, 1024):
        parts = memory_at(lane, tokens).bytes_by_part
        method = lane.build().as_stored({name: size / layers for name, size in parts.items()}, SHAPE)
        size = sum(s for n, s in parts.items() if n.startswith("key_") and n[4:] not in ("window", "sinks"))
        growing.append(size - layers * method.fixed_bytes(SHAPE)[0])
    packed = [lane.windows()[0].packed(tokens) for tokens in (512, 1024)]
    if packed[0] and lane.layers == "all":
        assert growing[1] / packed[1] == pytest.approx(growing[0] / packed[0], rel=1e-3)


def windowed(window: int) -> ModelShape:
    full = LayerKind(kind="full", kv_heads=2, key_dim=32, value_dim=32)
    kinds = (full, full.model_copy(update={"kind": "sliding", "window": window}))
    return replace(SHAPE, kinds=kinds)


@pytest.mark.parametrize("name", ["per_token", "kivi"])
def test_a_quantized_window_takes_the_tokens_in_it(name: str) -> None:
    """At any context: full layers grow, a window stops at what one of that many tokens stores."""
    shape, window = windowed(200), 200
    lane = Lane(method=name, label=name, sliding=True, knobs={"group_size": 32})
    growth = Growth.of(lane, memory_at(lane, 320, shape), shape)
    for tokens in (100, 320, 2000):
        a_layer = [sum(memory_at(lane, held).bytes_by_part.values()) / 2 for held in (tokens, min(tokens, window))]
        assert growth.nbytes(shape, tokens, 3) == pytest.approx(3 * sum(a_layer), rel=0.02)
        assert growth.nbytes(shape, tokens, 1) <= shape.fp16_bytes(tokens)
    alone = Lane(method=name, label=name, knobs={"group_size": 32})
    growth = Growth.of(alone, memory_at(alone, 320), shape)
    stored = sum(memory_at(alone, 2000).bytes_by_part.values()) / 2
    assert growth.nbytes(shape, 2000, 1) == pytest.approx(stored + window * 2 * 2 * 32 * 2, rel=0.02)


def test_what_windows_have_left_behind_is_not_in_the_size_of_all() -> None:
    shape = windowed(200)
    lane = Lane(method="per_token", sliding=True, knobs={"group_size": 32, "residual_length": 32})
    long, short = memory_at(lane, 320, shape), memory_at(lane, 200)
    held = sum(long.bytes_by_part.values()) / 2 + sum(short.bytes_by_part.values()) / 2
    assert long.whole_ratio == pytest.approx(held / shape.fp16_bytes(320))
    assert memory_at(lane, 150, shape).whole_ratio == pytest.approx(memory_at(lane, 150).kv_ratio)
    assert memory_at(lane, 150).whole_ratio is None
    told = whole_note(long)
    assert told is not None and f"the whole cache is {long.whole_ratio:.1%}" in told
    assert whole_note(memory_at(lane, 150)) is None
