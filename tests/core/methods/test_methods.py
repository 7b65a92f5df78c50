"""Methods on tensors: golden arrays, independent computations, and properties that must hold for any input."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import kvq_core
from kvq_core.errors import SpecError
from kvq_core.methods import Prompt, Window, knobs, make, methods
from kvq_core.methods.squat import block_updates, subspace_gram

FIXTURES = Path(__file__).parents[2] / "fixtures"


def golden(name: str) -> dict[str, Tensor]:
    with np.load(FIXTURES / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.ascontiguousarray(arrays[key])) for key in arrays.files}


@pytest.fixture(scope="module")
def inputs() -> dict[str, Tensor]:
    arrays = golden("inputs")
    return {k: v.float() if k in ("cos", "sin") else v[0].float() for k, v in arrays.items()}


def random_cache(kv_heads: int, groups: int, tokens: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    keys = torch.randn(kv_heads, tokens, dim, generator=g) + 2 * torch.randn(kv_heads, 1, dim, generator=g)
    values = torch.randn(kv_heads, tokens, dim, generator=g)
    queries = torch.randn(kv_heads * groups, tokens, dim, generator=g) * torch.linspace(3, 0.1, dim)
    return keys, values, queries


def tables(tokens: int, dim: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(tokens)[:, None] * 1e4 ** (-torch.arange(dim // 2) / (dim // 2))
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def test_kivi_reproduces_the_golden_arrays(inputs: dict[str, Tensor]) -> None:
    expected = golden("kivi_b2_float32")
    result = kvq_core.roundtrip(make("kivi", bits=2), inputs["k"], inputs["v"], metadata="float32")
    torch.testing.assert_close(result.keys, expected["k_deq"][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(result.values, expected["v_deq"][0], rtol=0, atol=1e-5)
    # 256 tokens x 2 heads x 64 channels: 2-bit codes, and a float32 scale and minimum a group of 32
    assert result.nbytes["key_codes"] == 2 * 256 * 64 * 2 // 8
    assert result.nbytes["key_scales"] == result.nbytes["key_zeros"] == 2 * 64 * 8 * 4
    assert result.key_bits == result.value_bits == 4.0


def test_kivi_s_codes_scales_and_minima_are_the_golden_ones(inputs: dict[str, Tensor]) -> None:
    expected = golden("kivi_b2_float32")
    fitted = make("kivi", bits=2).fit(Prompt(inputs["k"][None], inputs["v"][None], None, torch.float32))
    for name, codec, x in (("k", fitted.key, inputs["k"]), ("v", fitted.value, inputs["v"])):
        block = codec.encode(x[None], 0)
        stored = codec.load(block)
        codes = stored.codes.transpose(-1, -2) if name == "k" else stored.codes  # keys are stored channel by channel
        assert (codes != expected[f"{name}_codes"]).double().mean() < 1e-3
        torch.testing.assert_close(stored.scales, expected[f"{name}_scale"].float(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(stored.zeros, expected[f"{name}_zero"].float(), rtol=1e-5, atol=1e-6)


def test_kivi_as_lanes_store_it_takes_three_bits(inputs: dict[str, Tensor]) -> None:
    result = kvq_core.roundtrip(make("kivi", bits=2), inputs["k"], inputs["v"])
    assert result.key_bits == result.value_bits == 3.0


def test_squat_reproduces_the_golden_arrays(inputs: dict[str, Tensor]) -> None:
    expected = golden("squat_k_subq_per_channel_b2_r5_g32_lam0.001")
    method = make("squat", bits=2, subspace_rank=5, regularization=1e-3, block_size=32)
    prompt = Prompt(inputs["k"][None], inputs["v"][None], inputs["q"][None], torch.float32)
    gram, wanted = subspace_gram(prompt.query_gram(), 5)[0], expected["gram"].double()  # made by a float32 SVD
    assert (gram - wanted).abs().max() < 1e-4 * wanted.abs().max()
    codec = method.fit(prompt).key
    block = codec.encode(inputs["k"][None], 0)
    stored = codec.load(block)
    codes = stored.codes.transpose(-1, -2)  # stored channel by channel
    assert (codes != expected["codes"]).double().mean() < 1e-3
    torch.testing.assert_close(stored.scales, expected["scale"].float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(stored.zeros, expected["zero"].float(), rtol=0, atol=1e-4)
    inverse = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + 1e-3 * gram)
    torch.testing.assert_close(inverse, expected["P_inv"].double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(codec.decode(block), expected["deq"].float(), rtol=0, atol=1e-4)


def test_block_update_equals_the_papers_matrices(inputs: dict[str, Tensor]) -> None:
    """-P_RR^-1 P_RT against B_t H_t of Proposition 1 and Lemma 3, in float64."""
    q = inputs["q"].double().reshape(2, -1, 64)[:1]
    gram, _ = subspace_gram((q.transpose(-1, -2) @ q)[None], 5)
    inverse = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + 1e-3 * gram)[0, 0]
    for block in (8, 16, 32):
        for update, end in zip(block_updates(gram, 1e-3, block), range(block, 64, block), strict=True):
            h = torch.linalg.inv(inverse[:end, :end])[:, -block:]
            torch.testing.assert_close(update[0, 0].double(), (inverse[end:, :end] @ h).T, rtol=1e-4, atol=1e-6)


def test_squat_minimises_its_objective() -> None:
    """The remaining channels are the best possible against the query subspace: gradient zero at the solution."""
    keys, _, queries = random_cache(1, 2, 96, 32)
    gram = subspace_gram(
        (queries.double().reshape(1, -1, 32).transpose(-1, -2) @ queries.double().reshape(1, -1, 32))[None], 5
    )[0]
    p = torch.eye(32, dtype=torch.float64) + 0.01 * gram[0, 0]
    error = torch.randn(16, dtype=torch.float64)
    rest = error @ block_updates(gram, 0.01, 16)[0][0, 0].double()
    gradient = p @ torch.cat([error, rest])
    assert gradient[16:].abs().max() < 1e-4 * gradient[:16].abs().max()


def test_squat_lowers_score_error_and_raises_key_error(inputs: dict[str, Tensor]) -> None:
    """The trade the paper makes: scores over the causal pairs closer, keys themselves further."""
    keys, queries = inputs["k"], inputs["q"]

    def score_error(read: Tensor) -> float:
        return float((queries @ (read - keys).repeat_interleave(2, 0).transpose(-1, -2)).tril().square().mean().sqrt())

    kivi = kvq_core.roundtrip(make("kivi"), keys, inputs["v"]).keys
    for block in (32, 8):
        squat = kvq_core.roundtrip(make("squat", block_size=block), keys, inputs["v"], queries).keys
        assert score_error(squat) < 0.95 * score_error(kivi)
        assert (squat - keys).norm() > (kivi - keys).norm()


@pytest.mark.parametrize("change", [{"regularization": 0.0}, {"block_size": 64}])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_squat_without_its_update_is_kivi(change: dict[str, float], bits: int) -> None:
    keys, values, queries = random_cache(2, 3, 128, 64)
    squat = kvq_core.roundtrip(make("squat", bits=bits, **change), keys, values, queries)
    kivi = kvq_core.roundtrip(make("kivi", bits=bits), keys, values)
    assert torch.equal(squat.keys, kivi.keys) and torch.equal(squat.values, kivi.values)
    assert squat.nbytes == kivi.nbytes


def test_squat_pre_rotates_back(inputs: dict[str, Tensor]) -> None:
    """At 8 bits the stored unrotated keys read back as the rotated ones."""
    rope = (inputs["cos"], inputs["sin"])
    result = kvq_core.roundtrip(make("squat", bits=8, rope="pre"), inputs["k"], inputs["v"], inputs["q"], rope)
    assert (result.keys - inputs["k"]).norm() / inputs["k"].norm() < 0.01


def test_squat_warns_where_the_paper_collapses() -> None:
    keys, values, queries = random_cache(1, 1, 64, 64)
    loud = make("squat", regularization=10.0).fit(Prompt(keys[None], values[None], 9 * queries[None]))
    quiet = make("squat", regularization=1e-4).fit(Prompt(keys[None], values[None], queries[None]))
    assert any("lower λ" in note for note in loud.notes) and not any("lower λ" in note for note in quiet.notes)


QUANTIZING = [
    name for name, cls in methods().items() if cls.quantizes and name in ("kivi", "squat", "per_token", "per_channel")
]


@pytest.mark.slow
@given(
    name=st.sampled_from(QUANTIZING),
    kv_heads=st.integers(1, 3),
    groups=st.sampled_from([1, 3, 4, 8]),
    tokens=st.integers(1, 70),
    bits=st.sampled_from([1, 2, 3, 4, 8]),
    kind=st.sampled_from(["normal", "zero", "constant", "huge"]),
    windows=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_any_input_gives_finite_and_bounded_results(
    name: str, kv_heads: int, groups: int, tokens: int, bits: int, kind: str, windows: bool, seed: int
) -> None:
    """One token, odd lengths, T below a group, zero-range groups, every GQA ratio: finite, in range, real bytes."""
    keys, values, queries = random_cache(kv_heads, groups, tokens, 32, seed)
    if kind in ("zero", "constant"):
        keys, values = torch.full_like(keys, float(kind == "constant")), torch.full_like(values, -3.0)
    elif kind == "huge":
        keys, values = keys * 3e3, values * 1e-6
    result = kvq_core.roundtrip(make(name, bits=bits), keys, values, queries, windows=windows, metadata="float16")
    for read, true in ((result.keys, keys), (result.values, values)):
        assert torch.isfinite(read).all()
        if kind in ("zero", "constant"):
            torch.testing.assert_close(read, true)
        if name != "squat":
            spread = true.amax() - true.amin()
            lost = 2**bits * 2.0**-24  # a range whose scale is below fp16's smallest number is not resolved
            assert (read - true).abs().max() <= 0.51 * spread / (2**bits - 1) + 2e-3 * true.abs().max() + lost
    assert all(size > 0 for size in result.nbytes.values())


@pytest.mark.parametrize("name", QUANTIZING)
def test_eight_bits_are_near_lossless(name: str) -> None:
    keys, values, queries = random_cache(2, 2, 256, 64)
    result = kvq_core.roundtrip(
        make(name, bits=8, group_size=8, residual_length=32), keys, values, queries, metadata="float16"
    )
    assert (result.keys - keys).norm() / keys.norm() < 4e-3
    assert (result.values - values).norm() / values.norm() < 4e-3


@pytest.mark.parametrize(
    ("bits", "group", "expected"), [(2, 32, 3.0), (4, 32, 5.0), (2, 64, 2.5), (3, 32, 4.0), (1, 32, 2.0), (8, 8, 12.0)]
)
def test_bits_are_those_of_the_formula(bits: int, group: int, expected: float) -> None:
    """b + 32 / G with fp16 scale and minimum, from the bytes of the tensors held."""
    keys, values, queries = random_cache(2, 1, 256, 64)
    for name in QUANTIZING:
        method = make(name, bits=bits, group_size=group, residual_length=64)
        result = kvq_core.roundtrip(method, keys, values, queries, metadata="float16")
        assert result.key_bits == result.value_bits == expected


def test_keys_and_values_have_their_own_width() -> None:
    keys, values, _ = random_cache(1, 1, 64, 64)
    result = kvq_core.roundtrip(make("kivi", key_bits=4, value_bits=2), keys, values, metadata="float16")
    assert (result.key_bits, result.value_bits) == (5.0, 3.0)


@given(sink=st.integers(0, 40), recent=st.integers(0, 40), step=st.integers(1, 40), tokens=st.integers(0, 300))
def test_window_bounds(sink: int, recent: int, step: int, tokens: int) -> None:
    """A window keeps at least ``recent`` tokens and fewer than ``recent + step``, and packs whole steps."""
    window = Window(sink, recent, step)
    packed = window.packed(tokens)
    left = max(0, tokens - sink) - packed
    assert packed % step == 0 and packed >= 0
    assert left < recent + step and (left >= recent or packed == 0)
    assert window.frozen(tokens) == min(tokens, sink + packed)


def test_unknown_methods_and_knobs_are_named() -> None:
    with pytest.raises(SpecError, match="Did you mean 'kivi'"):
        make("kvi")
    with pytest.raises(SpecError, match="bits = 7 is not allowed; allowed: 1, 2, 3, 4, 8"):
        make("kivi", bits=7)
    with pytest.raises(SpecError, match="use 64"):
        make("kivi", residual_length=33)
    with pytest.raises(SpecError, match="unknown knob 'bit'"):
        make("kivi", bit=2)


def test_roundtrip_says_what_is_missing() -> None:
    keys, values, queries = random_cache(2, 1, 16, 32)
    with pytest.raises(SpecError, match="needs queries"):
        kvq_core.roundtrip(make("squat"), keys, values)
    with pytest.raises(SpecError, match="rope"):
        kvq_core.roundtrip(make("squat", rope="pre"), keys, values, queries)
    with pytest.raises(SpecError, match="must both be"):
        kvq_core.roundtrip(make("kivi"), keys, values[:, :3])
    with pytest.raises(SpecError, match="does not divide"):
        kvq_core.roundtrip(make("per_token", group_size=24), keys, values)


def test_every_method_is_documented_for_people() -> None:
    for name, cls in methods().items():
        assert cls.name == name and cls.title and (cls.__doc__ or "").strip()
        for knob in knobs(cls):
            assert knob.help, f"{name}.{knob.name} has no help"


def test_methods_are_frozen_and_hashable() -> None:
    assert len({make("kivi"), make("kivi"), make("kivi", bits=4)}) == 2
    with pytest.raises(Exception, match="frozen"):
        make("kivi").bits = 3  # type: ignore[attr-defined]


def test_pre_rope_tables_are_inverted(inputs: dict[str, Tensor]) -> None:
    from kvq_core.models.rope import Rope

    cos, sin = tables(64, 32)
    x = torch.randn(2, 3, 64, 32)
    for factor, dtype in ((1.0, torch.float32), (1.139, torch.float32), (1.0, torch.bfloat16)):
        rope = Rope.of((cos * factor).to(dtype).float(), (sin * factor).to(dtype).float(), 32)
        torch.testing.assert_close(rope.unrotate(rope.rotate(x, 0), 0), x, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rope.rotate(x, 0)[..., 5:9, :], rope.rotate(x[..., 5:9, :], 5))
    given = Rope.of(inputs["cos"], inputs["sin"], 64)
    for name in ("q", "k"):  # golden tensors before and after RoPE are rounded to fp16 each
        back = given.unrotate(inputs[name][None], 0)[0]
        torch.testing.assert_close(back, inputs[f"{name}_pre"], rtol=2e-3, atol=2e-3)
