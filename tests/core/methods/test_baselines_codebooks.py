"""KVQuant and residual vector quantization: what is fitted on a prompt and stored by it; and any input to all."""

from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvq_kernels import unpack

import kvq_core
from kvq_core.codecs.stream import Stream
from kvq_core.methods import ModelShape, make
from kvq_core.methods.baselines.codebooks import kmeans, nearest_codes, sum_of_centres, train_codebooks
from kvq_core.methods.baselines.level_codecs import ranges
from kvq_core.methods.baselines.levels import fitted_levels, level_of, nearest_level
from tests.core.methods.test_baselines_storage import DIM, HEADS, TOKENS, Array, array, by_head, by_token, random_prompt
from tests.core.methods.test_methods import tables

CHANNELS = HEADS * DIM


# levels


def loss(numbers: Array, levels: Array) -> float:
    return float(np.square(np.abs(numbers[:, None] - levels).min(1)).mean())


def test_levels_of_a_normal_variable_are_lloyd_and_max_s() -> None:
    """Max, Quantizing for minimum distortion (1960), table I: 2 bits .4528 and 1.510, 3 bits .2451 to 2.152."""
    numbers = torch.randn(1, 400_000, generator=torch.Generator().manual_seed(0))
    inside = numbers.abs() < 5.5
    found = 5.5 * fitted_levels((numbers / 5.5).clamp(-1, 1), inside, 4)
    torch.testing.assert_close(found, torch.tensor([[-1.510, -0.4528, 0.4528, 1.510]]), rtol=0, atol=0.02)
    found = 5.5 * fitted_levels((numbers / 5.5).clamp(-1, 1), inside, 8)
    torch.testing.assert_close(found[0, 4:], torch.tensor([0.2451, 0.7560, 1.344, 2.152]), rtol=0, atol=0.03)


def test_levels_are_means_of_what_is_nearest_and_leave_out_what_does_not_count() -> None:
    g = torch.Generator().manual_seed(3)
    numbers = torch.tanh(torch.randn(3, 5000, generator=g) * torch.tensor([[0.2], [1.0], [3.0]]))
    inside = torch.rand(3, 5000, generator=g) < 0.8
    found = fitted_levels(numbers, inside, 4)
    for x, counts, levels in zip(numbers.double().numpy(), inside.numpy(), found.double().numpy(), strict=True):
        own = x[counts]
        nearest = np.abs(own[:, None] - levels).argmin(1)
        np.testing.assert_allclose([own[nearest == i].mean() for i in range(4)], levels, atol=2e-3)
        assert loss(own, levels) < loss(own, np.quantile(own, (np.arange(4) + 0.5) / 4))
        assert loss(own, levels) < loss(own, np.linspace(-1, 1, 4))
    two = torch.tensor([[-0.5, -0.25, 0.75, 1.0, 1.0]])
    expected = torch.tensor([[-0.375, 2.75 / 3]])
    torch.testing.assert_close(fitted_levels(two, two < 2, 2), expected)


def test_the_nearest_level_is_read_back() -> None:
    levels = torch.tensor([[-1.0, 0, 0.5, 1], [0, 0, 0, 1]])
    numbers = torch.tensor([[-2.0, -0.4, 0.25, 0.26, 0.76], [0.4, 0.6, -1, 0, 1]])
    codes = nearest_level(numbers, levels)
    assert codes[0].tolist() == [0, 1, 1, 2, 3]
    assert level_of(codes, levels)[0].tolist() == [-1, 0, 0, 0.5, 1]
    assert level_of(codes, levels)[1].tolist() == [0, 1, 0, 0, 1]


# KVQuant


def leveled(rows: Array, fraction: float, levels: Array, low_high: tuple[Array, Array] | None = None) -> Array:
    """Rows (n, m) by their nearest levels within their own range without outliers, which are kept; or within ranges
    (m,) given, beyond which all is kept."""
    out = np.empty_like(rows)
    each = ceil(fraction / 2 * rows.shape[1])
    for i, row in enumerate(rows):
        order = np.sort(row)
        low, high = (order[each], order[len(row) - 1 - each]) if low_high is None else (low_high[0], low_high[1])
        middle, half = (low + high) / 2, (high - low) / 2
        unit = (row - middle) / half
        read = levels[np.abs(unit[:, None] - levels).argmin(1)] * half + middle
        out[i] = np.where((row < low) | (row > high), row, read)
    return out


@pytest.mark.parametrize(("bits", "fraction"), [(2, 0.01), (3, 0.05), (4, 0)])
def test_kvquant_is_levels_and_outliers(bits: int, fraction: float) -> None:
    prompt = random_prompt()
    fitted = make("kvquant", bits=bits, outlier_fraction=fraction).fit(prompt)
    key, value = fitted.key, fitted.value
    assert key is not None and value is not None
    read = value.decode(value.encode_prompt(prompt.values, 0))
    expected = by_head(leveled(by_token(array(prompt.values)), fraction, array(value.shared["levels"])))
    assert (np.abs(array(read) - expected) > 2e-3).mean() < 2e-3
    rows = np.sort(array(prompt.keys).transpose(0, 2, 1).reshape(CHANNELS, TOKENS), 1)
    each = ceil(fraction / 2 * TOKENS)
    ends = rows[:, each], rows[:, TOKENS - 1 - each]
    read = key.decode(key.encode_prompt(prompt.keys, 0))
    expected = by_head(leveled(by_token(array(prompt.keys)), 0, array(key.shared["levels"]), ends))
    assert (np.abs(array(read) - expected) > 1e-2).mean() < 2e-3
    assert any("prompt-only" in note for note in fitted.notes)


def test_kvquant_costs_what_its_formula_says() -> None:
    prompt = random_prompt(metadata=torch.float16)
    method = make("kvquant")
    found = kvq_core.roundtrip(method, prompt.keys[0], prompt.values[0], None, tables(TOKENS, DIM), metadata="float16")
    assert found.nbytes["value_outliers"] == found.nbytes["value_positions"] == 2 * TOKENS * 2
    assert found.value_bits == pytest.approx(2 + (32 + 2 * 32) / CHANNELS + 4 * 16 / (CHANNELS * TOKENS))
    kept = found.nbytes["key_outliers"] / 2
    assert 0.012 < kept / (CHANNELS * TOKENS) <= 2 / TOKENS  # one at either end of 128, less by what rounding takes in
    fixed = sum(found.nbytes[f"key_{name}"] for name in ("levels", "middles", "halves"))
    assert fixed == method.fixed_bytes(ModelShape(1, 4, HEADS, DIM, TOKENS))[0]
    assert found.key_bits == pytest.approx(2 + (16 + 32 * kept / TOKENS) / CHANNELS + 8 * fixed / (CHANNELS * TOKENS))
    codec = method.fit(prompt).key
    assert codec is not None
    block = codec.encode_prompt(prompt.keys, 0)
    bits = codec.bits(block)  # by token
    assert bits.shape == (1, 1, TOKENS, 1) and len(bits.unique()) > 1
    assert bits.mean().item() == pytest.approx(8 * sum(block.nbytes.values()) / prompt.keys.numel())


@pytest.mark.parametrize("name", ["kvquant", "gear", "uniform"])
def test_outliers_and_codes_are_counted(name: str) -> None:
    prompt = random_prompt()
    fitted = make(name, outlier_fraction=0.04).fit(prompt)
    for codec in (fitted.key, fitted.value):
        assert codec is not None and codec.usage([]) == {}
        blocks = [codec.encode_prompt(prompt.keys, 0), codec.encode(prompt.keys[..., :64, :], TOKENS)]
        found = codec.usage(blocks)
        kept = sum(block.tensors["positions"].numel() for block in blocks)
        assert found["outlier_share"].shape == (1, HEADS)
        assert found["outlier_share"][0, 1].item() == pytest.approx(kept / (CHANNELS * (TOKENS + 64)))
        assert found["code_counts"].sum() == CHANNELS * (TOKENS + 64)


def test_later_keys_beyond_the_prompt_s_range_are_kept_or_clipped() -> None:
    prompt = random_prompt()
    later = prompt.keys[..., :5, :] * 20
    keeping, clipping = (make("kvquant", outlier_fraction=f).fit(prompt).key for f in (0.01, 0))
    assert keeping is not None and clipping is not None
    low, high = (prompt.keys.sort(-2).values[:, :, at, None] for at in (1, -2))
    beyond = (later < low * 1.01 - 0.01) | (later > high * 1.01 + 0.01)
    beyond &= (later < low - 0.1) | (later > high + 0.1)
    read = keeping.decode(keeping.encode(later, TOKENS))
    assert beyond.float().mean() > 0.5 and torch.equal(read[beyond], later.half().float()[beyond])
    clipped = clipping.decode(clipping.encode(later, TOKENS))
    most = prompt.keys.abs().amax(-2, keepdim=True) * 1.01
    assert (clipped.abs() <= most).all() and (clipped[beyond] != read[beyond]).all()


def test_ranges_hold_all_but_the_outliers() -> None:
    rows = torch.randn(40, 1001, generator=torch.Generator().manual_seed(2)) * 1000 + 300
    middle, half, at = ranges(rows, 0.01, torch.float16)
    inside = ((rows - middle.float()) / half.float()).abs() <= 1
    assert at.shape == (40, 12) and inside.scatter(-1, at, True).all()
    assert inside.gather(-1, at).float().mean() < 0.2  # a few next to the range are within it once it is rounded


# residual vector quantization


def test_more_rounds_and_more_stages_never_hurt() -> None:
    """The objective of k-means falls round by round, as long as no centre loses all its vectors."""
    x = torch.randn(1500, 8, generator=torch.Generator().manual_seed(1)) * torch.linspace(3, 0.3, 8)
    errors = [(torch.cdist(x, kmeans(x, 32, rounds)).amin(1) ** 2).mean().item() for rounds in range(6)]
    assert errors == sorted(errors, reverse=True) and errors[5] < 0.8 * errors[0]
    books = train_codebooks(x, 32, 5)
    left = [(x - sum_of_centres(nearest_codes(x, books[:n]), books[:n])).square().mean().item() for n in range(1, 6)]
    assert left == sorted(left, reverse=True) and left[4] < 0.3 * left[0]


def test_no_centre_stays_empty() -> None:
    """Five places, most vectors at one of them: drawn at random, several centres begin there."""
    places = torch.tensor([0.0, 10, 20, 30, 40])[:, None].expand(-1, 4)
    x = torch.cat([places[:1].expand(200, -1), places.repeat_interleave(3, 0)])
    assert (torch.cdist(x, kmeans(x, 5, 10)).amin(1)).max() < 1e-3


def test_codes_are_greedy_and_their_entries_add_up() -> None:
    g = torch.Generator().manual_seed(4)
    x, books = torch.randn(30, 32, generator=g), torch.randn(3, 16, 32, generator=g).half()
    codes = nearest_codes(x, books)
    for row, own, read in zip(x.double().numpy(), codes, sum_of_centres(codes, books).numpy(), strict=True):
        total = np.zeros(32)
        for book, code in zip(books.double().numpy(), own.tolist(), strict=True):
            assert code == np.square(row - total - book).sum(1).argmin()
            total += book[code]
        np.testing.assert_allclose(read, total, atol=1e-5)


def test_rvq_stores_codes_and_counts_its_codebooks() -> None:
    prompt = random_prompt()
    method = make("rvq", entries=64, steps=8)
    found = kvq_core.roundtrip(method, prompt.keys[0], prompt.values[0], None, tables(TOKENS, DIM))
    assert found.nbytes["value_codes"] * 8 == 6 * 8 * TOKENS * CHANNELS // 32
    size = found.nbytes["value_codebooks"]
    assert (size, size) == method.fixed_bytes(ModelShape(1, 4, HEADS, DIM, TOKENS)) == (2 * 64 * 8 * 32,) * 2
    assert found.value_bits == 1.5 + 8 * size / (TOKENS * CHANNELS)
    codec = method.fit(prompt).value
    assert codec is not None
    block = codec.encode_prompt(prompt.values, 0)
    codes = unpack(block.tensors["codes"], 6, 4 * 8).view(TOKENS, 4, 8)  # vectors of 32 channels, steps
    books, read = array(codec.shared["codebooks"]), by_token(array(codec.decode(block)))
    for token, vector in ((0, 0), (77, 3), (127, 1)):
        total = sum(books[step, code] for step, code in enumerate(codes[token, vector].tolist()))
        np.testing.assert_allclose(read[token, 32 * vector : 32 * vector + 32], total, atol=1e-5)
    counts = codec.usage([block, block])["code_counts"]
    assert counts.shape == (1, 1, 8, 64) and (counts.sum(-1) == 2 * 4 * TOKENS).all()


@pytest.mark.parametrize("tokens", [1, 3])
def test_few_vectors_are_their_own_codebook(tokens: int) -> None:
    prompt = random_prompt(tokens)
    method = make("rvq")
    fitted = method.fit(prompt)
    for codec, x in ((fitted.key, prompt.keys), (fitted.value, prompt.values)):
        assert codec is not None and codec.shared["codebooks"].shape == (1, 8, 4 * tokens, 32)
        torch.testing.assert_close(codec.decode(codec.encode_prompt(x, 0)), x, rtol=1e-5, atol=1e-5)
    assert f"{4 * tokens} entries a step" in fitted.notes[0]
    parts = {"key_codebooks": 2.0 * 8 * 4 * tokens * 32}
    shape = ModelShape(1, 4, HEADS, DIM, tokens)
    assert method.as_stored(parts, shape).fixed_bytes(shape)[0] == parts["key_codebooks"]


@pytest.mark.parametrize("name", ["kvquant", "rvq"])
def test_tokens_enter_one_by_one_as_they_enter_together(name: str) -> None:
    """Both are fitted once, and a token's codes are its own from then on."""
    prompt = random_prompt()
    method = make(name)
    codec = method.fit(prompt).value
    together = Stream.of_prompt(prompt.values, method.windows()[1], codec)
    stream = Stream.of_prompt(prompt.values[..., :120, :], method.windows()[1], codec)
    for at in range(120, TOKENS):
        stream.append(prompt.values[..., at : at + 1, :])
        stream.flush()
    assert stream.packed_tokens == TOKENS
    torch.testing.assert_close(stream.decode(), together.decode(), rtol=0, atol=2e-3)


def test_what_is_refused_is_said_in_a_line() -> None:
    said = make("rvq").why_not(ModelShape(2, 3, 1, 80, 64))
    assert said == "a vector of channels = 32 does not divide 80, the 1 KV heads of 80 channels side by side; " + (
        "choose a divisor of 80"
    )


@pytest.mark.slow
@given(
    name=st.sampled_from(["uniform", "gear", "zipcache", "think", "kvquant", "rvq"]),
    heads=st.integers(1, 3),
    tokens=st.integers(1, 40),
    kind=st.sampled_from(["normal", "zero", "constant", "huge"]),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_input_gives_finite_results_and_bytes(name: str, heads: int, tokens: int, kind: str, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    keys, values, queries = (torch.randn(heads * n, tokens, 32, generator=g) for n in (1, 1, 3))
    if kind in ("zero", "constant"):
        keys, values = torch.full_like(keys, float(kind == "constant")), torch.full_like(values, -3.0)
    elif kind == "huge":
        keys, values = keys * 3e3, values * 1e-6
    knobs = {"group_size": 16} if name in ("uniform", "gear") else {}
    if name in ("uniform", "gear"):
        knobs["outlier_fraction"] = 0.1
    result = kvq_core.roundtrip(make(name, **knobs), keys, values, queries, tables(tokens, 32), metadata="float16")
    assert torch.isfinite(result.keys).all() and torch.isfinite(result.values).all()
    if kind in ("zero", "constant"):
        torch.testing.assert_close(result.values, values, rtol=1e-3, atol=0)
    assert all(size > 0 for size in result.nbytes.values())
