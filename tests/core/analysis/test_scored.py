"""The tail and its interval, floors, and KLD by confidence: from arrays alone, so that old runs have them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.analysis.confidence import EDGES, by_confidence
from kvq_core.analysis.floors import above_floor, larger
from kvq_core.analysis.scored import TAIL_FROM, pooled, tail
from kvq_core.cli.tables import describe_record
from kvq_core.record.store import read_run
from tests.support.ui_record_factory import make_run
from ui.figures import confidence, confidence_rows
from ui.html.tables import scorecard
from ui.selection import Selection
from ui.views.verdicts import compute

OLD = sorted((Path(__file__).parents[2] / "data").glob("schema-*"))


def drawn(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=count)


@pytest.mark.parametrize(("count", "name"), [(1, "p99"), (TAIL_FROM - 1, "p99"), (TAIL_FROM, "p99.9")])
def test_the_percentile_is_chosen_by_the_positions(count: int, name: str) -> None:
    found = tail(drawn(count))
    assert found.name == name and found.value == np.percentile(drawn(count), found.rank)


def test_nothing_has_no_tail_and_few_positions_have_no_upper_end() -> None:
    assert tail(np.zeros(0)) is None
    few = tail(drawn(100))
    assert few.low is not None and few.high is None and few.interval == ""


@given(count=st.integers(1, 12_000))
def test_the_interval_covers_and_is_the_narrowest_of_its_kind(count: int) -> None:
    """Values that are their own ranks, so that the ends are the order statistics."""
    from scipy.stats import binom

    found = tail(np.arange(1.0, count + 1))
    below = binom(count, found.rank / 100)
    if found.low is not None:
        assert below.cdf(found.low - 1) <= 0.025 < below.cdf(found.low)
    if found.high is not None:
        assert below.cdf(found.high - 1) >= 0.975 > below.cdf(found.high - 2)


def test_the_interval_holds_the_percentile_as_often_as_it_says() -> None:
    true = -np.log(0.01)
    found = [tail(drawn(2000, seed)) for seed in range(400)]
    assert np.mean([each.low <= true <= each.high for each in found]) > 0.925


@pytest.mark.slow
def test_pages_and_tables_tell_the_tail_the_positions_allow() -> None:
    record, arrays = make_run(1, scored=64)
    assert '<th scope="row">KLD p99</th>' in compute(record, arrays, Selection()).html["verdicts"]
    assert scorecard(record, arrays)[1]["kld_p999"] is None
    for at in ("noise", 0):
        arrays[f"lane/{at}/kld"] = torch.tensor(drawn(TAIL_FROM), dtype=torch.float32)
    exact = tail(pooled(arrays, 0, "kld"))
    row = scorecard(record, arrays)[1]
    assert (row["kld_p999"], row["kld_p999_low"], row["kld_p999_high"]) == (exact.value, exact.low, exact.high)
    assert f"p99.9 {exact.value:.4f}" in describe_record(record, arrays)
    assert "KLD p99.9" in compute(record, arrays, Selection()).html["verdicts"]


def test_given_answers_are_pooled_with_the_generated_one() -> None:
    arrays = {"lane/0/kld": torch.tensor([3.0]), "lane/0/turns_kld": torch.tensor([1.0, 2.0])}
    assert pooled(arrays, 0, "kld").tolist() == [1, 2, 3] and not len(pooled(arrays, 1, "kld"))


def test_positions_above_the_floor_are_paired() -> None:
    record, arrays = make_run(1, scored=4)
    arrays["lane/noise/kld"] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    arrays["lane/0/kld"] = torch.tensor([0.4, 0.3, 0.3, 0.1])
    assert above_floor(record, arrays, 0) == 0.5 and above_floor(record, arrays, "noise") is None
    arrays["lane/0/kld"] = torch.tensor([0.4])
    assert above_floor(record, arrays, 0) is None and larger(record) == "noise"


@given(probs=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40), data=st.data())
def test_buckets_are_those_of_a_loop_and_share_out_all_positions(probs: list[float], data: st.DataObject) -> None:
    n = len(probs)
    kld = data.draw(st.lists(st.floats(0, 9, width=32), min_size=n, max_size=n))
    same = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    arrays = {"lane/0/kld": np.array(kld), "lane/0/same_top": np.array(same)}
    found = by_confidence({**arrays, "reference/topk_probs": np.array([[p, 0.0] for p in probs])}, 0)
    assert sum(bucket.share for bucket in found) == pytest.approx(1) and len(found) == len(EDGES) - 1
    for bucket in found:
        own = [i for i, p in enumerate(probs) if bucket.low <= p < bucket.high or p == bucket.high == 1]
        assert bucket.share == len(own) / n
        if own:
            assert bucket.mean == pytest.approx(np.mean([kld[i] for i in own]))
            assert bucket.median == np.median([kld[i] for i in own])
            assert bucket.flips == pytest.approx(np.mean([1 - same[i] for i in own]))
        else:
            assert bucket.mean is bucket.median is bucket.flips is None


@pytest.mark.parametrize("folder", OLD, ids=lambda folder: folder.name)
def test_old_runs_have_buckets_and_a_tail(folder: Path) -> None:
    record, arrays = read_run(folder)
    found = by_confidence(arrays, 0)
    mean = sum(bucket.share * bucket.mean for bucket in found if bucket.mean is not None)
    assert mean == pytest.approx(record.lanes[0].metrics.kld_mean, rel=1e-5)
    assert tail(pooled(arrays, 0, "kld")).value == pytest.approx(record.lanes[0].metrics.kld_p99, rel=1e-5)
    assert 0 <= above_floor(record, arrays, 0) <= 1
    assert "KLD where the reference's top probability is" in describe_record(record, arrays)
    figure, rows = confidence(record, arrays), confidence_rows(record, arrays)
    assert figure is not None and len(figure.data) == len(record.lanes) + 1
    assert sum(row[3] for row in rows if row[0] == record.lanes[0].label and row[2] == "positions") == pytest.approx(1)


def test_a_lane_that_failed_or_was_not_scored_has_no_buckets() -> None:
    record, arrays = make_run(1)
    assert by_confidence(arrays, 5) == () and by_confidence({}, 0) == ()
    assert confidence(record, {}) is None
