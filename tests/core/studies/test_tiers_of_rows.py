"""The tier of a study's prompt is what its run's own figures say, by the rule of verdicts."""

import numpy as np
import pytest

from kvq_core.analysis.verdict import MIN_SCORED, P99_FROM, TIERS, point_tier, verdict_on
from kvq_core.record.fields import Metrics
from kvq_core.store.store import open_store
from kvq_core.studies.rows import keep_rows, read_rows
from tests.support.ui_record_factory import make_run


@pytest.mark.parametrize("scored", [10, MIN_SCORED, 80, P99_FROM, 400])
@pytest.mark.parametrize("size", [0.001, 0.05, 0.5])
def test_it_is_the_verdict_where_no_interval_holds_a_threshold(scored: int, size: float) -> None:
    kld = np.full(scored, size)
    kld[:2] = 2.0 * size
    found = point_tier(scored, float(kld.mean()), float(np.percentile(kld, 99)), 0)
    told = verdict_on(make_run()[0].lanes[0], Metrics(n_scored=scored), kld).word
    assert told == ("no verdict" if found is None else found.word)
    assert (found is None) == (scored < MIN_SCORED)


def test_two_bad_tokens_of_eighty_are_no_tail_and_flips_lower_a_tier() -> None:
    assert point_tier(80, 0.0094, 0.3, 0) is TIERS[0]
    assert point_tier(P99_FROM, 0.0094, 0.3, 0) is TIERS[1]
    assert point_tier(80, 0.0094, 0.3, 10) is TIERS[2]


def test_rows_that_were_kept_under_another_rule_are_read_by_todays() -> None:
    row = {"run": "a", "prompt": "p", "lane": "x", "at": 0, "scored": 80, "kld_mean": 0.0094, "kld_p99": 0.3}
    rows = [{**row, "flips": 1, "near_tie_flips": 1, "tier": "marginal"}, {"run": "a", "prompt": "p", "tier": "close"}]
    keep_rows(open_store(), "study", rows)
    (found,) = read_rows(open_store(), "study").values()
    assert [each["tier"] for each in found] == ["close", None]
