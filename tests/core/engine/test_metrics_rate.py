"""Reverse water-filling against a direct numeric solution."""

import pytest
import torch
from scipy.optimize import brentq

from kvq_core.engine.rate import reference_curve, water_filling


def by_bisection(variances: torch.Tensor, bits: float) -> float:
    """Find the level at which the rates sum to what is asked for, by root finding."""
    v = variances.double()
    positive = v[v > 0]

    def excess(log_level: float) -> float:
        return (0.5 * (positive.log2() - log_level).clamp_min(0)).sum().item() - bits * len(v)

    if bits == 0:
        return v.sum().item()
    low = positive.min().log2().item() - 2 * bits * len(v) - 4
    level = 2 ** brentq(excess, low, positive.max().log2().item(), xtol=1e-13)
    return positive.clamp_max(level).sum().item()


@pytest.mark.parametrize("bits", [0.0, 0.1, 0.5, 1.0, 2.25, 4.0, 8.0])
@pytest.mark.parametrize("kind", ["spread", "equal", "zeros", "one"])
def test_water_filling_equals_the_direct_solution(kind: str, bits: float) -> None:
    torch.manual_seed(3)
    variances = {
        "spread": torch.rand(40).double() ** 6 * 100,
        "equal": torch.full((16,), 2.5, dtype=torch.float64),
        "zeros": torch.cat([torch.rand(10).double(), torch.zeros(6).double()]),
        "one": torch.tensor([7.0]).double(),
    }[kind]
    assert water_filling(variances, [bits]).item() == pytest.approx(by_bisection(variances, bits), rel=1e-6)


def test_equal_components_follow_the_law_of_six_decibels() -> None:
    assert water_filling(torch.full((8,), 3.0), [2.0]).item() == pytest.approx(8 * 3.0 * 2**-4)
    assert water_filling(torch.zeros(5), [1.0, 2.0]).tolist() == [0.0, 0.0]


def test_the_curve_is_the_mean_over_layers() -> None:
    variances = torch.rand(3, 2, 8)
    energies = variances.sum((1, 2)) * torch.tensor([1.0, 2.0, 4.0])  # means of the keys add to their size
    curve = reference_curve(variances, energies, [0.0, 1.0, 3.0])
    assert curve[0].item() == pytest.approx((1 + 0.5**0.5 + 0.5) / 3, rel=1e-5)
    by_hand = [(by_bisection(v.flatten(), 3.0) / e.item()) ** 0.5 for v, e in zip(variances, energies, strict=True)]
    assert curve[2].item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)
    assert curve[0] > curve[1] > curve[2]
