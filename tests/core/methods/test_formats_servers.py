"""Formats of vLLM, SGLang and TensorRT-LLM: hand-worked blocks, the servers' arithmetic written again in NumPy, and the
errors that other implementations have on normal variables."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from kvq_core.codecs.queries import rounded_e4m3
from kvq_core.errors import MethodError, SpecError
from kvq_core.methods import ModelRef, Prompt, make, methods
from kvq_core.shape import ModelShape
from kvq_core.spec import parse_lane
from tests.support.format_blocks import Array, bfloat16, butterflies, codecs, normal, read, row

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


@pytest.mark.few(sample=4)
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


@pytest.mark.parametrize("scale", ["one", "tensor", "head"])
def test_fp8_rounds_queries_at_scale_1_whatever_its_scale(scale: str) -> None:
    method = make("fp8", scale=scale)
    assert method.query_rounding() is rounded_e4m3 and method.data_hash(ModelRef("m", "0")) is None


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


def test_names_of_vllm_that_are_not_built_are_refused_with_the_reason() -> None:
    for name in ("octave_k3v4", "fp8_ds_mla", "nvfp4_ds_mla"):
        with pytest.raises(SpecError, match=f"^{name} is vLLM's name of a format that is not built: [^\n]+$"):
            make(name)


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
