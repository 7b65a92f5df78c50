"""Fidelity against direct float64 computations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr

from kvq_core import make, roundtrip
from kvq_core.engine.divergence import kl_divergence
from kvq_core.engine.fidelity import Fidelity, perplexity_block
from kvq_core.pipeline.lane_metrics import tokens_a_step
from kvq_core.record.memory import FULL_PRECISION


def scored(
    positions: int = 40, vocabulary: int = 30, noise: float = 0.5
) -> tuple[Fidelity, torch.Tensor, torch.Tensor, list[int]]:
    torch.manual_seed(0)
    reference = torch.randn(positions, vocabulary) * 2
    lanes = torch.stack(
        [reference + noise * torch.randn_like(reference), reference + 1e-3 * torch.randn_like(reference)]
    )
    targets = torch.randint(0, vocabulary, (positions,)).tolist()
    fidelity = Fidelity(2)
    for start in range(0, positions, 7):  # in uneven chunks, as scoring a continuation does
        now = slice(start, start + 7)
        fidelity(reference[now], lanes[:, now], targets[now])
    return fidelity, reference, lanes, targets


def test_columns_equal_direct_float64() -> None:
    fidelity, reference, lanes, targets = scored()
    p = torch.softmax(reference.double(), -1).numpy()
    q = torch.softmax(lanes[0].double(), -1).numpy()
    at = np.arange(len(targets))
    np.testing.assert_allclose(fidelity.column("acceptance", 0).numpy(), np.minimum(p, q).sum(-1), atol=2e-6)
    np.testing.assert_allclose(fidelity.column("kld", 0).numpy(), rel_entr(p, q).sum(-1), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(fidelity.column("nll", 0).numpy(), -np.log(q[at, targets]), rtol=1e-5)
    np.testing.assert_allclose(fidelity.column("reference/nll").numpy(), -np.log(p[at, targets]), rtol=1e-5)
    np.testing.assert_allclose(fidelity.column("delta_p", 0).numpy(), (q - p)[at, targets], atol=1e-6)
    np.testing.assert_array_equal(fidelity.column("same_top", 0).numpy(), q.argmax(-1) == p.argmax(-1))
    top = np.sort(reference.numpy(), -1)
    np.testing.assert_allclose(fidelity.column("reference/margin").numpy(), top[:, -1] - top[:, -2], atol=1e-5)
    np.testing.assert_array_equal(fidelity.column("topk_ids", 0).numpy(), np.argsort(-q, -1)[:, :5])
    assert fidelity.n_scored == 40 and not any(fidelity.not_finite)


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [49_152, 151_936])
@pytest.mark.parametrize("noise", [2e-4, 2e-3, 2e-2])
def test_small_divergences_are_those_of_float64(vocabulary: int, noise: float) -> None:
    """Down to where a sum of p (log p - log q) in float32 is nothing but its rounding."""
    torch.manual_seed(0)
    reference = 3 * torch.randn(12, vocabulary)
    lanes = (reference + noise * torch.randn(2, 12, vocabulary)).contiguous()
    fidelity = Fidelity(2)
    fidelity(reference, lanes, [0] * 12)
    p, q = (torch.softmax(x.double(), -1).numpy() for x in (reference, lanes))
    for lane in range(2):
        found, exact = fidelity.column("kld", lane).numpy(), rel_entr(p, q[lane]).sum(-1)
        assert (found >= 0).all() and 0.2 * noise**2 < exact.mean() < noise**2
        np.testing.assert_allclose(found, exact, rtol=2e-3)
        kept = fidelity.column("acceptance", lane).numpy()
        np.testing.assert_allclose(kept, np.minimum(p, q[lane]).sum(-1), atol=3e-6)


def test_equal_logits_have_no_divergence_and_keep_every_draft() -> None:
    logits = 8 * torch.randn(5, 49_152)
    fidelity = Fidelity(1)
    fidelity(logits, logits[None].clone(), [0] * 5)
    assert (fidelity.column("kld", 0) == 0).all() and (fidelity.column("acceptance", 0) == 1).all()


@given(
    parts=st.lists(st.lists(st.floats(0, 1, width=32), max_size=9), min_size=1, max_size=3), drafted=st.integers(1, 5)
)
def test_tokens_a_step_are_those_of_a_walk(parts: list[list[float]], drafted: int) -> None:
    """Against a loop over every place a step may begin, token by token."""
    yields = []
    for part in parts:
        for start in range(len(part) - drafted + 1):
            kept, total = 1.0, 1.0
            for acceptance in part[start : start + drafted]:
                kept *= acceptance
                total += kept
            yields.append(total)
    found = tokens_a_step([torch.tensor(part) for part in parts], drafted)
    assert found == (pytest.approx(np.mean(yields)) if yields else None)


def test_tokens_a_step_count_clusters_of_refusals() -> None:
    """Two texts of one mean: refusals that stand together cost fewer steps than those that are spread."""
    together, spread = torch.tensor([1.0] * 12 + [0.0] * 4), torch.tensor([1.0, 1, 1, 0] * 4)
    assert tokens_a_step([together]) > tokens_a_step([spread]) + 0.5
    assert tokens_a_step([torch.ones(9)]) == 5 and tokens_a_step([torch.zeros(9)]) == 1


def test_divergence_of_far_apart_distributions() -> None:
    """Tokens one side holds next to impossible, or impossible, overflow nothing and are left out of nothing."""
    p = torch.tensor([[0.0, -5.0, -120.0, -300.0, -torch.inf, -torch.inf]])
    q = torch.tensor([[-200.0, -4.0, 0.0, -1.0, 2.0, -torch.inf]])
    exact = rel_entr(*(torch.softmax(x.double(), -1).numpy() for x in (p, q))).sum(-1)
    found = kl_divergence(p.log_softmax(-1), q.log_softmax(-1))
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-5)
    assert kl_divergence(q.log_softmax(-1), p.log_softmax(-1)).item() == math.inf  # q's most probable token is p's 0


def test_perplexity_block_by_hand() -> None:
    """Four positions, every number from its definition."""
    nll, base = torch.tensor([1.0, 2.0, 0.5, 0.5]), torch.tensor([0.8, 1.5, 0.6, 0.5])
    kld, dp, same = (
        torch.tensor([0.1, 0.4, 0.0, 0.1]),
        torch.tensor([-0.1, -0.2, 0.05, 0.0]),
        torch.tensor([1, 0, 1, 1]),
    )
    block = perplexity_block(nll, base, kld, dp, same)
    assert block["Mean PPL(Q)"].value == pytest.approx(math.exp(1.0))
    assert block["Mean PPL(base)"].value == pytest.approx(math.exp(0.85))
    d = np.array([0.2, 0.5, -0.1, 0.0])
    assert block["Mean ln(PPL(Q)/PPL(base))"].value == pytest.approx(d.mean())
    assert block["Mean ln(PPL(Q)/PPL(base))"].se == pytest.approx(d.std(ddof=1) / 2)
    assert block["Mean PPL(Q)/PPL(base)"].value == pytest.approx(math.exp(0.15))
    assert block["Mean PPL(Q)/PPL(base)"].se == pytest.approx(math.exp(0.15) * d.std(ddof=1) / 2)
    assert block["Mean PPL(Q)-PPL(base)"].value == pytest.approx(math.exp(1.0) - math.exp(0.85))
    assert block["Cor(ln(PPL(Q)), ln(PPL(base)))"].value == pytest.approx(np.corrcoef(nll, base)[0, 1])
    assert block["Mean KLD"].value == pytest.approx(0.15) and block["Maximum KLD"].value == pytest.approx(0.4)
    assert block["Median KLD"].value == pytest.approx(0.1) and block["Minimum KLD"].value == 0
    assert block["Mean Δp"].value == pytest.approx(-6.25) and block["Minimum Δp"].value == pytest.approx(-20)
    assert block["RMS Δp"].value == pytest.approx(math.sqrt((100 + 400 + 25) / 4))
    assert block["Same top p"].value == 75 and block["Same top p"].se == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 3))


def test_perplexity_block_of_nothing_and_of_one() -> None:
    empty, one = torch.zeros(0), torch.ones(1)
    assert perplexity_block(empty, empty, empty, empty, empty) == {}
    block = perplexity_block(one, one, one, one, one)
    assert all(math.isfinite(i.value) for i in block.values()) and block["Mean KLD"].se is None


def test_not_finite_logits_are_noticed_and_minus_infinity_is_no_trouble() -> None:
    fidelity = Fidelity(2)
    reference = torch.tensor([[0.0, 1.0, -float("inf"), 2.0, 3.0, 4.0]])
    lanes = torch.stack([reference.clone(), torch.full_like(reference, float("nan"))])
    fidelity(reference, lanes, [1])
    assert fidelity.column("kld", 0).item() == pytest.approx(0, abs=1e-6)
    assert fidelity.not_finite[1]


def test_near_tie_margin_is_at_least_the_noise_floors_shift() -> None:
    fidelity, reference, _, _ = scored()
    assert fidelity.near_tie_margin() == pytest.approx(0.2)
    loud = Fidelity(1)
    top = reference.topk(2).indices
    shifted = reference.scatter_add(1, top[:, :1], torch.full((40, 1), -0.9))
    loud(reference, shifted[None], [0] * 40)
    assert loud.near_tie_margin() == pytest.approx(0.9, abs=1e-5)


def test_a_cache_names_its_full_precision_parts_as_records_do():
    keys = torch.randn(2, 200, 64, generator=torch.Generator().manual_seed(0))
    methods = make("kivi", sink_tokens=4), make("fp16")
    stored = {name for method in methods for name in roundtrip(method, keys, keys, windows=True).nbytes}
    assert {name.removeprefix("key_").removeprefix("value_") for name in stored} == {
        *FULL_PRECISION,
        "codes",
        "scales",
        "zeros",
    }
