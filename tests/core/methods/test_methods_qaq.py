"""QAQ: widths from the paper's formulas in float64, its own error bound, its store, and re-evaluation step by step."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from kvq_kernels import midpoint_codes, midpoint_values

import kvq_core
from kvq_core.engine.stored_bytes import host_note, measure
from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape, Prompt, make
from kvq_core.methods.qaq.pools import RaggedCodec
from kvq_core.methods.qaq.tolerance import attention_rows
from kvq_core.methods.qaq.units import RaggedBlock
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.qaq_by_hand import (
    DIM,
    GROUPS,
    HEADS,
    attention_by_hand,
    cache,
    fit,
    key_bits_by_hand,
    value_bits_by_hand,
    widths,
)
from tests.support.tiny_models import prompt_ids, tiny


def test_midpoints_worked_by_hand() -> None:
    # [0, 8] in 4 cells of 2 with middles 1, 3, 5, 7; the upper end belongs to the last cell
    x, low, extent = torch.tensor([[0.0, 1.9, 2.1, 7.0, 8.0]]), torch.zeros(1, 1), torch.full((1, 1), 8.0)
    codes = midpoint_codes(x, low, extent, 2)
    assert codes.tolist() == [[0, 0, 1, 3, 3]]
    assert midpoint_values(codes, low, extent, 2).tolist() == [[1.0, 1.0, 3.0, 7.0, 7.0]]
    assert midpoint_values(codes, low, extent, 0).unique().tolist() == [0.5 * 8 + i * 8 for i in (0, 1, 3)]


@pytest.mark.parametrize("bits", range(1, 8))
def test_cells_nest(bits: int) -> None:
    """Why a full-width code is all that re-encoding needs."""
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    low, extent = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    assert torch.equal(midpoint_codes(x, low, extent, 8) >> (8 - bits), midpoint_codes(x, low, extent, bits))


def test_attention_rows_are_those_of_the_last_queries() -> None:
    keys, _, queries = cache(20)
    rows = attention_rows(queries[None], keys[None], 5, "head", (DIM**-0.5,))
    expected = attention_by_hand(queries, keys, 5).reshape(5, HEADS, GROUPS, 20).max(2)
    np.testing.assert_allclose(torch.stack(rows)[:, 0].numpy(), expected, rtol=1e-4, atol=1e-7)
    layer = attention_rows(queries[None], keys[None], 5, "layer", (DIM**-0.5,))
    np.testing.assert_allclose(torch.stack(layer)[:, 0, 0].numpy(), expected.max(1), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-2])
def test_value_widths_follow_the_formula(window: int, tolerance: float) -> None:
    keys, values, queries = cache(60)
    _, _, stream = fit(keys, values, queries, value_tolerance=tolerance, attention_window=window)
    expected = value_bits_by_hand(values, attention_by_hand(queries, keys, window), tolerance)
    assert np.array_equal(widths(stream), expected)
    assert len(np.unique(expected)) > 3


@pytest.mark.parametrize("tolerance", [1e-4, 1e-3])
def test_key_widths_follow_the_formula_with_the_right_variance_and_scale(tolerance: float) -> None:
    keys, values, queries = cache(60)
    _, stream, _ = fit(keys, values, queries, key_tolerance=tolerance)
    expected = key_bits_by_hand(keys, queries, 60, tolerance)
    assert np.array_equal(widths(stream), expected)
    assert len(np.unique(expected)) > 2


@pytest.mark.parametrize("metadata", [torch.float32, torch.float16])
def test_the_paper_s_error_bound_is_met(metadata: torch.dtype) -> None:
    """A cell's uniform error has deviation step / (2 sqrt 3) <= sigma, and no element errs by more than half a step."""
    keys, values, queries = cache(80)
    tolerance, rows = 5e-3, attention_by_hand(queries, keys, 5)
    fitted = make("qaq", value_tolerance=tolerance).fit(Prompt(keys[None], values[None], queries[None], metadata))
    assert fitted.value is not None
    block = fitted.value.encode_prompt(values[None], 0)
    error = (fitted.value.decode(block)[0] - values).abs().amax(-1).T.double().numpy()  # (tokens, heads)
    with np.errstate(divide="ignore"):
        sigma = tolerance / (math.sqrt(80) * rows.reshape(5, HEADS, GROUPS, 80).max((0, 2)).T)
    assert isinstance(block, RaggedBlock)
    bits = block.widths.view(80, HEADS).numpy()
    free = bits < 8  # bits_max may be too few
    assert (error[free] <= math.sqrt(3) * sigma[free] * 1.003).all() and free.mean() > 0.5
    half_step = block.tensors["extents"][:, 0].double().numpy() / 2.0 ** (bits + 1)
    assert (error <= half_step * 1.001 + 1e-6).all()


@pytest.mark.slow
def test_sigma_of_a_softmax_weight_is_the_corrected_one() -> None:
    """Monte Carlo of the paper's key bound: noise of that sigma on the keys moves a weight by at most the tolerance."""
    tokens, dim, tolerance = 64, 32, 2e-3
    g = torch.Generator().manual_seed(0)
    query = torch.randn(dim, generator=g, dtype=torch.float64)
    variance = math.log(tokens**3 / (tokens - 1) * tolerance**2 + 1) * dim / query.square().sum().item()
    noise = math.sqrt(variance) * torch.randn(20000, tokens, dim, generator=g, dtype=torch.float64)
    weights = (noise @ query / math.sqrt(dim)).softmax(-1)  # all scores equal without noise
    assert weights.std(0).mean().item() == pytest.approx(tolerance, rel=0.05)


def test_outliers_come_back_exactly() -> None:
    keys, values, queries = cache(40, dim=64)
    values[0, 7, 3], values[0, 7, 60] = 900.0, -1000.0
    three = {"bits_min": 3, "bits_max": 3}
    result = kvq_core.roundtrip(make("qaq", **three), keys, values, queries)
    assert result.values[0, 7, 3] == 900 and result.values[0, 7, 60] == -1000
    with_outliers = (result.values - values)[0, 7].norm()
    without = kvq_core.roundtrip(make("qaq", outlier_fraction=0, **three), keys, values, queries)
    assert with_outliers < 0.02 * (without.values - values)[0, 7].norm()


@pytest.mark.parametrize(("unit", "size", "outliers"), [("head", 64, 1), ("layer", 192, 1), ("layer", 192, 2)])
def test_bytes_are_those_of_the_parts(unit: str, size: int, outliers: int) -> None:
    tokens, fraction = 100, 0.01 if outliers == 1 else 0.02
    keys, values, queries = cache(tokens, 3, 2, 64)
    method = make("qaq", unit=unit, outlier_fraction=fraction, update="once")
    result = kvq_core.roundtrip(method, keys, values, queries, metadata="float16")
    units = keys.numel() // size
    assert result.nbytes["key_outliers"] == result.nbytes["key_positions"] == units * 2 * outliers * 2
    assert result.nbytes["key_lows"] == result.nbytes["key_extents"] == units * 2
    assert result.nbytes["key_widths"] == units / 2  # 4 bits
    mean = result.nbytes["key_codes"] * 8 / keys.numel()
    assert result.key_bits == pytest.approx(mean + (32 + 4 + 2 * outliers * 32) / size)
    assert "host_copy" not in result.nbytes


@pytest.mark.parametrize("target", [2, 3, 4.5])
@pytest.mark.parametrize("unit", ["head", "layer"])
def test_tolerances_are_solved_for_the_mean_width(target: float, unit: str) -> None:
    keys, values, queries = cache(300)
    result = kvq_core.roundtrip(make("qaq", target_bits=target, unit=unit), keys, values, queries)
    for kind in ("key", "value"):
        mean = result.nbytes[f"{kind}_codes"] * 8 / keys.numel()
        assert target - 0.05 < mean <= target


def test_each_unit_is_packed_at_its_own_width() -> None:
    keys, values, queries = cache(100)
    _, stream, _ = fit(keys, values, queries)
    block = stream.blocks[0]
    assert isinstance(block, RaggedBlock)
    counts = np.bincount(widths(stream).ravel(), minlength=9)
    assert [tuple(pool.shape) for pool in block.pools] == [(counts[w], w * DIM // 8) for w in range(9)]
    assert (counts > 0).sum() > 2
    bits = stream.bits()  # (1, heads, tokens, 1)
    fixed = (64 + 4 + 2 * 32) / DIM  # float32 range here
    np.testing.assert_allclose(bits[0, :, :, 0].numpy().T, widths(stream) + fixed)


def test_every_step_equals_quantizing_the_originals_afresh() -> None:
    """Tokens come one by one with attention of their own; after each, the store holds what the formulas say for it."""
    keys, values, queries = cache(40)
    prompt = [x[:, :30] for x in (keys, values, queries)]
    _, key_stream, value_stream = fit(*prompt, key_tolerance=1e-3, value_tolerance=4e-3)
    rows = list(attention_by_hand(queries[:, :30], keys[:, :30], 5))
    changes, previous = 0, widths(value_stream)
    generator = np.random.default_rng(0)
    for t in range(30, 40):
        scores = generator.normal(size=(HEADS * GROUPS, t + 1)) * 2
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        attention = torch.from_numpy(weights).float()[None, :, None]
        rows = [*(np.pad(row, ((0, 0), (0, t + 1 - row.shape[-1]))) for row in rows), weights][-5:]
        for stream, x in ((key_stream, keys), (value_stream, values)):
            stream.append(x[None, :, t : t + 1])
            before = stream.decode()
            ((first, added),) = stream.flush()
            assert first == t
            patch = stream.observe(queries[None, :, t : t + 1], attention)
            before[..., t:, :] = added
            if patch is not None:
                before[patch.layer, patch.head, patch.token] = patch.values
            assert torch.equal(stream.decode(), before)  # the patch is all that changed
        halves = torch.cat([values[:, :30], values[:, 30 : t + 1].half().float()], 1)
        expected = value_bits_by_hand(halves, np.stack(rows), 4e-3)
        assert np.array_equal(widths(value_stream), expected)
        halved_keys = torch.cat([keys[:, :30], keys[:, 30 : t + 1].half().float()], 1)
        assert np.array_equal(widths(key_stream), key_bits_by_hand(halved_keys, queries[:, :30], t + 1, 1e-3))
        changes += int((widths(value_stream)[: len(previous)] != previous).sum())
        previous = widths(value_stream)
    assert changes > 40
    block, codec = value_stream.blocks[0], value_stream.codec
    assert isinstance(block, RaggedBlock) and isinstance(codec, RaggedCodec)
    assert torch.equal(torch.cat(block.host), codec.measure(halves[None])[1])  # codes of the originals, never of codes


def test_a_fork_goes_its_own_way() -> None:
    keys, values, queries = cache(30)
    _, _, stream = fit(keys, values, queries, value_tolerance=4e-3)
    before, other = stream.decode(), stream.fork()
    weights = torch.rand(1, HEADS * GROUPS, 1, 31, generator=torch.Generator().manual_seed(0)).softmax(-1)
    for _ in range(6):
        other.append(values[None, :, :1])
        other.flush()
        other.observe(queries[None, :, :1], torch.nn.functional.pad(weights, (0, other.tokens - 31)))
    assert torch.equal(stream.decode(), before)
    assert not torch.equal(other.decode()[..., :30, :], before)


@pytest.mark.slow
def test_host_copy_is_listed_apart_and_counted_in_no_bits() -> None:
    lanes = [Lane(label="every", method="qaq"), Lane(label="once", method="qaq", knobs={"update": "once"})]
    outcome = run_engine(tiny("llama"), prompt_ids(50), lanes, 12, audit=True, ignore_eos=True)
    every, once = (state.cache for state in outcome.decode.states)
    assert every is not None and once is not None
    tokens = 61
    assert sum(p.stream.host_bytes for p in every.parts) == 2 * 3 * 2 * tokens * 32  # K and V, layers, heads, head_dim
    assert sum(p.stream.host_bytes for p in once.parts) == 0
    assert all("host_copy" not in p.stream.nbytes() for p in every.parts)
    assert any("re-encoded a step" in note for note in every.notes)
    assert next(once.of("key")).stream.recent.shape[-2] == 11  # generated tokens stay in fp16
    shape = ModelShape(layers=3, query_heads=4, kv_heads=2, head_dim=32, context=1024)
    memory = measure(every, shape)
    host = memory.bytes_by_part["host_copy"]
    stored = sum(memory.bytes_by_part.values()) - host
    full = 2 * 3 * 2 * tokens * 32 * 2  # the fp16 cache
    assert memory.kv_ratio == pytest.approx(stored / full)
    assert f"{(stored + host) / full:.1%} of the fp16 cache with it, {stored / full:.1%} without" in host_note(memory)
    assert host_note(measure(once, shape)) is None


@pytest.mark.long("combine", sample=6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "options"),
    [
        ({}, {}),
        ({"unit": "layer", "bits_min": 0, "target_bits": 1.5}, {}),
        ({"attention_window": 1, "outlier_fraction": 0}, {}),
        ({}, {"sink_tokens": 3, "recent_tokens": 7}),
        ({}, {"layers": (0, 2)}),
        ({}, {"tensors": "values"}),
    ],
)
@pytest.mark.parametrize(("name", "count"), [("llama", 2), ("qwen3", 41), ("llama-mha", 20)])
def test_packed_store_decodes_to_what_attention_reads(name: str, count: int, knobs: dict, options: dict) -> None:
    lane = Lane(method="qaq", knobs=knobs, **options)
    outcome = run_engine(tiny(name), prompt_ids(count), [lane], 14, audit=True, ignore_eos=True)
    assert outcome.decode.states[0].error is None
    assert torch.isfinite(outcome.logits()[1]).all()


def test_chunked_scoring_observes_every_query() -> None:
    lane = Lane(method="qaq")
    follow = prompt_ids(21, seed=3)
    outcome = run_engine(tiny("qwen2"), prompt_ids(30), [lane], 21, follow=follow, audit=True, score_chunk=7)
    cache = outcome.decode.states[0].cache
    assert cache is not None
    block = next(cache.of("value")).stream.blocks[0]
    assert isinstance(block, RaggedBlock) and block.steps == 20 and len(block.rows) == 5


def test_impossible_bounds_are_refused() -> None:
    with pytest.raises(SpecError, match="bits_min = 5 is above bits_max = 4"):
        make("qaq", bits_min=5, bits_max=4)
    with pytest.raises(SpecError, match="target_bits = 3 is outside"):
        make("qaq", bits_min=4)
    assert make("qaq", bits_min=4, key_tolerance=1e-3, value_tolerance=1e-3).windows()[0].frozen(100) == 0
    assert make("qaq", update="once").windows()[0].frozen(100) == 100


@pytest.mark.slow
@settings(max_examples=30)
@given(
    tokens=st.integers(1, 40),
    kv_heads=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 3, 4, 8]),
    unit=st.sampled_from(["head", "layer"]),
    update=st.sampled_from(["every_step", "once"]),
    low=st.integers(0, 3),
    fraction=st.sampled_from([0.0, 0.01, 0.3, 0.5]),
    dim=st.sampled_from([1, 5, 24]),
    constant=st.booleans(),
)
def test_any_shape_decodes_to_finite_values_of_the_right_shape(
    tokens: int, kv_heads: int, groups: int, unit: str, update: str, low: int, fraction: float, dim: int, constant: bool
) -> None:
    keys, values, queries = cache(tokens, kv_heads, groups, dim)
    if constant:
        keys[...], values[0], queries[0] = 0, -2.5, 0
    method = make("qaq", unit=unit, update=update, bits_min=low, outlier_fraction=fraction)
    result = kvq_core.roundtrip(method, keys, values, queries, metadata="float16")
    assert result.keys.shape == keys.shape and torch.isfinite(result.keys).all()
    assert result.values.shape == values.shape and torch.isfinite(result.values).all()
    if constant:
        torch.testing.assert_close(result.keys, keys, rtol=0, atol=1e-3)
    held = sum(size for name, size in result.nbytes.items() if name != "host_copy")
    assert held * 8 == pytest.approx((result.key_bits + result.value_bits) * keys.numel())
