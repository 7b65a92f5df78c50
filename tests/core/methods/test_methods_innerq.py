"""InnerQ: its numbers worked by hand, its sizes counted from tensors, and the normalization under RoPE."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from kvq_kernels import dequantize_hybrid, dequantize_signed, quantize_hybrid, quantize_signed, unpack
from torch import Tensor

import kvq_core
from kvq_core.methods import ModelShape, Prompt, make
from kvq_core.methods.innerq import key_norms
from kvq_core.models.rope import Rope
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

MODES = ["hybrid", "symmetric", "asymmetric", "hybrid_prefill"]


def cache(kv_heads: int, tokens: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    keys = torch.randn(kv_heads, tokens, dim, generator=g) + 2 * torch.randn(kv_heads, 1, dim, generator=g)
    return keys, torch.randn(kv_heads, tokens, dim, generator=g)


def roped(tokens: int, dim: int) -> Rope:
    angles = torch.arange(tokens)[:, None] * 1e4 ** (-torch.arange(dim // 2) / (dim // 2))
    return Rope.of(torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1), dim)


def groups_by_hand(x: np.ndarray, bits: int, group: int, mode: str) -> np.ndarray:
    """Float64 quantization of rows (m, n) in groups along n, straight from Eq. 10 to 13."""
    out, top = np.empty_like(x), 2**bits - 1
    for i, row in enumerate(x):
        for start in range(0, len(row), group):
            g = row[start : start + group]
            size = np.abs(g).max() / top or 1.0
            low, step = g.min(), (g.max() - g.min()) / top or 1.0
            signed = np.sign(g) * np.round(np.abs(g) / size) * size
            plain = np.round((g - low) / step) * step + low
            sym = mode == "symmetric" or (mode == "hybrid" and ((signed - g) ** 2).sum() <= ((plain - g) ** 2).sum())
            out[i, start : start + group] = signed if sym else plain
    return out


def test_signed_codes_worked_by_hand() -> None:
    # scale 3 / 3 = 1: magnitudes 3, 1.4 -> 1, 2.6 -> 3, 0.4 -> 0, signs + - - +
    coded = quantize_signed(torch.tensor([[3.0, -1.4, -2.6, 0.4]]), 2, 4, torch.float32)
    assert coded.codes.tolist() == [[3, 1, 3, 0]]
    assert coded.scales.tolist() == [[1.0]]
    assert unpack(coded.signs, 1, 4).flatten().tolist() == [0, 1, 1, 0]
    assert dequantize_signed(coded, 4).tolist() == [[3.0, -1.0, -3.0, 0.0]]


def test_two_bits_and_a_sign_are_seven_levels() -> None:
    x = torch.linspace(-1, 1, 64)[None]
    levels = dequantize_signed(quantize_signed(x, 2, 64, torch.float32), 64).unique()
    torch.testing.assert_close(levels, torch.arange(-3, 4) / 3)


@pytest.mark.parametrize("mode", ["hybrid", "symmetric", "asymmetric"])
def test_keys_group_channels_and_values_group_tokens(mode: str) -> None:
    keys, values = cache(2, 70, 32)
    values = values + 3 * (torch.arange(32) % 2)  # offset channels, so that hybrid uses both grids
    method = make("innerq", mode=mode, group_size=16, normalize_keys="off")
    result = kvq_core.roundtrip(method, keys, values, metadata="float32")
    for head in range(2):
        by_hand = groups_by_hand(keys[head].double().numpy(), 2, 16, mode)
        np.testing.assert_allclose(result.keys[head].numpy(), by_hand, atol=1e-5)
        by_hand = groups_by_hand(values[head].double().numpy().T.copy(), 2, 16, mode).T
        np.testing.assert_allclose(result.values[head].numpy(), by_hand, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "zero_point", "bits"),
    [
        ("symmetric", "float32", 3.5),
        ("symmetric", "float16", 3.5),  # 2 + 1 sign + 16 / 32
        ("asymmetric", "float32", 3.5),  # 2 + 16 / 32 + 32 / 32
        ("asymmetric", "float16", 3.0),  # KIVI's 3 bits
        ("hybrid", "float32", 3.5 + 1 / 32),
        ("hybrid", "float16", 3.5 + 1 / 32),  # and a mask bit a group
    ],
)
def test_bits_of_an_element(mode: str, zero_point: str, bits: float) -> None:
    keys, values = cache(2, 128, 64)
    method = make("innerq", mode=mode, zero_point=zero_point, normalize_keys="off")
    result = kvq_core.roundtrip(method, keys, values, metadata="float16")
    assert result.key_bits == result.value_bits == pytest.approx(bits, abs=1e-6)


def test_a_fair_asymmetric_lane_costs_what_the_symmetric_one_costs() -> None:
    keys, values = cache(2, 128, 64)
    fair = make("innerq", mode="asymmetric", bits=3, group_size=64, zero_point="float16", normalize_keys="off")
    assert kvq_core.roundtrip(fair, keys, values, metadata="float16").key_bits == 3.5


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "fp16", "innerq"),
    [(16, 8, 64, 32.5, 10.4), (32, 32, 128, 637.5, 193.0), (32, 8, 128, 128.7, 41.5), (40, 40, 128, 1003.5, 303.2)],
    ids=["Llama 3.2-1B", "Llama 2-7B", "Llama 3.1-8B", "Llama 2-13B"],
)
def test_sizes_are_those_of_the_paper_s_table_1(layers: int, heads: int, dim: int, fp16: float, innerq: float) -> None:
    """Mean cache sizes in MB, one head stored for real; the fp16 size says how long the contexts were on average.

    The value window grows from 96 to 127 tokens and empties again, so contexts of several lengths are averaged.
    """
    per_token = layers * heads * dim * 2 * 2
    tokens = round(fp16 * 2**20 / per_token)
    sizes = []
    for length in range(tokens, tokens + 32, 8):
        x = torch.randn(1, length, dim, generator=torch.Generator().manual_seed(length))
        stored = kvq_core.roundtrip(make("innerq", normalize_keys="off"), x, x, windows=True, metadata="float16")
        sizes.append((stored.key_bits + stored.value_bits) / 32)
    assert sum(sizes) / len(sizes) * fp16 == pytest.approx(innerq, rel=0.01)


def test_norms_are_stored_and_counted() -> None:
    keys, values = cache(2, 128, 64)
    result = kvq_core.roundtrip(make("innerq", mode="symmetric"), keys, values, metadata="float16")
    assert result.nbytes["key_norms"] == 2 * 64 * 2
    assert result.key_bits == 3.5 + 16 / 128
    assert result.nbytes["key_signs"] == 2 * 128 * 64 // 8


@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_hybrid_is_never_worse_than_either_grid(tensor: str) -> None:
    keys, values = cache(3, 96, 64)
    keys, values = keys.abs(), values + 1.5  # offset enough for asymmetric groups to win some
    error = {}
    for mode in ("hybrid", "symmetric", "asymmetric"):
        result = kvq_core.roundtrip(make("innerq", mode=mode, normalize_keys="off"), keys, values)
        x, read = (keys, result.keys) if tensor == "keys" else (values, result.values)
        squares = (read - x).square()
        squares = squares if tensor == "keys" else squares.transpose(-1, -2)
        error[mode] = squares.unflatten(-1, (-1, 32)).sum(-1)
    assert (error["hybrid"] <= torch.minimum(error["symmetric"], error["asymmetric"]) + 1e-6).all()
    assert (error["symmetric"] < error["asymmetric"]).any() and (error["asymmetric"] < error["symmetric"]).any()


def test_a_tie_is_symmetric() -> None:
    coded = quantize_hybrid(torch.zeros(1, 32), 2, 32)
    assert coded.symmetric.all()
    assert not dequantize_hybrid(coded, 32).any()


@pytest.mark.slow
def test_hybrid_prefill_uses_the_mask_for_the_prompt_alone() -> None:
    lane = Lane(
        method="innerq", knobs={"mode": "hybrid_prefill", "sink_tokens": 2, "recent_tokens": 4, "group_size": 8}
    )
    outcome = run_engine(tiny("llama"), prompt_ids(40), [lane], 24, audit=True, ignore_eos=True)
    cache = outcome.decode.states[0].cache
    assert cache is not None
    for part in cache.parts:
        first, *later = part.stream.blocks
        assert "mask" in first.tensors and later
        assert all("signs" in block.tensors and "mask" not in block.tensors for block in later)


def test_windows_keys_leave_one_by_one_and_values_in_groups() -> None:
    lane = Lane(method="innerq", knobs={"sink_tokens": 4, "recent_tokens": 10, "group_size": 8})
    outcome = run_engine(tiny("llama"), prompt_ids(30), [lane], 8, audit=True, ignore_eos=True)
    cache = outcome.decode.states[0].cache
    assert cache is not None
    key, value = (next(cache.of(kind)).stream for kind in ("key", "value"))
    tokens = 30 + 7  # the last token generated is never fed back
    assert [block.tokens for block in key.blocks] == [16] + [1] * 7 and key.recent.shape[-2] == 10
    assert key.tokens == value.tokens == tokens
    assert value.packed_tokens == (tokens - 4 - 10) // 8 * 8 and 10 <= value.recent.shape[-2] < 18


def test_norms_are_the_roots_of_the_channel_maxima() -> None:
    keys, _ = cache(2, 50, 8)
    keys[0, :, 3] = 0
    norms = key_norms(keys[None], "exact", torch.float32)
    assert norms is not None
    expected = np.sqrt(np.abs(keys.double().numpy()).max(1))
    expected[0, 3] = 1
    np.testing.assert_allclose(norms[0, :, 0].numpy(), expected, rtol=1e-6)


def test_tied_norms_commute_with_rope_and_untied_ones_do_not() -> None:
    """q.k = (q n).(k / n) after RoPE; folding moves n before RoPE, which only pair-tied norms survive."""
    rope, dim = roped(60, 16), 16
    keys, queries = cache(1, 60, dim)
    keys, queries = keys.double(), queries.double()
    post_k, post_q = rope.rotate(keys[None], 0)[0].double(), rope.rotate(queries[None], 0)[0].double()
    exact = post_q @ post_k.transpose(-1, -2)
    error = {}
    for how in ("exact", "folded"):
        norms = key_norms(post_k[None], how, torch.float64)
        assert norms is not None
        n = norms[0]
        torch.testing.assert_close((post_q * n) @ (post_k / n).transpose(-1, -2), exact)
        folded_k, folded_q = (rope.rotate(x[None], 0)[0].double() for x in (keys / n, queries * n))
        error[how] = ((folded_q @ folded_k.transpose(-1, -2) - exact).norm() / exact.norm()).item()
    assert error["folded"] < 1e-6
    assert error["exact"] > 0.01


def test_normalization_helps_where_a_channel_is_large() -> None:
    keys, values = cache(2, 100, 64)
    keys[:, :, 5] *= 30
    rmse = {}
    for how in ("exact", "off"):
        method = make("innerq", mode="asymmetric", normalize_keys=how)
        rmse[how] = (kvq_core.roundtrip(method, keys, values).keys - keys)[..., 6:].norm().item()
    assert rmse["exact"] < 0.6 * rmse["off"]


def test_what_cannot_work_is_said() -> None:
    assert "divisor" in str(make("innerq", group_size=48).why_not(ModelShape(1, 2, 2, 64, 100)))
    odd = ModelShape(1, 2, 2, 9, 100)
    assert "odd" in str(make("innerq", group_size=9, normalize_keys="folded").why_not(odd))
    assert make("innerq").why_not(ModelShape(1, 2, 2, 64, 100)) is None


@settings(max_examples=40)
@given(
    kv_heads=st.sampled_from([1, 2, 3]),
    tokens=st.integers(1, 70),
    mode=st.sampled_from(MODES),
    bits=st.sampled_from([1, 2, 3, 4, 8]),
    group=st.sampled_from([4, 12, 24]),
    norm=st.sampled_from(["exact", "folded", "off"]),
    zero=st.sampled_from(["float32", "float16"]),
    constant=st.sampled_from([None, 0.0, -3.0]),
)
def test_any_shape_decodes_to_finite_values_of_the_right_shape(
    kv_heads: int, tokens: int, mode: str, bits: int, group: int, norm: str, zero: str, constant: float | None
) -> None:
    keys, values = cache(kv_heads, tokens, 24)
    if constant is not None:
        keys[0], values[..., :5] = constant, constant
    method = make("innerq", mode=mode, bits=bits, group_size=group, normalize_keys=norm, zero_point=zero)
    result = kvq_core.roundtrip(method, keys, values, metadata="float16")
    assert result.keys.shape == keys.shape and result.values.shape == values.shape
    assert torch.isfinite(result.keys).all() and torch.isfinite(result.values).all()
    if constant is not None and mode != "asymmetric":
        torch.testing.assert_close(result.values[..., :5], values[..., :5], rtol=2e-3, atol=1e-3)
    assert sum(result.nbytes.values()) * 8 == pytest.approx((result.key_bits + result.value_bits) * keys.numel())


def test_the_bit_map_adds_up_to_the_bytes() -> None:
    keys, values = cache(2, 64, 32)
    fitted = make("innerq", normalize_keys="off", group_size=16).fit(Prompt(keys[None], values[None], None))
    assert fitted.key is not None and fitted.value is not None
    for codec, x in ((fitted.key, keys), (fitted.value, values)):
        block = codec.encode_prompt(x[None], 0)
        total = codec.bits(block).expand(1, 2, 64, 1).sum().item() * 32
        assert math.isclose(total, 8 * sum(block.nbytes.values()))
