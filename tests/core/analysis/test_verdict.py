"""Verdicts: KLD decides by its interval, flips and p99 where they are sure; what the page says agrees with them."""

import re

import numpy as np
import pytest
import torch

from kvq_core.analysis import verdict as rule
from kvq_core.analysis.verdict import EXPLAINED, MIN_SCORED, P99_FROM, TIERS, verdict
from tests.support.ui_record_factory import make_run
from ui.export.card import card, card_text
from ui.export.page import page
from ui.html.cards import lane_head
from ui.html.tables import scorecard, to_csv
from ui.selection import Selection
from ui.views.verdicts import compute
from ui.words import overall


def made(record, arrays, index, mean, flips=0, near=0, shape=1.0):
    """The lane with KLD of a given mean, skewed as real ones are, and so many flips."""
    from scipy.stats import gamma  # half a second, in the process that runs these tests alone

    n = record.lanes[index].metrics.n_scored
    values = gamma.ppf((np.arange(n) + 0.5) / n, shape)
    kld = values * mean / values.mean()
    arrays[f"lane/{index}/kld"] = torch.tensor(kld, dtype=torch.float32)
    changes = {
        "kld_mean": mean,
        "kld_p99": float(np.quantile(kld, 0.99)),
        "flips": flips,
        "near_tie_flips": near,
        "flip_rate": flips / n,
    }
    record.lanes[index].metrics = record.lanes[index].metrics.model_copy(update=changes)


def judged(mean, flips=0, near=0, scored=63, shape=1.0):
    record, arrays = make_run(1, scored=scored)
    made(record, arrays, 0, mean, flips, near, shape)
    return verdict(record, arrays, 0)


@pytest.mark.parametrize(
    ("mean", "word"),
    [
        (0.004, "close"),
        (0.009, "close or marginal"),
        (0.011, "close or marginal"),
        (0.03, "marginal"),
        (0.09, "marginal or risky"),
        (0.2, "risky"),
    ],
)
def test_the_interval_of_kld_decides_and_where_it_holds_a_threshold_says_so(mean, word) -> None:
    found = judged(mean)
    assert found.word == word
    undecided = " or " in word
    assert found.sentence.startswith("Too close to call, ") == undecided and (found.tone == "quiet") == undecided
    assert found.why.endswith(EXPLAINED) and "noise floor: mean KLD" in found.why


def test_a_very_uneven_lane_may_be_anything() -> None:
    found = judged(0.03, shape=0.02)
    assert found.word == "close to risky" and "Too close to call, close to risky" in found.sentence


def test_the_interval_is_scipys_and_always_the_same() -> None:
    from scipy.stats import bootstrap

    record, arrays = make_run(1)
    made(record, arrays, 0, 0.009)
    values = arrays["lane/0/kld"].double().numpy()
    expected = bootstrap((values,), np.mean, n_resamples=rule.RESAMPLES, rng=np.random.default_rng(0))
    low, high = expected.confidence_interval
    assert f"interval {low:.2g} to {high:.2g}" in verdict(record, arrays, 0).why
    rule.mean_interval.cache_clear()
    assert f"interval {low:.2g} to {high:.2g}" in verdict(record, arrays, 0).why


@pytest.mark.slow
def test_the_positions_asked_for_would_have_told() -> None:
    """With as many more of the same kind, the interval has left the threshold; with a third of them it has not."""
    for mean in (0.0085, 0.012, 0.085):
        more = int(re.search(r"score some ([\d,]+) more", judged(mean).sentence)[1].replace(",", ""))
        assert " or " in judged(mean).word and " or " not in judged(mean, scored=63 + more).word
        assert " or " in judged(mean, scored=63 + more // 3).word


def test_a_mean_on_the_threshold_asks_for_more_than_can_be_had() -> None:
    assert "score over 10,000 more" in judged(0.01).sentence


@pytest.mark.parametrize(
    ("flips", "near", "word"), [(0, 0, "close"), (2, 0, "close"), (7, 5, "close"), (3, 0, "marginal"), (9, 0, "risky")]
)
def test_flips_lower_a_tier_only_where_they_surely_do(flips, near, word) -> None:
    """2 of 63 are 0.9 % at least, 3 are 1.6 %, 9 are 7.7 %; near ties do not count."""
    found = judged(0.004, flips, near)
    assert found.word == word
    lowered = word != "close"
    assert found.sentence == (
        f"By KLD it would be close, but {flips} of 63 positions flip without a near tie." * lowered
    )


def test_the_99th_percentile_counts_from_enough_positions_on() -> None:
    for scored, word in ((P99_FROM - 1, "close"), (P99_FROM, "marginal")):
        record, arrays = make_run(1, scored=scored)
        made(record, arrays, 0, 0.003)
        arrays["lane/0/kld"] = torch.full((scored,), 0.003)
        arrays["lane/0/kld"][::70] = 0.15
        found = verdict(record, arrays, 0)
        assert found.word == word and ("but its p99 is 0.15 nats" in found.sentence) == (word == "marginal")


def test_the_issue_of_the_closest_lane_that_was_only_marginal() -> None:
    """One flip of 63 made the lane of less KLD the worse one; seven, five of them near ties, a lane of 0.0084 risky."""
    record, arrays = make_run(3, labels=("KIVI", "Per token", "K4V4"))
    made(record, arrays, 0, 0.0055, flips=1)
    made(record, arrays, 1, 0.0090)
    made(record, arrays, 2, 0.0084, flips=7, near=5)
    words = [verdict(record, arrays, at).word for at in range(3)]
    order = [tier.word for tier in TIERS]
    assert [order.index(word.split(" ")[0]) for word in words] == [0, 0, 0] and words[0] == "close"
    assert "risky" not in " ".join(words)
    assert overall(record, arrays).startswith("KIVI stays closest")


@pytest.mark.parametrize("flips", [0, 5])
def test_the_headline_says_why_the_closest_lane_has_not_the_best_verdict(flips) -> None:
    record, arrays = make_run(2, labels=("Near", "Far"))
    made(record, arrays, 0, 0.003, flips=flips)
    made(record, arrays, 1, 0.005)
    said = overall(record, arrays)
    assert said.startswith("Near stays closest") and verdict(record, arrays, 1).word == "close"
    assert ("Near: By KLD it would be close, but 5 of 63 positions flip" in said) == bool(flips)


@pytest.mark.slow
def test_all_places_of_the_page_say_the_same_word() -> None:
    record, arrays = make_run(2, labels=("One", "Two"))
    made(record, arrays, 0, 0.0085)
    made(record, arrays, 1, 0.003, flips=5)
    address = "https://x.example/"
    shown = [compute(record, arrays, Selection()).html["verdicts"], page(record, arrays, "", address)]
    for index, word in enumerate(("close or marginal", "marginal")):
        found = verdict(record, arrays, index)
        assert found.word == word
        assert f">{word}</span>" in lane_head(record, arrays, index) and found.sentence in lane_head(
            record, arrays, index
        )
        assert scorecard(record, arrays)[1 + index]["verdict"] == word
        assert f",{word}," in to_csv(scorecard(record, arrays))
        assert f">{word}<" in card(record, arrays, address) and f"({word})" in card_text(record, arrays, address)
        assert all(f">{word}<" in html and found.sentence in html for html in shown)


def test_no_verdict_on_few_positions_or_without_the_kld_of_each() -> None:
    record, arrays = make_run(1, scored=MIN_SCORED - 1)
    assert verdict(record, arrays, 0).word == "no verdict"
    assert verdict(*make_run(1, scored=MIN_SCORED), 0).word == "risky"
    assert verdict(record, {}, 0).word == "no verdict"


def test_flags_come_before_tiers() -> None:
    record, arrays = make_run(1)

    def word(**changes) -> str:
        lane = record.lanes[0].model_copy(update=changes)
        return verdict(record.model_copy(update={"lanes": [lane]}), arrays, 0).word

    assert word(flags=["never_engaged"]) == "never engaged" and word(flags=["nan"]) == "not a number"
    assert word(status="failed", error="why") == "failed"
    arrays["lane/0/kld"][3] = torch.nan
    assert word() == "not a number"


def test_a_lane_that_moves_nothing_is_close() -> None:
    record, arrays = make_run(1)
    made(record, arrays, 0, 0.004)
    arrays["lane/0/kld"].zero_()
    assert verdict(record, arrays, 0).word == "close"


def test_the_rule_is_told_from_its_data() -> None:
    for tier in TIERS[:-1]:
        told = f"{tier.word}: mean KLD ≤ {tier.kld:g} nats, flips ≤ {100 * tier.flips:g} %, p99 ≤ {tier.p99:g} nats"
        assert told in EXPLAINED
    assert f"under {MIN_SCORED} scored" in EXPLAINED and f"from {P99_FROM} positions" in EXPLAINED


def test_a_card_says_what_its_settings_are_for() -> None:
    record, arrays = make_run(1)
    assert " only</p>" not in lane_head(record, arrays, 0)
    record.lanes[0].tensors = "values"
    assert " · values only</p>" in lane_head(record, arrays, 0)
