"""Uniform rounding, GEAR, ZipCache and ThinK against second implementations in float64, and their bits."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import kvq_core
from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.stream import Stream
from kvq_core.methods import ModelShape, make
from kvq_core.methods.base import Prompt
from kvq_core.methods.baselines.gear import low_rank
from kvq_core.methods.baselines.zipcache import probes, saliency

Array = NDArray[np.float64]
HEADS, TOKENS, DIM = 2, 128, 64


def random_prompt(tokens: int = TOKENS, seed: int = 0, metadata: torch.dtype = torch.float32) -> Prompt:
    """Keys with outlier channels and a common part, one layer, two KV heads, four query heads."""
    g = torch.Generator().manual_seed(seed)
    strong = torch.rand(HEADS, 1, DIM, generator=g).square() * 6
    keys = torch.randn(HEADS, tokens, DIM, generator=g) * strong + torch.randn(HEADS, 1, DIM, generator=g)
    values = torch.randn(HEADS, tokens, DIM, generator=g) * 0.3
    queries = torch.randn(2 * HEADS, tokens, DIM, generator=g)
    return Prompt(keys[None], values[None], queries[None], metadata, rotated=keys[None])


def array(x: Tensor) -> Array:
    return x[0].double().numpy()


def rounded(row: Array, bits: int) -> Array:
    """A group on its even grid."""
    scale = (row.max() - row.min()) / (2**bits - 1)
    return np.round((row - row.min()) / scale) * scale + row.min() if scale else np.full_like(row, row.min())


def grouped(rows: Array, bits: int, size: int) -> Array:
    """Groups of ``size`` along the last dimension of rows (n, m)."""
    out = np.empty_like(rows)
    for i, row in enumerate(rows):
        for at in range(0, len(row), size):
            out[i, at : at + size] = rounded(row[at : at + size], bits)
    return out


def by_token(x: Array) -> Array:
    """(heads, tokens, dim) -> (tokens, heads * dim)."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def by_head(rows: Array, heads: int = HEADS) -> Array:
    return rows.reshape(len(rows), heads, -1).transpose(1, 0, 2)


def near(found: Tensor, expected: Array, atol: float) -> None:
    """Equal but for the few codes that a tie turns."""
    off = np.abs(array(found) - expected) > atol
    assert off.mean() < 1e-3, off.mean()


# uniform


def test_a_block_worked_by_hand() -> None:
    """10 of 8 elements is kept; -1, 0 and 2 beside it lie on steps of 1, as 0, 1, 2, 3 do: all is read as it was."""
    row = torch.tensor([0.0, 1, 2, 3, 10, -1, 2, 0]).view(1, 1, 8)
    apart = make("uniform", bits=2, group_size=4, outlier_fraction=1 / 8)
    found = kvq_core.roundtrip(apart, row, row, metadata="float16")
    assert torch.equal(found.keys, row) and torch.equal(found.values, row)
    assert found.nbytes["key_outliers"] == found.nbytes["key_positions"] == 2 and found.key_bits == 2 + 32 / 4 + 32 / 8
    plain = kvq_core.roundtrip(make("uniform", bits=2, group_size=4), row, row, metadata="float32").keys[0, 0]
    torch.testing.assert_close(plain, torch.tensor([0, 1, 2, 3, 10, -1, 8 / 3, -1]))


@pytest.mark.parametrize(("bits", "group", "count"), [(4, 64, 0), (3, 16, 3), (2, 128, 1)])
def test_uniform_is_plain_rounding_with_outliers_apart(bits: int, group: int, count: int) -> None:
    prompt = random_prompt()
    method = make("uniform", bits=bits, group_size=group, outlier_fraction=count / 128)
    found = kvq_core.roundtrip(method, prompt.keys[0], prompt.values[0], metadata="float32")
    rows = by_token(array(prompt.keys))
    expected = rows.copy()
    for row, out in zip(rows, expected, strict=True):
        apart = np.argsort(-np.abs(row))[:count]
        for at in range(0, 128, group):
            inside = np.setdiff1d(np.arange(at, at + group), apart)
            out[inside] = rounded(row[inside], bits)
    near(found.keys[None], by_head(expected), 1e-2 if count else 1e-4)
    assert found.key_bits == bits + 64 / group + 32 * count / 128  # scales and minima in float32


def test_uniform_groups_must_tile_the_heads() -> None:
    assert make("uniform").why_not(ModelShape(2, 4, 2, 32, 64)) is None  # 64 channels of two heads
    said = make("gear", group_size=48).why_not(ModelShape(2, 4, 2, 64, 64))
    assert said is not None and "48 does not divide 128, the 2 KV heads of 64 channels" in said


# GEAR


def power_iteration(error: Array, rank: int, loops: int) -> Array:
    """As the authors' code has it: (tokens, dim) -> its low rank, orthonormalized in the last loop alone."""
    p = torch.rand(error.shape[1], rank, generator=torch.Generator().manual_seed(0)).double().numpy()
    q = p
    for loop in range(loops):
        q = error @ (np.linalg.qr(p)[0] if loop == loops - 1 else p)
        q = np.linalg.qr(q)[0] if loop == loops - 1 else q
        p = error.T @ q
    return q @ p.T


def test_low_rank_is_the_power_iteration_and_near_the_best() -> None:
    error = torch.randn(3, 200, 32, generator=torch.Generator().manual_seed(1)) * torch.linspace(2, 0.1, 32)
    left, right = low_rank(error, 4, 3)
    for e, found in zip(error.double().numpy(), (left @ right.mT).double().numpy(), strict=True):
        np.testing.assert_allclose(found, power_iteration(e, 4, 3), atol=1e-3)
        best = np.sqrt((np.linalg.svd(e, compute_uv=False)[4:] ** 2).sum())
        assert best * (1 - 1e-6) <= np.linalg.norm(e - found) < 1.1 * best
    many = [(error - a @ b.mT).norm() for a, b in (low_rank(error, 4, loops) for loops in (1, 3, 20))]
    assert many[0] > many[1] > many[2]
    exact = torch.randn(50, 3) @ torch.randn(3, 16)
    left, right = low_rank(exact, 3, 2)
    torch.testing.assert_close(left @ right.mT, exact, rtol=1e-4, atol=1e-3)


def gear(x: Array, axis: str, fraction: float, rank: int) -> Array:
    """GEAR of (heads, tokens, dim) at 2 bits in groups of 64."""
    rows = x.transpose(0, 2, 1).reshape(-1, x.shape[1]) if axis == "tokens" else by_token(x)
    each, plain = round(fraction / 2 * rows.shape[1]), rows.copy()
    order = np.argsort(rows, 1)
    apart = np.concatenate([order[:, :each], order[:, rows.shape[1] - each :]], 1)
    np.put_along_axis(plain, apart, rows.mean(1, keepdims=True), 1)
    read = grouped(plain, 2, 64)
    np.put_along_axis(read, apart, np.take_along_axis(rows, apart, 1), 1)
    read = read.reshape(HEADS, DIM, -1).transpose(0, 2, 1) if axis == "tokens" else by_head(read)
    return read + np.stack([power_iteration(error, rank, 3) for error in x - read])


@pytest.mark.parametrize("fraction", [0.02, 0])
def test_gear_is_codes_outliers_and_low_rank(fraction: float) -> None:
    prompt = random_prompt()
    method = make("gear", outlier_fraction=fraction)
    found = kvq_core.roundtrip(method, prompt.keys[0], prompt.values[0], metadata="float32")
    for read, x, axis in ((found.keys, prompt.keys, "tokens"), (found.values, prompt.values, "channels")):
        expected = gear(array(x), axis, fraction, 4)
        assert np.linalg.norm(array(read[None]) - expected) < 0.01 * np.linalg.norm(array(x) - expected)


def test_gear_costs_what_its_formula_says_and_halves_the_rank_of_generated_tokens() -> None:
    prompt = random_prompt(metadata=torch.float16)
    fitted = make("gear").fit(prompt)
    for codec, apart in ((fitted.key, 2 * round(0.01 * TOKENS) / TOKENS), (fitted.value, 2 / 128)):
        assert codec is not None
        block = codec.encode_prompt(prompt.keys, 0)
        assert codec.bits(block).item() == pytest.approx(2 + 0.5 + 64 * (1 / DIM + 1 / TOKENS) + 32 * apart)
        fresh = codec.encode(prompt.keys[..., :64, :], TOKENS)
        assert [b.tensors["left"].shape[-1] for b in (block, fresh)] == [4, 2]
        assert {t.dtype for name, t in block.tensors.items() if name in ("left", "right", "outliers")} == {torch.half}
    gear_l = make("gear", outlier_fraction=0).fit(prompt).key
    assert gear_l is not None and "outliers" not in gear_l.encode(prompt.keys, 0).tensors


def test_each_part_of_gear_lessens_the_error() -> None:
    prompt = random_prompt()
    plain = GroupCodec(2, 64, "tokens", torch.float32)
    reads = [plain.decode(plain.encode(prompt.keys, 0))]
    for knobs in ({"rank": 1, "outlier_fraction": 0}, {"outlier_fraction": 0}, {}):
        codec = make("gear", **knobs).fit(prompt).key
        assert codec is not None
        reads.append(codec.decode(codec.encode_prompt(prompt.keys, 0)))
    errors = [(read - prompt.keys).norm().item() for read in reads]
    assert errors == sorted(errors, reverse=True) and errors[3] < 0.85 * errors[0]


# ThinK


@pytest.mark.parametrize(("pruned", "bits"), [(0.5, None), (0.25, 4), (0.9, 2)])
def test_think_leaves_out_the_channels_with_the_least_products(pruned: float, bits: int | None) -> None:
    prompt = random_prompt()
    assert prompt.queries is not None
    found = kvq_core.roundtrip(
        make("think", pruned=pruned, bits=bits),
        prompt.keys[0],
        prompt.values[0],
        prompt.queries[0],
        metadata="float32",
    )
    keys, queries = array(prompt.keys), array(prompt.queries)[:, -32:]
    expected = np.zeros_like(keys)
    for head in range(HEADS):
        own = queries[2 * head : 2 * head + 2].reshape(-1, DIM)
        scores = [np.linalg.norm(np.outer(own[:, c], keys[head, :, c])) for c in range(DIM)]
        for c in np.argsort(scores)[int(DIM * pruned) :]:
            expected[head, :, c] = keys[head, :, c] if bits is None else rounded(keys[head, :, c], bits)
    near(found.keys[None], expected, 5e-3)
    assert torch.equal(found.values, prompt.values[0].half().float())
    kept = DIM - int(DIM * pruned)
    width = 16.0 if bits is None else bits + 64 / TOKENS
    assert found.key_bits == pytest.approx(kept / DIM * width + 1 / TOKENS)


# ZipCache


def test_saliency_is_the_mean_attention_of_the_probes_that_see_a_token() -> None:
    prompt = random_prompt()
    assert prompt.queries is not None
    found = array(saliency(prompt.queries, prompt.keys, prompt.scaling))
    keys, queries, last = array(prompt.keys), array(prompt.queries), TOKENS - 6
    positions = [int(p) for part in probes(TOKENS) for p in part]
    assert len(positions) == 12 and positions[:6] == list(range(last, TOKENS))  # 5% of 128, and as many at random
    expected, seen = np.zeros((HEADS, TOKENS)), np.zeros(TOKENS)
    for p in positions:
        seen[: p + 1] += 1
        for head in range(2 * HEADS):
            scores = np.exp(keys[head // 2, : p + 1] @ queries[head, p] / np.sqrt(DIM))
            expected[head // 2, : p + 1] += scores / scores.sum()
    np.testing.assert_allclose(found, expected / seen, rtol=1e-4)


def classes(x: Array, salient: NDArray[np.bool_], axis: str) -> Array:
    """ZipCache of (heads, tokens, dim) at 4 and 2 bits."""
    scale = np.sqrt(np.abs(x).max(1, keepdims=True)) if axis == "channels" else np.ones((1, 1, 1))
    out = np.empty_like(x)
    for bits, members in ((4, salient), (2, ~salient)):
        own = np.stack([head[mine] for head, mine in zip(x / scale, members, strict=True)])
        if axis == "tokens":
            read = np.stack([np.stack([rounded(c, bits) for c in head.T], 1) for head in own])
        else:
            read = by_head(np.stack([rounded(row, bits) for row in by_token(own)]))
        for head, mine in enumerate(members):
            out[head, mine] = read[head]
    return out * scale


@pytest.mark.parametrize("fraction", [0.6, 0.31])
def test_zipcache_stores_two_classes_each_on_its_own_grid(fraction: float) -> None:
    prompt = random_prompt()
    assert prompt.queries is not None
    method = make("zipcache", salient_fraction=fraction)
    found = kvq_core.roundtrip(method, prompt.keys[0], prompt.values[0], prompt.queries[0], metadata="float32")
    seen, count = array(saliency(prompt.queries, prompt.keys, prompt.scaling)), round(fraction * TOKENS)
    salient = seen >= np.sort(seen, -1)[:, -count, None]
    near(found.keys[None], classes(array(prompt.keys), salient, "tokens"), 1e-3)
    near(found.values[None], classes(array(prompt.values), salient, "channels"), 1e-3)
    fitted = method.fit(prompt)
    for codec, x, own in ((fitted.key, prompt.keys, 2 * 64 / 128), (fitted.value, prompt.values, 64 / 128 + 32 / 128)):
        assert codec is not None
        block = codec.encode_prompt(x, 0)
        bits = codec.bits(block).expand(1, HEADS, TOKENS, 1)
        assert bits.mean().item() == pytest.approx(8 * sum(block.nbytes.values()) / x.numel())
        high, low = bits[0, :, :, 0][torch.tensor(salient)], bits[0, :, :, 0][torch.tensor(~salient)]
        assert (high.unique() - low.unique()).item() == pytest.approx(2)
        assert bits.mean().item() == pytest.approx(2 + 2 * count / TOKENS + own + 1 / DIM, abs=0.06)


def test_tokens_that_leave_are_ranked_by_the_query_at_hand() -> None:
    prompt = random_prompt(24)
    method = make("zipcache", streaming_gap=10, salient_fraction=0.3)
    codec = method.fit(prompt).key
    stream = Stream.of_prompt(prompt.keys, method.windows()[0], codec)
    assert [block.tokens for block in stream.blocks] == [24]  # the whole prompt, whatever the gap
    fresh = torch.randn(1, HEADS, 10, DIM)
    stream.append(fresh)
    assert stream.observe(torch.zeros(1, 4, 1, DIM), torch.ones(1, 4, 1, 34)) is None  # nothing has left yet
    stream.flush()
    assert stream.host_bytes == 10 * HEADS * DIM * 2
    attention = torch.rand(1, 4, 3, 34)
    patch = stream.observe(torch.zeros(1, 4, 3, DIM), attention)
    assert patch is not None and stream.host_bytes == 0 and patch.token.unique().tolist() == list(range(24, 34))
    read = stream.decode()
    assert torch.equal(read[patch.layer, patch.head, patch.token], patch.values)
    seen = attention[0, :, -1, 24:].view(HEADS, 2, 10).sum(1)
    salient = (seen >= seen.sort(-1).values[:, -3:][:, :1]).numpy()
    near(read[:, :, 24:], classes(array(fresh.half()), salient, "tokens"), 1e-3)
    assert stream.observe(torch.zeros(1, 4, 1, DIM), attention) is None
