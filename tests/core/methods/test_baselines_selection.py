"""H2O, Scissorhands and ShadowKV, against their sources worked out apart in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kvq_core
from kvq_core.codecs.stream import Stream
from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape, Prompt, make, selection_from
from kvq_core.methods.eviction import Evicting, prompt_attention
from kvq_core.models.rope import Rope
from tests.core.methods.test_methods_svdq import tables


def prompt_of(layers: int, kv_heads: int, groups: int, tokens: int, dim: int, seed: int = 0) -> Prompt:
    g = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(layers, kv_heads, tokens, dim, generator=g) for _ in range(2))
    queries = 2 * torch.randn(layers, kv_heads * groups, tokens, dim, generator=g)
    return Prompt(keys, values, queries, rotated=keys, scaling=(0.3,) * layers)


def attention(prompt: Prompt, layer: int, head: int) -> np.ndarray:
    """Of a query head, causal: (tokens, tokens) float64."""
    assert prompt.queries is not None
    groups = prompt.queries.shape[1] // prompt.keys.shape[1]
    q, k = prompt.queries[layer, head].double().numpy(), prompt.keys[layer, head // groups].double().numpy()
    scores = np.where(np.tri(len(k)) > 0, 0.3 * q @ k.T, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def kept_after(prompt: Prompt, select: dict) -> list[list[set[int]]]:
    """What each layer's KV heads read at the first step."""
    tokens = prompt.keys.shape[-2]
    chosen = selection_from(select).fit(prompt, prompt.keys.shape[-2]).select
    assert chosen is not None
    reads = [chosen(layer, torch.empty(0), tokens + 1) for layer in range(len(prompt.keys))]
    return [[{*row.nonzero()[:, 0].tolist()} for row in read] for read in reads]


@pytest.mark.parametrize("tokens", [1, 7, 64, 65, 150])
def test_attention_over_a_prompt_is_that_of_float64(tokens: int) -> None:
    prompt = prompt_of(2, 2, 3, tokens, 8)
    for layer in range(2):
        parts = list(prompt_attention(prompt, layer))
        whole = torch.cat([torch.nn.functional.pad(part, (0, tokens - part.shape[-1])) for part in parts], 2)
        expected = np.stack([attention(prompt, layer, head) for head in range(6)]).reshape(2, 3, tokens, tokens)
        np.testing.assert_allclose(whole.numpy(), expected, atol=1e-5)
        last = list(prompt_attention(prompt, layer, 5))[-1]
        np.testing.assert_allclose(last.numpy(), expected[:, :, max(0, tokens - 5) :], atol=1e-5)


def test_h2o_keeps_the_tokens_of_the_largest_sums_and_the_newest() -> None:
    prompt = prompt_of(2, 2, 3, 90, 8)
    found = kept_after(prompt, {"by": "h2o", "heavy": 0.2, "recent": 0.15})
    for layer in range(2):
        for kv in range(2):
            received = sum(attention(prompt, layer, head) for head in range(3 * kv, 3 * kv + 3)).sum(0)
            heavy = np.argsort(-received[: 90 - 13])[:18]  # int(.2 * 90) and int(.15 * 90)
            assert found[layer][kv] == {*heavy.tolist(), *range(77, 91)}


def test_scissorhands_drops_the_tokens_most_often_below_the_mean() -> None:
    prompt = prompt_of(2, 2, 3, 90, 8)
    found = kept_after(prompt, {"by": "scissorhands", "heavy": 0.2, "recent": 0.15})
    for layer in range(2):
        for kv in range(2):
            counts = np.zeros(90, dtype=int)
            for head in range(3 * kv, 3 * kv + 3):
                weights = attention(prompt, layer, head)
                for query in range(90 - 13, 90):
                    counts[: query + 1] += weights[query, : query + 1] < 1 / (query + 1)
            order = sorted(range(90 - 13), key=lambda token: (counts[token], -token))
            assert found[layer][kv] == {*order[:18], *range(77, 91)}


def test_h2o_by_hand() -> None:
    """Two heavy tokens, one recent: what a step pays may bring a token in, and a dropped one is never read again."""
    rows = Evicting(2, 1, [torch.tensor([[3.0, 1.0, 2.0, 0.5]])])
    rows.drop(0, 4)
    read = rows(0, torch.empty(0), 5)
    assert read.tolist() == [[True, False, True, True, True]]  # 0 and 2 are heavy, 3 recent, 4 the step's own
    before = rows.fork()
    rows.follow(0, torch.tensor([0.1, 0.0, 0.1, 2.0, 0.3]).view(1, 1, 1, 5))  # 3 leaves the window with 2.5
    assert rows(0, torch.empty(0), 6).tolist() == [[True, False, False, True, True, True]]
    assert rows(0, torch.empty(0), 5).tolist() == read.tolist() and rows(0, torch.empty(0), 4).all()
    assert before(0, torch.empty(0), 6).tolist() == [[True, False, True, True, True, True]]
    before.follow(0, torch.tensor([0.1, 0.0, 0.1, 0.0, 0.8]).view(1, 1, 1, 5))
    assert before(0, torch.empty(0), 6).tolist() == [[True, False, True, False, True, True]]
    assert rows.share(0) == pytest.approx(3 / 5)


def test_of_equal_tokens_the_newer_stay() -> None:
    prompt = prompt_of(1, 1, 2, 20, 8)
    zero = torch.zeros_like(prompt.keys)
    alike = Prompt(zero, zero, prompt.queries, rotated=zero, scaling=prompt.scaling)
    assert kept_after(alike, {"by": "scissorhands", "heavy": 0.25, "recent": 0.25}) == [[{*range(10, 21)}]]
    first = {*range(5), *range(15, 21)}  # every query pays all keys alike, so the oldest have received most
    assert kept_after(alike, {"by": "h2o", "heavy": 0.25, "recent": 0.25}) == [[first]]


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 40),
    heavy=st.integers(0, 12),
    recent=st.integers(0, 12),
    steps=st.lists(st.integers(1, 3), max_size=6),
    by=st.sampled_from(["h2o", "scissorhands"]),
)
def test_what_is_kept_is_the_budget_and_what_is_dropped_stays_so(
    tokens: int, heavy: int, recent: int, steps: list[int], by: str
) -> None:
    heavy = max(1, heavy) if recent == 0 else heavy
    whole = max(tokens, heavy + recent)
    prompt = prompt_of(1, 2, 2, tokens, 4)
    fitted = selection_from({"by": by, "heavy": heavy / whole, "recent": recent / whole}).fit(
        prompt, prompt.keys.shape[-2]
    )
    select = fitted.select
    assert isinstance(select, Evicting) and fitted.notes
    budget, held, gone = select.heavy + select.recent, tokens, torch.zeros(2, 0, dtype=torch.bool)
    for fresh in [*steps, 1]:
        read = select(0, torch.empty(0), held + fresh)
        assert read.shape == (2, held + fresh) and read[:, held:].all()
        assert (read[:, :held].sum(-1) == min(held, budget)).all()
        assert read[:, held - min(held, select.recent) : held].all()
        assert not (read[:, : gone.shape[-1]] & gone).any()
        gone, held = ~read, held + fresh
        weights = torch.rand(2, 2, fresh, held).masked_fill(~read[:, None, None], 0)
        select.follow(0, weights / weights.sum(-1, keepdim=True))
    if held >= budget:
        assert select.share(0) == pytest.approx(budget / held)


def low_rank(keys: Tensor, rank: int) -> np.ndarray:
    """Keys (kv_heads, tokens, dim) before RoPE, their heads side by side, as the best product of that rank."""
    x = keys.transpose(0, 1).flatten(1).double().numpy()
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return ((u[:, :rank] * s[:rank]) @ vt[:rank]).reshape(len(x), keys.shape[0], -1).transpose(1, 0, 2)


@pytest.mark.parametrize("rank", [4, 20, 500])
def test_shadowkv_stores_the_best_product_of_a_rank(rank: int) -> None:
    keys = prompt_of(1, 2, 1, 100, 16, seed=3).keys[0]
    values = torch.randn(2, 100, 16)
    rope = tables(100, 16)
    after = Rope.of(*rope, 16).rotate(keys[None], 0)[0]
    method = make("shadowkv", rank=rank, outlier_chunks=1, local_chunks=2, budget_tokens=16)
    result = kvq_core.roundtrip(method, after, values, rope=rope, windows=True)
    expected = Rope.of(*rope, 16).rotate(torch.from_numpy(low_rank(keys, rank))[None].float(), 0)[0]
    chunks = (100 - 16) // 8
    apart = (result.keys - after).abs().amax(-1).view(2, 100) < 0.02  # outlier chunks and the last tokens
    assert apart[:, 8 * chunks :].all()
    for head in range(2):
        rest = ~apart[head, : 8 * chunks]
        torch.testing.assert_close(
            result.keys[head, : 8 * chunks][rest], expected[head, : 8 * chunks][rest], rtol=0, atol=0.02
        )
        assert rank == 500 or rest.sum() >= 8 * (chunks - 1) * 0.9
    torch.testing.assert_close(result.values, values, rtol=1e-3, atol=1e-3)
    kept = min(rank, 32)
    assert result.nbytes["key_latent"] == 2 * 8 * chunks * kept and result.nbytes["key_basis"] == 2 * 32 * kept
    assert result.nbytes["key_landmarks"] == 2 * 2 * chunks * 16
    assert result.nbytes["key_outlier_keys"] == 2 * 2 * 8 * 16 and result.nbytes["key_outlier_chunks"] == 4 * 2
    assert result.nbytes["key_window"] == 2 * 2 * (100 - 8 * chunks) * 16


def test_shadowkvs_bits_are_its_bytes_and_those_of_the_formula() -> None:
    prompt = prompt_of(1, 2, 1, 1032, 16)
    method = make("shadowkv", rank=8, outlier_chunks=0, local_chunks=1)
    key = method.fit(prompt).key
    stream = Stream.of_prompt(prompt.keys, method.windows()[0], key)
    packed = 1024
    bits = stream.bits()[0, 0, 0, 0].item()
    assert bits == pytest.approx(8 * sum(s for n, s in stream.nbytes().items() if n != "window") / (packed * 32))
    assert bits == pytest.approx(16 * 8 * (1 / 32 + 1 / packed) + 16 / 8, rel=1e-3)  # and a landmark a chunk
    shape = ModelShape(1, 2, 2, 16, 2048)
    assert method.fixed_bytes(shape) == (stream.nbytes()["basis"], 0)


@pytest.mark.parametrize("tokens", [1, 5, 40, 41])
def test_shadowkv_holds_prompts_shorter_than_its_windows(tokens: int) -> None:
    prompt = prompt_of(2, 2, 2, tokens, 8)
    for method in (make("shadowkv"), make("shadowkv", rank=3, outlier_chunks=None, local_chunks=0)):
        fitted = method.fit(prompt)
        stream = Stream.of_prompt(prompt.keys, method.windows()[0], fitted.key)
        assert stream.decode().shape == prompt.keys.shape and torch.isfinite(stream.decode()).all()
        assert fitted.select is not None
        assert fitted.select(0, prompt.queries[0, :, -1:], tokens + 1).shape == (2, tokens + 1)


def test_a_prompt_of_zeros_is_held() -> None:
    zero = torch.zeros(1, 2, 64, 8)
    prompt = Prompt(zero, zero, torch.zeros(1, 4, 64, 8), rotated=zero)
    method = make("shadowkv", rank=4, local_chunks=1)
    stream = Stream.of_prompt(zero, method.windows()[0], method.fit(prompt).key)
    assert torch.equal(stream.decode(), zero)


def test_defaults_are_those_of_the_authors() -> None:
    knobs = make("shadowkv").model_dump()
    assert knobs == {"rank": 160, "chunk_size": 8, "budget_tokens": 256, "outlier_chunks": 48, "local_chunks": 4}
    for name in ("h2o", "scissorhands"):
        method = make(name, heavy=0.3)
        assert method.selection is not None and not method.quantizes and method.chooses
        assert method.selection.model_dump() == {"by": name, "heavy": 0.3, "recent": 0.1}
        with pytest.raises(SpecError, match="at most 1 together"):
            make(name, heavy=0.8, recent=0.4)
