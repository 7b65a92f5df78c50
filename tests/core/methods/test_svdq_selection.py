"""SVDq with ShadowKV's selection: the chunks it reads, what is exact and what is counted."""

import numpy as np
import pytest
import torch
from torch import Tensor

import kvq_core
from kvq_core.methods import make
from kvq_core.methods.svdq.selection import Selector, Sparsity
from kvq_core.models.rope import Rope
from kvq_core.spec import Lane
from tests.core.methods.test_methods_svdq import cache, tables
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny


def chosen_by_hand(keys: Tensor, query: Tensor, chunk: int, chunks: int, outliers: set[int], budget: int) -> set[int]:
    """Chunks of one KV head a step reads: keys after RoPE (tokens, dim), queries (groups, dim) of the head."""
    landmarks = keys[: chunk * chunks].view(chunks, chunk, -1).mean(1).half().double().numpy()
    listed = [c for c in range(chunks) if c not in outliers]
    scores = query.double().numpy() @ landmarks[listed].T / np.sqrt(keys.shape[-1])
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    best = np.argsort(-weights.max(0))[: budget // chunk]
    return {listed[i] for i in best} | outliers


def test_selection_reads_the_chunks_shadowkv_would() -> None:
    keys, _ = cache(2, 100, 16)
    keys[1, 33] *= -8  # chunk 4 of head 1 has a key its landmark does not stand for
    sparsity = Sparsity(budget_tokens=24, outlier_chunks=1, local_chunks=2)
    selector = Selector.of_prompt(keys[None], sparsity, (16**-0.5,))
    assert sparsity.chunks(100) == (100 - 16) // 8 == 10
    assert selector.outliers[0, 1].tolist() == [4]
    queries = torch.randn(6, 1, 16, generator=torch.Generator().manual_seed(1))
    read = selector.select(0, queries, 105)
    assert read.shape == (2, 105) and read[:, 80:].all()  # local chunks, the incomplete one, generated tokens
    for head in range(2):
        outliers = set(selector.outliers[0, head].tolist())
        expected = chosen_by_hand(keys[head], queries[3 * head : 3 * head + 3, 0], 8, 10, outliers, 24)
        chunks = read[head, :80].view(10, 8)
        assert torch.equal(chunks.any(1), chunks.all(1))
        assert set(chunks.any(1).nonzero()[:, 0].tolist()) == expected and len(expected) == 4


def test_a_budget_for_everything_changes_nothing_but_storage() -> None:
    knobs = {"schedule": [8] * 8, "sparsity": {"budget_tokens": 512}}
    lanes = [Lane(label="a", method="svdq", knobs=knobs), Lane(label="b", method="svdq", knobs={"schedule": [8] * 8})]
    outcome = run_engine(tiny("llama"), prompt_ids(120), lanes, 12, audit=True, ignore_eos=True)
    rows = outcome.logits()[1]
    torch.testing.assert_close(rows[0].softmax(-1), rows[1].softmax(-1), rtol=0, atol=0.02)


@pytest.mark.slow
def test_attention_is_over_the_selection_alone() -> None:
    """Against plain attention with the other keys masked, in the last layer's effect on the logits: it must differ from
    full attention, and less so the more is read."""
    budgets = (8, 40, 72)
    lanes = [
        Lane(
            label=str(b),
            method="svdq",
            knobs={"schedule": [8] * 8, "sparsity": {"budget_tokens": b, "outlier_chunks": 0, "local_chunks": 1}},
        )
        for b in budgets
    ]
    outcome = run_engine(tiny("llama"), prompt_ids(90), lanes, 16, audit=True, ignore_eos=True)
    reference, rows = outcome.logits()
    kld = [(reference.softmax(-1) * (reference.log_softmax(-1) - row.log_softmax(-1))).sum(-1).mean() for row in rows]
    assert kld[0] > kld[1] > kld[2]
    notes = outcome.state("40").cache.notes  # type: ignore[union-attr]
    # 90 tokens: 10 chunks and 10 tokens beside them
    assert any("touches 50 of the prompt's 90 keys (56%): 40 chosen, 0 of outlier chunks, 10 local" in n for n in notes)


def test_outlier_chunks_are_exact_and_landmarks_counted() -> None:
    keys, values = cache(2, 100, 16)
    rope = tables(100, 16)
    after = Rope.of(*rope, 16).rotate(keys[None], 0)[0]
    method = make("svdq", sparsity={"outlier_chunks": 2, "budget_tokens": 16})
    result = kvq_core.roundtrip(method, after, values, rope=rope, windows=True, metadata="float16")
    selector = Selector.of_prompt(after[None], method.sparsity, (16**-0.5,))  # type: ignore[attr-defined]
    at = selector.outlier_tokens()[0]
    for head in range(2):
        torch.testing.assert_close(result.keys[head, at[head]], after[head, at[head]], rtol=2e-3, atol=1e-2)
    chunks = (100 - 32) // 8
    assert result.nbytes["key_landmarks"] == 2 * chunks * 16 * 2
    assert result.nbytes["key_outlier_keys"] == 2 * 2 * 8 * 16 * 2
    assert result.nbytes["key_window"] == 2 * (100 - chunks * 8) * 16 * 2


@pytest.mark.parametrize("tokens", [1, 7, 33, 40, 41])
def test_prompts_shorter_than_the_selection_run(tokens: int) -> None:
    lane = Lane(method="svdq", knobs={"sparsity": {"budget_tokens": 16}, "value_bits": 2})
    outcome = run_engine(tiny("qwen3"), prompt_ids(tokens), [lane], 10, audit=True, ignore_eos=True)
    assert outcome.decode.states[0].error is None and torch.isfinite(outcome.logits()[1]).all()


def test_windows_of_the_lane_are_refused_beside_the_selection_s_own() -> None:
    lane = Lane(method="svdq", knobs={"sparsity": {"budget_tokens": 16}}, sink_tokens=4)
    outcome = run_engine(tiny("llama"), prompt_ids(90), [lane], 4, ignore_eos=True)
    assert "leave the lane's sink_tokens and recent_tokens empty" in str(outcome.decode.states[0].error)
