"""How often fewer prompts say what all say: rows whose answer is known, and the file that ships beside its rows."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import by_study, one_prompt
from benchmarks.one_prompt import agreement, subsets, tier_of, tier_said
from kvq_core.analysis.verdict import MIN_SCORED, Placed
from kvq_core.recommend.decision import DecisionRequest
from kvq_core.recommend.evidence import Option
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.studies import agreement as module
from kvq_core.studies.agreement import line_of, shipped_agreement
from kvq_core.studies.example import example_spec, packaged_ids, packaged_studies
from kvq_core.studies.rows import frame, read_rows
from kvq_core.studies.spec import read_study
from kvq_core.studies.summary import lane_lines
from kvq_core.studies.table import FILE

CLOSE = 0.001  # nats at every position


def made(*klds: float, lane: str = "x", scored: int = 60) -> list[dict[str, Any]]:
    """A lane's rows, a prompt for each mean KLD, which all its positions have."""
    return [
        {
            "model": "M",
            "prompt": f"p{at}",
            "group": "",
            "lane": lane,
            "scored": scored,
            "kld_mean": kld,
            "kld": [kld] * scored,
            "flips": 0,
            "near_tie_flips": 0,
            "repeats": False,
        }
        for at, kld in enumerate(klds)
    ]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    (id,) = packaged_ids()
    return frame([row for each in read_rows(packaged_studies(), id).values() for row in each])


def right(table: pd.DataFrame, size: int = 1) -> float:
    drawn = subsets(table["prompt"].nunique(), size)
    return float(one_prompt.tiers_said(table, drawn)["right"].mean())


def test_subsets_are_all_and_each_once() -> None:
    assert [len(subsets(12, size)) for size in one_prompt.SIZES] == [12, 220, 924]
    assert {tuple(each) for each in subsets(4, 2)} == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}


def test_prompts_that_are_alike_always_agree() -> None:
    assert [right(frame(made(*[CLOSE] * 6)), size) for size in (1, 3, 5)] == [1, 1, 1]


def test_prompts_that_are_never_like_their_mean_never_agree() -> None:
    """Half of them are close and half are risky by so much that all twelve together are risky: the close ones are
    wrong, the risky ones right."""
    table = frame(made(*[CLOSE, 10.0] * 6))
    study = tier_of(table)
    assert study is not None and study.word == "risky" and right(table) == 0.5
    none = frame(made(*np.linspace(0.02, 0.03, 11), 0.02, scored=49))
    assert one_prompt.tiers_said(none, subsets(12, 1))["none"].all(), "49 positions are too few for a verdict"
    flipped = frame([{**row, "flips": 2} for row in made(*[CLOSE] * 12, scored=60)])
    assert tier_of(flipped).word == "marginal" and right(flipped) == 0, "2 of 60 flips may be 1 %, 24 of 720 are not"


def test_a_lane_of_which_the_study_is_not_sure_is_no_case() -> None:
    table = frame(made(*[0.006, 0.014] * 6) + made(*[CLOSE] * 12, lane="y"))
    assert not tier_of(table[table["lane"] == "x"]).sure
    assert one_prompt.tiers_said(table, subsets(12, 1))["right"].shape == (12, 1)


@pytest.mark.parametrize(
    ("best", "worst", "said"), [(1, 1, "right"), (0, 1, "open"), (0, 2, "open"), (0, 0, "wrong"), (2, 2, "wrong")]
)
def test_what_fewer_prompts_say_of_a_marginal_lane(best: int, worst: int, said: str) -> None:
    study = Placed(1, 1, 1, "KLD")
    assert tier_said(Placed(best, worst, best, "KLD"), study) == said and tier_said(None, study) == "none"


def test_an_interval_resamples_prompts() -> None:
    """Twelve prompts, half right: a share of .5 whose binomial resample has a standard deviation of .144, however many
    cases say the same."""
    hits = np.repeat(np.arange(12)[:, None] % 2 == 0, 1000, axis=1)
    found = agreement(hits, subsets(12, 1), 12)
    assert (
        found.value == 0.5
        and found.low == pytest.approx(0.25, abs=0.05)
        and found.high == pytest.approx(0.75, abs=0.05)
    )
    sure = agreement(np.ones((220, 3), bool), subsets(12, 3), 12)
    assert (sure.value, sure.low, sure.high) == (1, 1, 1)


def test_a_subset_counts_as_often_as_it_can_be_drawn() -> None:
    """Of pairs of prompts those with the first one are right: of a resample that has it n times in 4, the share is its
    pairs with others over all pairs of different prompts. Its ends are those of n = 0, and of n where all pairs have
    it."""
    drawn = subsets(4, 2)
    hits = (drawn == 0).any(1)[:, None]
    found = agreement(hits, drawn, 4)
    assert found.value == 0.5 and (found.low, found.high) == (0, 1)


@pytest.mark.slow
def test_formats_agree_where_the_prompts_do() -> None:
    """One of twelve prompts is ruined by the smaller lane, by so much that all twelve want the larger one."""
    small = made(*[CLOSE] * 11, 10.0, lane="small")
    table = frame(small + made(*[CLOSE] * 12, lane="large"))
    options = [Option("small", {}, 10), Option("large", {}, 20)]
    asks = [(DecisionRequest.of(tolerance="close"), options)]
    drawn = subsets(12, 1)
    assert one_prompt.formats_said(table, drawn, asks)["right"][:, 0].tolist() == [False] * 11 + [True]
    threes = subsets(12, 3)[::22]
    said = one_prompt.formats_said(table, threes, asks)["right"][:, 0]
    assert said.tolist() == (threes == 11).any(1).tolist() and 0 < said.mean() < 1, "those with that prompt"
    refused = [Option("small", {}, 10, refused="no"), Option("large", {}, 20, refused="no")]
    assert one_prompt.formats_said(table, drawn, [(asks[0][0], refused)])["right"].all(), "none of them, by all"


def test_a_study_that_is_not_whole_is_not_counted() -> None:
    part = SimpleNamespace(done=3, id="x", plan=SimpleNamespace(cells=[0] * 24))
    with pytest.raises(SystemExit, match="3 of 24 cells of study x are stored"):
        one_prompt.counted(part)  # type: ignore[arg-type]


@pytest.mark.slow
def test_tiers_are_the_studys_own_and_those_of_its_runs(rows: pd.DataFrame) -> None:
    lines = {(line["model"], line["label"]): line["tier"] for line in lane_lines(rows)}
    for at, own in rows.groupby(["model", "lane"]):
        assert tier_of(own).word == lines[at]
        assert [tier_of(own.iloc[[each]]).word for each in range(3)] == list(own["tier"][:3])


@pytest.mark.slow
def test_what_ships_is_of_the_study_that_ships_and_of_its_rows(rows: pd.DataFrame) -> None:
    """Else `python benchmarks/one_prompt.py`, and `make readme`."""
    found = shipped_agreement()
    assert found is not None and (found["study"],) == packaged_ids() and found["results_version"] == RESULTS_VERSION
    said = [one_prompt.tiers_said(own, subsets(12, 1)) for _, own in rows.groupby("model", sort=False)]
    line = line_of(found, "tier", 1)
    hits = np.hstack([each["right"] for each in said])
    told = agreement(hits, subsets(12, 1), 12)
    assert (line["share"], line["low"], line["high"]) == pytest.approx((told.value, told.low, told.high))
    assert line["open"] == pytest.approx(np.hstack([each["open"] for each in said]).mean())
    assert (line["cases"], line["positions"]) == (hits.shape[1], rows["scored"].mean())
    assert found["lanes"] == rows["lane"].nunique() and found["unsure"] == 16 - hits.shape[1]


def test_the_table_is_no_source_for_it_for_its_answers_are_too_short_for_a_verdict() -> None:
    assert read_study(FILE).comparison.max_new_tokens - 1 < MIN_SCORED <= example_spec().comparison.max_new_tokens - 1


def test_figures_of_other_results_are_not_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "one_prompt.json"
    monkeypatch.setattr(module, "SHIPPED", file)
    for held in (None, {}, {"results_version": RESULTS_VERSION - 1}):
        if held is not None:
            file.write_text(json.dumps(held), encoding="utf-8")
        assert shipped_agreement.__wrapped__() is None
    monkeypatch.setattr(by_study, "shipped_agreement", lambda: None)
    assert by_study.one_prompt_part().startswith("Not counted")
