"""Figures of a study against other computations of them, and intervals against simulation."""

import numpy as np
import pandas as pd
import pytest

from kvq_core.analysis.scored import tail
from kvq_core.studies.intervals import mean_interval, share_interval, tail_interval
from kvq_core.studies.pairs import flips_with_model, paired_test, pairs, pairs_across
from kvq_core.studies.summary import group_lines, is_wide, lane_lines, task_lines, wide_note


def rows(klds: dict[tuple[str, str], np.ndarray], **more: list) -> pd.DataFrame:
    """By model and lane the mean KLD of every prompt; four tokens each."""
    found = []
    for (model, lane), values in klds.items():
        for at, value in enumerate(values):
            own = {name: column[at] for name, column in more.items()}
            tokens = np.array([0.5, 1.5, 1.0, 1.0]) * value
            lists = {"kld": tokens, "same_top": [True, True, False, True], "top_prob": [0.1, 0.3, 0.6, 1.0]}
            counts = {"scored": 4, "flips": 1, "near_tie_flips": 0, "tier": "close", "repeats": False, "error": None}
            sizes = ("key_bits", "value_bits", "cache_bytes", "weights_bytes", "kv_ratio")
            means = dict.fromkeys(("acceptance", "tokens_a_step", *sizes), 0.5)
            floors = {"storage_floor": 1e-7, "kernel_floor": None, "structural": [True, False, False, True]}
            shared = {"model": model, "lane": lane, "prompt": str(at), "group": "", "kld_mean": value}
            found.append({**shared, **lists, **counts, **means, **floors, "reference_correct": None, **own})
    return pd.DataFrame(found)


@pytest.mark.parametrize(("n", "spread"), [(12, 0.5), (30, 1.0)])
def test_the_interval_of_a_mean_covers_it_as_often_as_it_says(n, spread):
    """A sample of what benchmarks/intervals.py does; 150 studies: 95 % of them within 3.6 standard deviations."""
    draw = np.random.default_rng(1)
    mean, hits = np.exp(spread**2 / 2), 0
    for _ in range(150):
        found = mean_interval(np.exp(draw.normal(0, spread, n)))
        hits += found.low <= mean <= found.high
    assert hits / 150 >= 0.88 and hits < 150


def test_the_interval_agrees_with_students_where_that_is_right():
    from scipy import stats

    values = 5 + 0.1 * np.random.default_rng(2).normal(size=200)
    found, known = mean_interval(values), stats.ttest_1samp(values, 0).confidence_interval()
    assert found.low == pytest.approx(known.low, abs=3e-3) and found.high == pytest.approx(known.high, abs=3e-3)


def test_under_five_prompts_there_is_no_interval_and_equal_ones_have_no_width():
    assert mean_interval(np.array([1.0, 2.0, 3.0, 4.0])).low is None
    same = mean_interval(np.full(6, 0.25))
    assert (same.low, same.value, same.high) == (0.25, 0.25, 0.25)


def test_one_prompt_that_carries_the_mean_leaves_a_finite_interval_and_is_told():
    """Of every third draw it is missing, and the others are nearly alike: their own error would send the end to 1e5."""
    values = np.append(np.full(11, 2e-4) * np.linspace(0.9, 1.1, 11), 0.024)
    found = mean_interval(values)
    assert 10 * found.value < found.high < 1e4 * found.value and found.low < found.value / 2
    lines = lane_lines(rows({("m", "calm"): np.linspace(1, 2, 12), ("m", "wild"): values}))
    assert [is_wide(line) for line in lines] == [False, True]
    said = wide_note(lines)
    assert said.startswith("1 interval reaches beyond 10 times the mean: 12 prompts are too few")
    assert f"wild on m: {0.024 / values.sum():.0%} from '11'" in said
    assert wide_note(lines[:1]) is None and wide_note(lane_lines(rows({("m", "a"): values[-3:]}))) is None


def test_the_tail_is_that_of_the_pooled_tokens_and_its_interval_draws_prompts():
    draw = np.random.default_rng(3)
    prompts = [np.exp(draw.normal(0, 1, 300)) * scale for scale in np.exp(draw.normal(0, 1, 40))]
    found = tail_interval(prompts)
    assert found.rank == 99.9
    assert found.value == np.percentile(np.concatenate(prompts), 99.9)
    drawn = [np.percentile(np.concatenate([prompts[i] for i in draw.integers(0, 40, 40)]), 99.9) for _ in range(400)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert found.low == pytest.approx(low, rel=0.25) and found.high == pytest.approx(high, rel=0.25)
    assert tail_interval(prompts[:3]).low is None and tail_interval(prompts[:3]).rank == 99.0


def test_the_tail_of_one_prompt_is_its_runs():
    """And of prompts that are all alike, whatever is drawn."""
    kld = np.exp(np.random.default_rng(4).normal(-4, 1.5, 256))
    found, own = tail_interval([kld]), tail(kld)
    assert own is not None and (found.rank, found.value) == (own.rank, own.value)
    alike = tail_interval([kld] * 6)
    assert alike.value == np.percentile(np.tile(kld, 6), 99) == pytest.approx(alike.low) == pytest.approx(alike.high)


def test_a_share_has_wilsons_interval():
    from scipy import stats

    found, known = share_interval(7, 12), stats.binomtest(7, 12).proportion_ci(method="wilson")
    assert (found.low, found.high) == (pytest.approx(known.low), pytest.approx(known.high))
    assert share_interval(0, 0) is None


def by_hand(a: np.ndarray, b: np.ndarray) -> float:
    """The larger p of the log quotients, and of the log quotient of means whose error is that of a/mean - b/mean."""
    from scipy import stats

    n, found = len(a), []
    for value, spread in (
        (np.log(a).mean() - np.log(b).mean(), np.log(a / b)),
        (np.log(a.mean()) - np.log(b.mean()), a / a.mean() - b / b.mean()),
    ):
        error = np.sqrt(((spread - spread.mean()) ** 2).sum() / (n - 1) / n)
        found.append(2 * stats.t.sf(abs(value) / error, n - 1))
    return max(found)


@pytest.mark.slow
def test_a_lane_that_loses_hundreds_of_times_more_on_every_prompt_is_told_apart():
    """As q4_0's keys on Qwen2.5: their difference from q8_0 varies as widely as their own loss, and says little."""
    from scipy import stats

    little = np.array([1.1, 3.0, 1.7, 1.1, 0.1, 3.0, 3.7, 3.2, 2.3, 1.4, 0.5, 0.3]) / 1000
    much = np.array([1.26, 0.40, 0.16, 0.30, 1.13, 1.07, 2.76, 0.19, 0.33, 0.48, 0.07, 0.11])
    others = {("m", f"c{at}"): little * (1.5 + 0.1 * at) for at in range(6)}
    found = {(pair.a, pair.b): pair for pair in pairs(rows({("m", "a"): little, ("m", "b"): much} | others))}
    assert stats.ttest_rel(little, much).pvalue * len(found) > 0.05
    assert found["a", "b"].apart and found["a", "b"].sentence.startswith("a is closer")


@pytest.mark.slow
def test_where_the_typical_prompt_and_the_mean_disagree_nothing_is_told_apart():
    steady = np.full(12, 1.0) * np.exp(np.linspace(-0.1, 0.1, 12))
    wild = np.array([0.5] * 11 + [30.0])
    (pair,) = pairs(rows({("m", "steady"): steady, ("m", "wild"): wild}))
    assert not pair.apart and pair.needed is None and pair.difference < 0
    (pair,) = pairs(rows({("m", "once"): wild, ("m", "twice"): 2 * wild}))
    assert pair.apart and pair.sentence.startswith("once is closer"), "the same quotient on every prompt"
    (pair,) = pairs(rows({("m", "none"): np.zeros(12), ("m", "some"): steady}))
    assert pair.apart and pair.sentence.startswith("none is closer")


def test_pairs_are_scipys_with_holms_correction_and_tell_how_many_prompts_would_do():
    from scipy import stats

    draw = np.random.default_rng(4)
    a = np.exp(draw.normal(-3, 0.4, 12))
    klds = {("m", "a"): a, ("m", "b"): a * np.exp(draw.normal(0.05, 0.3, 12)), ("m", "c"): 3 * a}
    found = {(pair.a, pair.b): pair for pair in pairs(rows(klds))}
    raw = {key: stats.ttest_rel(klds["m", key[0]], klds["m", key[1]]) for key in (("a", "b"), ("a", "c"), ("b", "c"))}
    tested = {key: by_hand(klds["m", key[0]], klds["m", key[1]]) for key in raw}
    ordered = sorted(tested, key=lambda key: tested[key])
    highest = 0.0
    for place, key in enumerate(ordered):  # Holm 1979, by hand
        highest = max(highest, min(1.0, (3 - place) * tested[key]))
        assert found[key].p == pytest.approx(highest)
        assert found[key].low == pytest.approx(raw[key].confidence_interval().low)
    assert found["a", "c"].apart and found["a", "c"].sentence.startswith("a is closer to the reference than c")
    assert "cannot be told apart with 12 prompts; about" in found["a", "b"].sentence and found["a", "b"].needed > 12


def test_lanes_of_different_files_are_paired_on_the_same_prompts():
    """Small weights with a good cache against large ones with a bad one."""
    draw = np.random.default_rng(6)
    a = np.exp(draw.normal(-3, 0.4, 12))
    klds = {
        ("Q4", "q8_0"): a,
        ("Q4", "q4_0"): 2 * a,
        ("Q8", "q8_0"): a / 9,
        ("Q8", "q4_0"): a * draw.uniform(0.8, 1.25, 12),
    }
    found = {(pair.model, pair.a, pair.model_b, pair.b): pair for pair in pairs_across(rows(klds))}
    assert len(found) == 4 and all(one != other for one, _, other, _ in found)
    mixed = found["Q4", "q8_0", "Q8", "q4_0"]
    assert mixed.difference == pytest.approx(float((a - klds["Q8", "q4_0"]).mean()))
    assert mixed.sentence.startswith("q8_0 on Q4 and q4_0 on Q8 cannot be told apart")
    clear = found["Q4", "q4_0", "Q8", "q8_0"]
    assert clear.apart and clear.sentence.startswith("q8_0 on Q8 is closer to the reference than q4_0 on Q4")
    tested = sorted(by_hand(klds[one, a], klds[other, b]) for one, a, other, b in found)
    assert min(pair.p for pair in found.values()) == pytest.approx(min(1.0, 4 * tested[0]))


@pytest.mark.slow
def test_paired_tests_hold_their_level():
    """Two lanes that do the same damage on average are told apart in at most one of twenty studies, or nearly: also
    where one does it more unevenly than the other, which a test of log quotients alone would take for a difference."""
    draw, uneven = np.random.default_rng(5), []
    for one, other in ((0.3, 0.3), (0.3, 0.8)):
        false = 0
        for _ in range(400):
            shared = draw.normal(0, 0.5, 12)
            a, b = (np.exp(shared + draw.normal(-(s**2) / 2, s, 12)) for s in (one, other))
            false += paired_test(a, b)[0] < 0.05
        uneven.append(false / 400)
    assert uneven[0] <= 0.08 and uneven[1] <= 0.1, uneven


@pytest.mark.slow
def test_an_order_that_flips_with_the_model_is_named():
    base = np.linspace(1, 2, 8)
    klds = {("m", "a"): base, ("m", "b"): base + 1 + 0.1 * base, ("n", "a"): 3 * base, ("n", "b"): base}
    (flip,) = flips_with_model(pairs(rows(klds)))
    assert (flip.a, flip.b, flip.a_closer, flip.b_closer) == ("a", "b", "m", "n")


def test_a_lanes_line_holds_what_its_tokens_say():
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 3.0])
    (line,) = lane_lines(rows({("m", "a"): values}))
    assert line["kld_mean"] == pytest.approx(0.75) and line["kld_low"] < 0.75 < line["kld_high"]
    assert (line["prompts"], line["worst_prompt"], line["worst_kld"]) == (6, "5", 3.0)
    assert line["kld_p95"] == pytest.approx(np.percentile(values, 95)) and line["flips"] == 0.25
    assert line["tiers"] == {"close": 1.0, "marginal": 0.0, "risky": 0.0}
    assert [bucket["share"] for bucket in line["confidence"]] == [0.25, 0.25, 0.25, 0.0, 0.25]
    assert line["confidence"][2]["flips"] == 1.0 and line["confidence"][3]["kld_mean"] is None
    assert line["structural_kld"] == pytest.approx(0.75 * 0.75) and line["other_kld"] == pytest.approx(0.75 * 1.25)
    assert (line["storage_floor"], line["kernel_floor"]) == (1e-7, None)


def test_groups_and_tasks_are_summed_up_apart():
    columns = {"group": ["x", "x", "y", "y"], "reference_correct": [True, True, False, True]}
    frame = rows({("m", "a"): np.ones(4)}, **columns, correct=[True, False, True, True])
    assert [(line["group"], line["prompts"]) for line in group_lines(frame)] == [("x", 2), ("y", 2)]
    whole, x, y = task_lines(frame)
    assert (whole["asked"], whole["counted"], whole["reference"], whole["right"]) == (4, 3, 0.75, pytest.approx(2 / 3))
    assert (x["group"], x["right"], y["counted"], y["right"]) == ("x", 0.5, 1, 1.0)
    assert whole["right_low"] < 2 / 3 < whole["right_high"]
