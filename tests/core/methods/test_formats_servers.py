"""Formats of vLLM, SGLang and TensorRT-LLM: hand-worked blocks, the servers' arithmetic written again in NumPy, and the
errors that other implementations have on normal variables."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import NDArray
from torch import Tensor

from kvq_core.codecs.codec import Codec
from kvq_core.errors import MethodError, SpecError
from kvq_core.methods import ModelRef, Prompt, make, methods
from kvq_core.methods.formats.float4 import e2m1, from_e2m1
from kvq_core.methods.formats.turboquant import centroids
from kvq_core.methods.shape import ModelShape
from kvq_core.spec import parse_lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

Array = NDArray[np.float32]


def codecs(name: str, keys: Tensor, **knobs: object) -> tuple[Codec, Codec]:
    """Of a format fitted on keys that are its values as well: (layers, kv_heads, tokens, head_dim)."""
    fitted = make(name, **knobs).fit(Prompt(keys, keys, None))
    assert fitted.key is not None and fitted.value is not None
    return fitted.key, fitted.value


def read(name: str, x: Tensor, **knobs: object) -> tuple[Tensor, Tensor]:
    """x (tokens, head_dim) as a cache's keys and as its values are read."""
    key, value = codecs(name, x[None, None], **knobs)
    keys, values = (codec.decode(codec.encode(x[None, None], 0))[0, 0] for codec in (key, value))
    return keys, values


def row(*channels: float, dim: int = 64) -> Tensor:
    return torch.tensor([[*channels, *[0.0] * (dim - len(channels))]])


def normal(dim: int, rows: int = 8192) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(dim))


FORMATS = ("fp8", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4", "mxfp4", "turboquant")
# keys and values at head_dim 64 and 128: relative squared error of N(0, 1), and bits an element
MEASURED = [
    ("fp8", {}, (7.05e-4, 7.05e-4), (7.05e-4, 7.05e-4), (8, 8), (8, 8)),
    ("fp8", {"format": "e5m2"}, (2.79e-3, 2.79e-3), (2.79e-3, 2.79e-3), (8, 8), (8, 8)),
    ("int8_per_token_head", {}, (3.51e-5, 3.51e-5), (4.20e-5, 4.20e-5), (8.5, 8.5), (8.25, 8.25)),
    ("fp8_per_token_head", {}, (6.3e-4, 6.3e-4), (6.6e-4, 6.6e-4), (8.5, 8.5), (8.25, 8.25)),
    ("int4_per_token_head", {}, (8.3e-3, 8.3e-3), (1.01e-2, 1.01e-2), (4.5, 4.5), (4.25, 4.25)),
    ("nvfp4", {}, (9.03e-3, 9.03e-3), (9.03e-3, 9.03e-3), (4.5, 4.5), (4.5, 4.5)),
    ("nvfp4", {"four_over_six": True}, (7.55e-3, 7.55e-3), (7.55e-3, 7.55e-3), (4.5, 4.5), (4.5, 4.5)),
    ("mxfp4", {}, (1.27e-2, 1.27e-2), (1.27e-2, 1.27e-2), (4.5, 4.5), (4.5, 4.5)),
    ("mxfp4", {"block": 32}, (1.33e-2, 1.33e-2), (1.33e-2, 1.33e-2), (4.25, 4.25), (4.25, 4.25)),
    ("turboquant", {"preset": "k8v4"}, (7.05e-4, 8.0e-3), (7.05e-4, 1.0e-2), (8, 4.5), (8, 4.25)),
    ("turboquant", {"preset": "4bit_nc"}, (8.89e-3, 8.0e-3), (9.16e-3, 1.0e-2), (4.25, 4.5), (4.125, 4.25)),
    ("turboquant", {"preset": "k3v4_nc"}, (3.28e-2, 8.0e-3), (3.37e-2, 1.0e-2), (3.25, 4.5), (3.125, 4.25)),
    ("turboquant", {"preset": "3bit_nc"}, (3.28e-2, 3.7e-2), (3.37e-2, 4.6e-2), (3.25, 3.5), (3.125, 3.25)),
]


@pytest.mark.parametrize(("name", "knobs", "at_64", "at_128", "bits_64", "bits_128"), MEASURED)
def test_errors_and_bits_are_those_that_others_measured(
    name: str, knobs: dict, at_64: tuple, at_128: tuple, bits_64: tuple, bits_128: tuple
) -> None:
    for dim, expected, widths in ((64, at_64, bits_64), (128, at_128, bits_128)):
        x = normal(dim)[None, None]
        for codec, error, bits in zip(codecs(name, x, **knobs), expected, widths, strict=True):
            block = codec.encode(x, 0)
            found = (codec.decode(block) - x).square().sum() / x.square().sum()
            assert float(found) == pytest.approx(error, rel=0.03)
            assert codec.bits(block).item() == bits
            stored = sum(t.numel() * t.element_size() for t in block.tensors.values())
            assert stored * 8 == bits * x.numel()


def test_fp8_s_numbers_and_where_they_end() -> None:
    x = row(300.0, 1.0, 17.0, 19.0, 0.3, -1e6, 448.0, 460.0, 2.0**-9, 2.0**-10)
    expected = row(288.0, 1.0, 16.0, 20.0, 0.3125, -448.0, 448.0, 448.0, 2.0**-9, 0.0)
    torch.testing.assert_close(read("fp8", x)[0], expected, rtol=0, atol=0)  # 17 and 19 lie halfway: to even
    e5m2 = read("fp8", row(300.0, 1e9, -61440.0, 1.125), format="e5m2")[0]
    torch.testing.assert_close(e5m2, row(320.0, 57344.0, -57344.0, 1.0), rtol=0, atol=0)


def test_fp8_s_scale_is_the_layer_s_or_the_head_s_and_is_stored() -> None:
    x = normal(64, 2 * 3 * 50).view(2, 3, 50, 64) * torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1)
    for scale, axes in (("tensor", (1, 2, 3)), ("head", (2, 3))):
        key, _ = codecs("fp8", x, scale=scale)
        expected = x.abs().amax(axes, keepdim=True) / 448
        torch.testing.assert_close(key.shared["scale"], expected)
        found = key.decode(key.encode(x, 0))
        usual = x.abs() > expected * 2.0**-6  # what lies below is held in even steps
        assert float(((found - x).abs() / x.abs())[usual].max()) <= 1 / 16
        at = x.abs().flatten(1).argmax(1)
        torch.testing.assert_close(found.flatten(1).gather(1, at[:, None]), x.flatten(1).gather(1, at[:, None]))
    assert key.shared["scale"].numel() == 6
    zeros, _ = codecs("fp8", torch.zeros(1, 1, 4, 64), scale="head")
    assert (zeros.decode(zeros.encode(torch.zeros(1, 1, 4, 64), 0)) == 0).all()


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({}, False),
        ({"scale": "tensor"}, True),
        ({"scale": "head"}, True),
        ({"scale": "head", "quantize_query": False}, False),
        ({"scale": "tensor", "format": "e5m2"}, False),
    ],
)
def test_runs_of_fp8_whose_queries_are_scaled_have_ids_of_their_own(knobs: dict[str, Any], told: bool) -> None:
    assert (make("fp8", **knobs).data_hash(ModelRef("m", "0")) is not None) == told


def symmetric(x: Array, largest: int) -> Array:
    """vLLM's triton_reshape_and_cache_flash.py of int8, a row at a time."""
    found = np.empty_like(x)
    for at, one in enumerate(x):
        scale = np.float32(max(np.abs(one).max() / np.float32(largest), np.float32(1e-6)))
        scaled = one * (np.float32(1) / scale)
        found[at] = np.clip(np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5)), -128, 127) * scale
    return found


@given(st.integers(0, 10_000), st.sampled_from([1e-9, 1e-3, 1.0, 1e4]), st.sampled_from([64, 80, 128]))
@settings(max_examples=25, deadline=None)
def test_int8_is_vllm_s_arithmetic(seed: int, size: float, dim: int) -> None:
    x = np.random.default_rng(seed).standard_normal((6, dim)).astype(np.float32) * np.float32(size)
    x[0] = 0
    found = read("int8_per_token_head", torch.from_numpy(x))[0].numpy()
    np.testing.assert_array_equal(found, symmetric(x, 127))


def test_int8_rounds_halves_away_from_zero() -> None:
    x = row(127.0, 0.5, -0.5, 1.5, 2.49)
    torch.testing.assert_close(read("int8_per_token_head", x)[0], row(127.0, 1.0, -1.0, 2.0, 2.0), rtol=0, atol=0)


def bfloat16(x: NDArray) -> Array:
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().float().numpy()


def butterflies(x: Array) -> Array:
    """The unnormalised Walsh-Hadamard transform along the last axis, by butterflies in float64."""
    found, half = x.astype(np.float64), 1
    while half < x.shape[-1]:
        pairs = found.reshape(*x.shape[:-1], -1, 2, half)
        found = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2)
        found, half = found.reshape(x.shape), half * 2
    return found.astype(np.float32)


@pytest.mark.parametrize("dim", [64, 80, 128])
def test_int4_is_vllm_s_arithmetic(dim: int) -> None:
    block = dim & -dim
    x = normal(dim, 40).numpy() * np.linspace(0.1, 5, dim, dtype=np.float32)
    coin = torch.bernoulli(torch.full((block,), 0.5), generator=torch.Generator().manual_seed(0x9E3779B9)).numpy()
    signs = (1 - 2 * coin).astype(np.float32)
    y = bfloat16(butterflies(bfloat16(bfloat16(x).reshape(40, -1, block) * signs))).reshape(40, dim)
    low, high = y.min(1, keepdims=True), y.max(1, keepdims=True)
    scale = np.maximum((high - low) / np.float32(15), np.float32(1e-6)).astype(np.float32)
    zero = np.clip(np.floor(-low / scale + np.float32(0.5)), 0, 15)
    shifted = y / scale + zero
    codes = np.clip(np.sign(shifted) * np.floor(np.abs(shifted) + np.float32(0.5)), 0, 15)
    kept = (scale.view(np.int32) & ~15).view(np.float32)  # the four lowest bits are the zero point
    expected = butterflies(((codes - zero) * kept).reshape(40, -1, block)) * signs / block
    found = read("int4_per_token_head", torch.from_numpy(x))[0].numpy()
    differs = np.abs(found - expected.reshape(40, dim)).max(1) > 1e-4 * np.abs(x).max()
    assert differs.mean() <= 0.1  # a sum on the edge of two bfloat16 numbers, and with it a code of its row
    key, _ = codecs("int4_per_token_head", torch.from_numpy(x)[None, None])
    held = key.encode(torch.from_numpy(x)[None, None], 0).tensors["scales"][0, 0, :, 0].view(torch.int32) & 15
    assert (held.numpy() == zero[:, 0]).mean() >= 0.9 and len(set(held.tolist())) > 3


def test_int4_s_queries_are_turned_in_bfloat16_too() -> None:
    rounding = make("int4_per_token_head").query_rounding()
    assert rounding is not None
    queries = normal(64, 30).view(3, 10, 64)
    found = rounding(queries)
    error = (found - queries).norm() / queries.norm()
    assert 5e-4 < float(error) < 4e-3  # 2^-9 is what bfloat16 leaves


def test_nvfp4_s_block_worked_by_hand() -> None:
    block = row(3.0, 1.3, 0.26, 0.25)  # scale .5: 6, 2.6, .52, .5 become 6, 3, .5, .5
    torch.testing.assert_close(read("nvfp4", block)[0], row(3.0, 1.5, 0.25, 0.25), rtol=0, atol=0)
    four = read("nvfp4", row(4.0, 3.0, 2.0, 1.0), four_over_six=True)[0]  # 6 would give 4, 2.66, 2, 1.33 or so
    torch.testing.assert_close(four, row(4.0, 3.0, 2.0, 1.0), rtol=0, atol=0)


def test_mxfp4_s_block_worked_by_hand() -> None:
    block = row(3.1, 1.3, 0.26, 0.25)
    torch.testing.assert_close(read("mxfp4", block)[0], row(3.0, 1.5, 0.5, 0.5), rtol=0, atol=0)
    assert float(read("mxfp4", row(6.0))[0][0, 0]) == 6.0 and float(read("mxfp4", row(6.1))[0][0, 0]) == 6.0
    # OCP takes the largest element's own exponent: 7 is beyond 6 and is cut, where SGLang doubles the step
    assert float(read("mxfp4", row(7.0), block=32)[0][0, 0]) == 6.0
    assert float(read("mxfp4", row(7.0))[0][0, 0]) == 8.0


def test_ultraquant_s_steps_are_powers_of_two_near_a_share_of_the_largest() -> None:
    x = normal(64, 100)
    found = read("ultraquant_4bit", x, boundary_layers=0)[1].numpy()
    blocks = x.numpy().reshape(-1, 32)
    steps = 2.0 ** np.round(np.log2(0.156 * np.abs(blocks).max(1, keepdims=True)))
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    expected = levels[np.abs(np.abs(blocks / steps)[..., None] - levels).argmin(-1)] * np.sign(blocks) * steps
    np.testing.assert_allclose(found.reshape(-1, 32), expected, atol=1e-6)
    turned = torch.from_numpy(butterflies(x.numpy()) / 8)
    keys = read("ultraquant_4bit", x, boundary_layers=0)[0]
    behind = butterflies(read("ultraquant_4bit", turned, boundary_layers=0)[1].numpy()) / 8
    assert np.isclose(keys.numpy(), behind, atol=1e-5).mean() > 0.99
    key, _ = codecs("ultraquant_4bit", x[None, None])
    assert key.bits(key.encode(x[None, None], 0)).item() == 4.25


def test_names_of_vllm_that_are_not_built_are_refused_with_the_reason() -> None:
    for name in ("octave_k3v4", "fp8_ds_mla", "nvfp4_ds_mla"):
        with pytest.raises(SpecError, match=f"^{name} is vLLM's name of a format that is not built: [^\n]+$"):
            make(name)


def test_e2m1_takes_the_nearest_level_and_breaks_ties_as_each_engine_does() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 9.0])
    assert from_e2m1(e2m1(halves, "even")).tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert from_e2m1(e2m1(halves, "up")).tolist() == [0.5, 1, 1.5, 2, 3, 4, 6, 6]
    x = torch.linspace(-7, 7, 4001)
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = levels[(x.abs()[:, None] - levels).abs().argmin(1)] * x.sign()
    for ties in ("even", "up"):
        found = from_e2m1(e2m1(x, ties))
        same = (found == nearest) | ((found - x).abs() == (nearest - x).abs())
        assert same.all()


def test_nvfp4_tries_four_only_where_it_is_closer() -> None:
    x = normal(64, 500)
    six, best = read("nvfp4", x)[0], read("nvfp4", x, four_over_six=True)[0]
    errors = [(found - x).unflatten(-1, (-1, 16)).square().sum(-1) for found in (best, six)]
    assert (errors[0] <= errors[1]).all() and (errors[0] < errors[1]).float().mean() > 0.3
    layer = codecs("nvfp4", x[None, None], scale="tensor")[0]
    assert layer.shared["scale"].item() == pytest.approx(float(x.abs().max()) / (6 * 448))


def test_turboquant_s_levels_are_the_solver_s() -> None:
    """vLLM's centroids.py as printed, and not the exact Lloyd-Max levels, which lie .001 further out."""
    printed = {2: [0.4526, 1.5096], 3: [0.2450, 0.7556, 1.3432, 2.1503]}
    printed[4] = [0.1284, 0.3881, 0.6569, 0.9424, 1.2563, 1.6179, 2.0684, 2.7309]
    for bits, levels in printed.items():
        found = centroids(bits)
        np.testing.assert_allclose(found[len(found) // 2 :], levels, atol=1e-4)
        np.testing.assert_allclose(found, [-level for level in found[::-1]], atol=1e-9)


def test_turboquant_s_key_is_a_norm_and_the_nearest_levels_of_its_direction() -> None:
    x = normal(64, 200).double().numpy() * np.linspace(0.2, 4, 64)
    levels = np.array(centroids(4)) / 8
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    turned = butterflies((x / (norms + 1e-8)).astype(np.float32)) / 8
    chosen = levels[np.abs(turned[..., None] - levels).argmin(-1)]
    chosen = chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
    expected = butterflies(chosen.astype(np.float32)) / 8 * norms.astype(np.float16).astype(np.float32)
    found = read("turboquant", torch.from_numpy(x).float(), preset="4bit_nc")[0].numpy()
    close = np.abs(found - expected).max(1) < 1e-3 * norms[:, 0]
    assert close.mean() > 0.99  # a coordinate on the edge of two levels may go either way
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), norms[:, 0], rtol=1e-3)  # what "nc" is for
    paper = read("turboquant", torch.from_numpy(x).float(), preset="paper")[0].norm(dim=1).numpy()
    assert 0.01 < np.abs(paper / norms[:, 0] - 1).mean() < 0.1


def test_turboquant_s_values_are_not_rotated() -> None:
    x = row(15.0, 1.4, 0.6, 0.0)
    torch.testing.assert_close(read("turboquant", x)[1], row(15.0, 1.0, 1.0, 0.0), rtol=0, atol=0)
    assert (read("turboquant", row(0.0) + 3)[1] == 3).all() and (read("turboquant", row(0.0))[0] == 0).all()


def test_turboquant_keeps_the_outer_layers_in_fp16_and_counts_them() -> None:
    lanes = [
        parse_lane({"method": "turboquant", "label": "own", "knobs": {"boundary_layers": 1}}),
        parse_lane({"method": "turboquant", "label": "all", "knobs": {"boundary_layers": 0}}),
    ]
    outcome = run_engine(tiny("llama", torch.float32), prompt_ids(40), lanes, 3, audit=True, ignore_eos=True)
    layers = tiny("llama").shape.layers
    quantized = [set(state.cache.quantized_layers) for state in outcome.decode.states if state.cache]
    assert quantized == [set(range(1, layers - 1)), set(range(layers))]
    assert make("turboquant", preset="paper").kept_layers(30) == frozenset()
    assert make("turboquant").kept_layers(30) == {0, 1, 28, 29}


@pytest.mark.parametrize("name", FORMATS)
def test_a_token_is_stored_alike_alone_and_among_others(name: str) -> None:
    x = normal(64, 2 * 3 * 9).view(2, 3, 9, 64)
    for codec in codecs(name, x):
        whole = codec.decode(codec.encode(x, 0))
        alone = torch.cat([codec.decode(codec.encode(x[..., at : at + 1, :], at)) for at in range(9)], -2)
        torch.testing.assert_close(alone, whole, rtol=1e-6, atol=1e-6)  # a matrix product's order of sums


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-30, 1e-12, 1e-4, 1.0, 300.0]))
@settings(max_examples=20, deadline=None)
def test_nothing_overflows_and_zeros_stay_zeros(seed: int, size: float) -> None:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(seed)) * size
    for name in FORMATS:
        for found in read(name, x):
            assert torch.isfinite(found).all(), name
            if size == 0:
                assert (found == 0).all(), name


@pytest.mark.parametrize("name", FORMATS)
def test_infinities_are_refused(name: str) -> None:
    key, value = codecs(name, normal(64, 8)[None, None])
    for codec in (key, value):
        with pytest.raises(MethodError, match="Tokens from 7 on hold infinities"):
            codec.encode(torch.full((1, 1, 2, 64), float("inf")), 7)


def test_heads_that_a_format_cannot_hold_are_refused_in_a_line() -> None:
    def shape(head_dim: int, layers: int = 30) -> ModelShape:
        return ModelShape(layers=layers, query_heads=4, kv_heads=2, head_dim=head_dim, context=512)

    assert make("nvfp4").why_not(shape(72)) == "head_dim = 72 is no multiple of its blocks of 16 channels"
    assert make("nvfp4").why_not(shape(80)) is None
    assert "32" in str(make("mxfp4", block=32).why_not(shape(80)))
    assert "power of two" in str(make("turboquant").why_not(shape(96)))
    lane = parse_lane({"method": "turboquant"})
    assert "it keeps all 4 layers of this model in fp16" in str(lane.why_not(shape(64, 4)))
    assert lane.why_not(shape(64, 5)) is None and make("turboquant").why_not(shape(64, 1)) is None
    with pytest.raises(SpecError, match="block = 64 is not allowed; allowed: 16, 32"):
        make("mxfp4", block=64)


def test_flags_are_those_of_the_format() -> None:
    assert make("fp8", format="e5m2").elsewhere()[0].how == "vllm serve M --kv-cache-dtype fp8_e5m2"
    assert make("turboquant", preset="k3v4_nc").elsewhere()[0].how.endswith("turboquant_k3v4_nc")
    assert make("nvfp4", four_over_six=True).elsewhere()[0].how.endswith("nvfp4_4over6")
    assert make("turboquant", preset="paper").elsewhere() == () == make("mxfp4", block=32).elsewhere()
    assert {name for name in methods() if name.endswith("_per_token_head")} == {
        way.how.split()[-1] for name in methods() if name.endswith("_per_token_head") for way in make(name).elsewhere()
    }


def test_a_head_that_cannot_be_turned_whole_is_turned_in_the_engines_blocks_and_says_so() -> None:
    x = torch.randn(1, 2, 5, 80, generator=torch.Generator().manual_seed(1))
    assert "blocks of 16 channels" in make("int4_per_token_head").fit(Prompt(x, x, None)).notes[0]
    assert not make("int4_per_token_head").fit(Prompt(x[..., :64], x[..., :64], None)).notes
