"""Policies against every policy there is, on small cases."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import SpecError
from kvq_core.recommend.layer_plans import FP16, LayerPlan
from kvq_core.recommend.solver import Costs, SolvedPolicy, ends_apart, free, one_each, skip_list

NAMES = ("a", "b", FP16)


@st.composite
def costs(draw: st.DrawFn) -> Costs:
    """Two or three layers, two formats and fp16; losses and bytes such that ties and useless formats occur."""
    layers = draw(st.integers(2, 3))
    numbers = st.integers(-1, 6)
    loss = np.array(draw(st.lists(numbers, min_size=4 * layers, max_size=4 * layers)), float).reshape(2, layers, 2)
    sizes = st.integers(1, 9)
    size = np.array(draw(st.lists(sizes, min_size=4 * layers, max_size=4 * layers))).reshape(2, layers, 2)
    plain = np.full((2, layers, 1), 8)
    return Costs(NAMES, np.concatenate([loss, 0 * plain], -1), np.concatenate([size, plain], -1))


def every(layers: int) -> list[LayerPlan]:
    rows = list(product(NAMES, repeat=layers))
    return [LayerPlan(keys, values) for keys, values in product(rows, repeat=2)]


def in_vllm(plan: LayerPlan) -> bool:
    return plan.keys == plan.values and len(set(plan.keys) - {FP16}) <= 1


def in_llama_cpp(plan: LayerPlan) -> bool:
    return len(set(plan.keys)) == len(set(plan.values)) == 1


def in_ik(plan: LayerPlan) -> bool:
    """At most three runs of one format each."""
    return all(sum(a != b for a, b in zip(names, names[1:], strict=False)) <= 2 for names in (plan.keys, plan.values))


SPACES = {
    free: lambda plan: True,
    skip_list: in_vllm,
    one_each: in_llama_cpp,
    ends_apart: in_ik,
}


@pytest.mark.long("combine", sample=2)
@pytest.mark.slow
@pytest.mark.parametrize("solve", SPACES, ids=lambda solve: solve.__name__)
@given(costs=costs(), budget=st.integers(4, 50))
def test_a_policy_is_the_best_that_its_space_has(
    solve: Callable[[Costs, int], SolvedPolicy], costs: Costs, budget: int
) -> None:
    allowed = [SolvedPolicy.of(plan, costs) for plan in every(costs.layers) if SPACES[solve](plan)]
    fitting = [one for one in allowed if one.nbytes <= budget]
    if not fitting:
        with pytest.raises(SpecError, match="No policy"):
            solve(costs, budget)
        return
    found = solve(costs, budget)
    least = min(one.predicted for one in fitting)
    assert found.nbytes <= budget and SPACES[solve](found.plan)
    assert found.predicted == least
    if solve in (free, one_each):
        assert found.nbytes == min(one.nbytes for one in fitting if one.predicted == least)


def test_a_format_that_another_beats_is_never_chosen() -> None:
    """``b`` takes more than ``a`` and loses more, everywhere."""
    shape = (2, 4, 1)
    loss = np.concatenate([np.full(shape, 1.0), np.full(shape, 2.0), np.zeros(shape)], -1)
    size = np.concatenate([np.full(shape, 4), np.full(shape, 5), np.full(shape, 16)], -1)
    for budget in range(32, 129, 4):
        found = free(Costs(NAMES, loss, size), budget)
        assert "b" not in (*found.plan.keys, *found.plan.values) and found.nbytes <= budget


def test_the_budget_is_kept_to_the_byte() -> None:
    rng = np.random.default_rng(0)
    loss = np.concatenate([rng.exponential(1, (2, 30, 5)), np.zeros((2, 30, 1))], -1)
    size = np.concatenate([rng.integers(20_000, 60_000, (2, 30, 5)), np.full((2, 30, 1), 131_072)], -1)
    own = Costs(("a", "b", "c", "d", "e", FP16), loss, size)
    exact = free(own, 3_000_000)
    assert exact.nbytes <= 3_000_000
    assert free(own, exact.nbytes).predicted == pytest.approx(exact.predicted, abs=1e-9)
    assert free(own, exact.nbytes - 1).predicted >= exact.predicted
    for solve in (skip_list, one_each, ends_apart):
        assert solve(own, 3_000_000).predicted >= exact.predicted - 1e-9
