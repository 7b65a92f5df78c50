"""Expectation and maximisation against the dense ones of the paper."""

import pytest
import torch
from kvq_kernels import rope_codebook as rc
from torch import Tensor

from kvq_core.training import em
from kvq_core.training.em import EmSettings, train_stage
from kvq_core.training.keys import Residual
from kvq_core.training.values import ValuePlan, train_layer
from tests.core.methods.test_methods_commvq import dense_t
from tests.support.codebook_samples import samples


def soft(z: Tensor, theta: Tensor, temperature: float) -> Tensor:
    """W by the book: all centres, all distances."""
    first, second = rc.code_vectors(theta)
    centres = (first[:, None] + second[None]).flatten(0, 1)
    return torch.softmax(-torch.cdist(z, centres) / temperature, -1)


def test_expectation_equals_the_dense_one():
    z, theta = torch.randn(1, 300, 6), torch.randn(1, 4, 3, 2)
    found = em.assign(z, torch.ones(1, 300), rc.code_vectors(theta), torch.tensor([0.7]))
    w = soft(z[0], theta[0], 0.7).unflatten(-1, (4, 4))
    torch.testing.assert_close(found.counts[0], w.sum(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.first[0], w.sum(2).T @ z[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.second[0], w.sum(1).T @ z[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        found.error, rc.nearest_codes(z, rc.code_vectors(theta))[1].sum(-1), rtol=1e-3, atol=1e-3
    )


def test_maximisation_equals_the_papers_dense_solve():
    """phi = (T^T S T)^-1 T^T S m with S the mass of each centre and m its mean, for every pair."""
    levels, pairs = 4, 3
    z, theta = torch.randn(1, 300, 2 * pairs), torch.randn(1, levels, pairs, 2)
    found = em.assign(z, torch.ones(1, 300), rc.code_vectors(theta), torch.tensor([0.5]))
    w = soft(z[0], theta[0], 0.5).double()
    mass, t = w.sum(0), dense_t(levels).double()
    mean = (w.T @ z[0].double()) / mass[:, None]  # (centres, 2 * pairs)
    s = mass.repeat_interleave(2)[:, None]
    m = torch.stack([mean[:, :pairs], mean[:, pairs:]], 1).flatten(0, 1)
    phi = torch.linalg.solve(t.T @ (s * t), t.T @ (s * m))  # (2 * levels, pairs)
    expected = phi.unflatten(0, (levels, 2)).transpose(1, 2)
    torch.testing.assert_close(em.maximise(found, ridge=0.0)[0], expected, rtol=1e-3, atol=1e-4)


def hard_case() -> tuple[Tensor, em.Assignments]:
    """Every token sits in centre (0, 0): levels 1 to 3 are dead and the system is singular without a ridge."""
    z = torch.ones(1, 50, 4)
    counts = torch.zeros(1, 4, 4)
    counts[0, 0, 0] = 50
    parts = torch.zeros(1, 4, 4)
    parts[0, 0] = z[0].sum(0)
    return z, em.Assignments(counts, parts, parts, torch.arange(50.0)[None], torch.zeros(1))


def test_dead_levels_stay_finite_and_come_back():
    z, found = hard_case()
    theta = em.maximise(found)
    assert theta.isfinite().all()
    centre = rc.code_vectors(theta)[0, :, 0].sum(0)  # of (0, 0): the only one that counts
    torch.testing.assert_close(centre, torch.ones(4, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    z[0, 49] = torch.tensor([5.0, -3.0, 2.0, 7.0])
    found.distance[0, :49] = 0  # all the error is that token's
    revived = em.revive(theta, found, z, torch.Generator().manual_seed(0))
    _, squared = rc.nearest_codes(z.double(), rc.code_vectors(revived))
    assert squared[0, 49] < 1e-9


def test_training_beats_its_start_and_generalizes():
    train_data, fresh = samples(1500, 1, layers=1), samples(500, 2, layers=1)
    train_z, check = (Residual.of(s.keys[0].float(), 8) for s in (train_data, fresh))
    theta = train_stage(train_z.z, train_z.weight, 8, EmSettings(), seed=0)
    first = em.first_levels(train_z.z, 8, torch.Generator().manual_seed(0))
    scattered = train_z.z[:, :8].unflatten(-1, (2, 8)).transpose(-1, -2)  # eight tokens as levels
    trained = Residual.of(train_data.keys[0].float(), 8).subtract(theta)
    assert trained < 0.7 * Residual.of(train_data.keys[0].float(), 8).subtract(first)
    held_out = check.subtract(theta)
    assert held_out < 0.7 * Residual.of(fresh.keys[0].float(), 8).subtract(scattered)
    assert held_out < 1.3 * trained


def test_a_stop_is_noticed_within_a_stage():
    z, asked = torch.randn(1, 300, 4), []

    def tick() -> None:
        asked.append(1)
        if len(asked) in (3, 6):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_stage(z, torch.ones(1, 300), 4, EmSettings(steps=20), 0, tick)
    with pytest.raises(KeyboardInterrupt):
        train_layer(torch.randn(1, 50, 8), ValuePlan(1, steps=20, seed=0), 0, tick)
    assert len(asked) == 6
