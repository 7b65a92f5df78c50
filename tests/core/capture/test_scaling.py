"""What a model multiplies q.k with reaches whatever computes scores, against float64 with the factor the model uses."""

import pytest
import torch
from torch import Tensor

from kvq_core.claims.lane_errors import later_attention, mean_score_error
from kvq_core.claims.sample import capture
from kvq_core.claims.structure import window_attention
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.methods import ModelShape
from kvq_core.methods.qaq.method import Qaq
from kvq_core.methods.qaq.tolerance import query_norms
from kvq_core.methods.svdq.selection import Selector, Sparsity
from kvq_core.models.scoring import Scoring
from kvq_core.packed.cache import packed_layers
from kvq_core.spec import Lane
from tests.support.tiny_models import CONFIGS, SCALED, prompt_ids, tiny

IDS, WINDOW = prompt_ids(96), 5
FACTORS = {"granite": 0.6, "gemma2": 4**-0.5}


@pytest.fixture(scope="module", params=FACTORS)
def scaled(request):
    """A model that does not divide by sqrt(head_dim), its factor, and the tensors of a prompt."""
    model = tiny(request.param)
    prefill = SharedPrefill(model, IDS)
    list(prefill.run())
    return model, FACTORS[request.param], prefill.groups[0]


def weights_of(queries: Tensor, keys: Tensor, factor: float) -> Tensor:
    """Softmax of the last queries (query_heads, n, head_dim) over keys (kv_heads, tokens, head_dim), float64."""
    n, total = queries.shape[1], keys.shape[1]
    scores = factor * queries.double() @ keys.double().repeat_interleave(2, 0).transpose(-1, -2)
    return scores.masked_fill(torch.ones(n, total).triu(total - n + 1).bool(), -torch.inf).softmax(-1)


@pytest.mark.parametrize("name", [*CONFIGS, *SCALED])
def test_the_shape_says_what_the_model_hands_over(name: str) -> None:
    model, seen = tiny(name), []

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        seen.append(how.scaling)
        return queries.transpose(1, 2)

    model.forward(torch.tensor([[3, 4]]), 0, attend)
    assert seen == list(model.shape.scaling) == [FACTORS.get(name, 32**-0.5)] * 3


def test_a_shape_without_a_factor_divides_by_the_root_of_the_head() -> None:
    assert ModelShape(2, 4, 2, 64, 0).scaling == (0.125, 0.125)


def test_qaq_weighs_tokens_by_the_models_attention(scaled) -> None:
    model, factor, group = scaled
    cache = LaneCache.of_prompt(Lane(method="qaq"), [group], model.rope(len(IDS)))
    rows = next(part for part in cache.of("value")).stream.codec.rows
    norms = next(part for part in cache.of("key")).stream.codec.widths.norms
    for layer in range(3):
        exact = weights_of(group.queries[layer, :, -WINDOW:], group.keys[layer], factor)
        largest = exact.unflatten(0, (2, 2)).amax(1)  # over the query heads that share a KV head
        torch.testing.assert_close(torch.stack(rows, 1)[layer].double(), largest.transpose(0, 1), rtol=1e-4, atol=1e-6)
        squares = (factor * group.queries[layer].double()).square().sum(-1).sort().values[:, 86]  # 87 of 96 are 90 %
        torch.testing.assert_close(norms[layer].double(), squares.unflatten(0, (2, 2)).amax(1))
    assert query_norms(group.queries, 2, "head", (1.0,) * 3).shape == norms.shape


def test_selection_ranks_chunks_by_the_models_scores(scaled) -> None:
    model, factor, group = scaled
    sparsity = {"chunk_size": 4, "budget_tokens": 24, "outlier_chunks": 0, "local_chunks": 2}
    lane = Lane(method="svdq", knobs={"sparsity": sparsity, "schedule": [8] * 8})
    cache = LaneCache.of_prompt(lane, [group], model.rope(len(IDS)))
    differ = 0
    for layer in range(3):
        select, at = cache.selects[layer]
        landmarks = Selector.of_prompt(group.keys, Sparsity(**sparsity), (1.0,) * 3).landmarks[layer].double()
        for t in range(60, 96):
            queries = group.queries[layer, :, t : t + 1]
            read = select(at, queries, len(IDS))[:, ::4][:, : landmarks.shape[1]]
            own, other = (
                (f * queries.double() @ landmarks.repeat_interleave(2, 0).transpose(-1, -2))
                .softmax(-1)
                .unflatten(0, (2, 2))
                .amax(1)[:, 0]
                for f in (factor, 32**-0.5)
            )
            for head in range(2):
                best = set(own[head].topk(6).indices.tolist())
                assert set(read[head].nonzero().flatten().tolist()) == best
                differ += best != set(other[head].topk(6).indices.tolist())
    assert differ  # the factor decides: heads that share a KV head are weighed against one another


def test_claims_measure_the_models_attention(scaled) -> None:
    model, factor, group = scaled
    sample = capture(model, "ids", IDS, 80)
    for layer in range(3):
        keys = group.keys[layer]
        later = later_attention(sample, layer, keys[:, :80])
        torch.testing.assert_close(
            later.double(), weights_of(group.queries[layer, :, 80:], keys, factor), rtol=1e-4, atol=1e-6
        )
        now = window_attention(sample, layer, WINDOW)
        exact = weights_of(group.queries[layer, :, 80 - WINDOW : 80], keys[:, :80], factor)
        torch.testing.assert_close(now.double(), exact, rtol=1e-4, atol=1e-6)
    wrong = sample.keys[..., :80, :] + torch.randn(3, 2, 80, 32, generator=torch.Generator().manual_seed(0))
    rows = []
    for layer in range(3):
        delta = (wrong - sample.keys[..., :80, :])[layer].double().repeat_interleave(2, 0)
        scores = factor * sample.queries[layer, :, 80:].double() @ delta.transpose(-1, -2)
        rows.append((scores - scores.mean(-1, keepdim=True)).square().mean().sqrt())
    assert mean_score_error(sample, wrong, 80) == pytest.approx(torch.stack(rows).mean().item(), rel=1e-4)


def test_packed_layers_are_fitted_with_it(scaled, monkeypatch) -> None:
    model, factor, group = scaled
    given = []
    fit = Qaq.fit
    monkeypatch.setattr(Qaq, "fit", lambda self, prompt: (given.append(prompt.scaling), fit(self, prompt))[1])
    method = Lane(method="qaq", knobs={"key_tolerance": 0.01, "value_tolerance": 0.01}).build()
    layer = packed_layers(method, model.model, method.windows(), "auto")[1]
    layer.fill(group.queries[1:2], group.keys[1:2], group.values[1:2])
    assert given == [(factor,)]
