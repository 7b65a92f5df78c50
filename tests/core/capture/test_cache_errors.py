"""Errors of caches and the bound on outputs against direct computations."""

from itertools import pairwise

import pytest
import torch

from kvq_core.capture.attention import Buckets
from kvq_core.capture.cache_errors import ReferenceCache, attention_outputs, cache_errors, output_bound
from kvq_core.capture.spectra import query_directions
from kvq_core.models.scoring import Scoring
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny


def test_cache_errors_are_frobenius_norms() -> None:
    model, ids = tiny("llama"), prompt_ids(64)
    lanes = [Lane(label="k", method="kivi", knobs={"group_size": 8, "residual_length": 8})]
    outcome = run_engine(model, ids, lanes, 4, follow=prompt_ids(4))
    prefill, rows = outcome.decode.prefill, outcome.decode.rows
    directions = query_directions(prefill.groups[0].query_gram)
    queries = prefill.groups[0].queries[:, :, -1]
    asked, seen = prefill.groups[0].queries[:, :, [20, 50, 63]], torch.tensor([21, 51, rows.tokens])
    buckets = Buckets.of(rows.tokens, 5)
    truth = ReferenceCache.of(rows, rows.place, directions, model.scoring, asked, seen, buckets)
    errors = cache_errors(rows, 1, truth)
    true = torch.stack([rows.working(0, 0, "key", layer) for layer in range(3)]).double()
    read = torch.stack([rows.working(1, 0, "key", layer) for layer in range(3)]).double()
    expected = (read - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
    assert errors.key_rmse == pytest.approx(expected.mean().item(), rel=1e-4)
    torch.testing.assert_close(
        errors.energy.sum(-1).double(), (read - true).square().sum((-1, -2)), rtol=1e-3, atol=1e-6
    )
    inside = (read - true) @ directions[..., :5].double()
    part = inside.flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
    assert errors.in_subspace_error == pytest.approx(part.mean().item(), rel=1e-3)
    assert 0 < errors.in_subspace_error < errors.key_rmse
    values = [torch.stack([rows.working(r, 0, "value", layer) for layer in range(3)]).double() for r in (0, 1)]
    for layer, head in ((0, 0), (2, 3)):
        q, kv = queries[layer, head].double(), head // 2
        exact, got = (
            torch.softmax(k[layer, kv] @ q / 32**0.5, 0) @ v[layer, kv]
            for k, v in ((true, values[0]), (read, values[1]))
        )
        assert errors.output[layer, head].item() == pytest.approx((got - exact).norm().item(), rel=1e-3)
    assert (errors.output > 0).all() and (errors.output <= errors.bound).all()
    torch.testing.assert_close(errors.channel["key"].double(), (read - true).square().sum(-2), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(truth.energy["value"].double(), values[0].square().sum(-2), rtol=1e-4, atol=1e-7)
    for b, (start, end) in enumerate(pairwise(buckets.edges)):
        part = (read - true)[:, :, start:end].flatten(2).norm(dim=-1) / true[:, :, start:end].flatten(2).norm(dim=-1)
        torch.testing.assert_close(errors.depth["key"][..., b].double(), part, rtol=1e-4, atol=1e-7)
    for layer, head in ((1, 0), (2, 3)):
        outputs = [
            torch.stack(
                [
                    torch.softmax(k[layer, head // 2, :n] @ asked[layer, head, i].double() / 32**0.5, 0)
                    @ v[layer, head // 2, :n]
                    for i, n in enumerate(seen.tolist()[:-1])
                ]
            )
            for k, v in ((true, values[0]), (read, values[1]))
        ]
        expected = (outputs[1] - outputs[0]).norm() / outputs[0].norm()
        assert errors.output_relative[layer, head].item() == pytest.approx(expected.item(), rel=1e-3)
        shares = torch.zeros(rows.tokens).double()
        for i, n in enumerate(seen.tolist()[:-1]):
            q = asked[layer, head, i].double() / 32**0.5
            shares[:n] += torch.softmax(true[layer, head // 2, :n] @ q, 0)
        lost, held = ((shares * v[layer, head // 2].square().sum(-1)).sum() for v in (values[1] - values[0], values[0]))
        assert errors.value_weighted[layer, head].item() == pytest.approx((lost / held).sqrt().item(), rel=1e-3)


def test_output_bound_holds_where_the_printed_one_fails() -> None:
    """Exact values, wrong keys: the theorem as printed promises no error; its proof's bound holds and is not empty."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 30, 8), torch.randn(2, 30, 8)
    wrong = 0.3 * torch.randn_like(keys)

    def both(heads: int, key_error: torch.Tensor, value_error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        queries, seen, read = torch.randn(heads, 1, 8), torch.tensor([30]), values + value_error
        exact = attention_outputs(queries, keys, values, Scoring(0.5), seen)
        change = attention_outputs(queries, keys + key_error, read, Scoring(0.5), seen) - exact
        return change[:, 0].norm(dim=-1), output_bound(queries[:, 0], key_error, read, value_error, 0.5)

    actual, bound = both(6, wrong, torch.zeros_like(values))
    assert actual.shape == bound.shape == (6,) and (actual > 0).all() and (actual <= bound).all()
    for scale in (1e-3, 1.0, 30.0):
        actual, bound = both(4, scale * wrong, scale * torch.randn_like(values))
        assert (actual <= bound).all()
