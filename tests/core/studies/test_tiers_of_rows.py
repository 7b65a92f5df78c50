"""One rule of tiers: a study's rows and lines, a decision, the plots and the API say what the badge says."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from kvq_core.analysis.verdict import MIN_SCORED, P99_FROM, TIERS, Figures, most_flips, rule, tier, verdict
from kvq_core.recommend.constraints import Tolerance
from kvq_core.recommend.evidence import evidence
from kvq_core.record.events import Finished
from kvq_core.record.store import open_store
from kvq_core.studies import rows as rows_module
from kvq_core.studies.rows import frame, keep_rows, knows_text, read_rows, rows_of
from kvq_core.studies.summary import lane_lines
from tests.core.analysis.test_choice import of, writes
from ui.api.stream import _lane
from ui.figures.forest import hover_text
from ui.html.tradeoff import points, tradeoff
from ui.words.study import study_words

LOOP = [0, *[7, 8, 9] * 21]


def kept(record: Any, arrays: Any, prompts: int = 6) -> list[dict[str, Any]]:
    """A run as the rows of so many cells of a study."""
    cells = (
        SimpleNamespace(id=f"r{at}", title="M", prompt=SimpleNamespace(id=f"p{at}", group="", tools=[], verifier=None))
        for at in range(prompts)
    )
    return [row for cell in cells for row in rows_of(cell, record, arrays)]  # type: ignore[arg-type]


def study_of(record: Any, arrays: Any) -> pd.DataFrame:
    return frame(kept(record, arrays))


@pytest.mark.parametrize("loops", [False, True])
def test_a_lane_whose_text_is_a_loop_is_close_nowhere(loops: bool) -> None:
    record, arrays = of([0.002, 0.001], [0.2, 0.6])
    if loops:
        writes(record, 0, LOOP)
    word, reason = ("marginal", "own text") if loops else ("close", "KLD")
    badge = verdict(record, arrays, 0)
    assert badge.placed is not None and (badge.word, badge.placed.reason) == (word, reason)
    assert points(record, arrays)[0].verdict == word and f': {word}"' in tradeoff(record, arrays, "")
    told = _lane(Finished(record, arrays), 0)
    assert (told["verdict"], told["tier_reason"]) == (word, reason)
    table = study_of(record, arrays)
    own = table[table["at"] == 0]
    assert set(zip(own["tier"], own["tier_reason"], strict=True)) == {(word, reason)}
    line = lane_lines(table)[0]
    assert (line["tier"], line["tier_reason"]) == (word, reason) and line["tiers"][word] == 1
    assert f"{word} by its {reason}" in hover_text(line)
    small = record.lanes[0].label
    result = SimpleNamespace(lines=lane_lines(table), pairs=[], failed={})
    assert any(f"surely close: {small}" in said for said in study_words(result, "M").reasons) == (not loops)  # type: ignore[arg-type]
    labels = [lane.label for lane in record.lanes]
    assert (small in evidence(table, labels, Tolerance.parse("close")).holding) == (not loops)
    assert small in evidence(table, labels, Tolerance.parse("marginal")).holding


def test_rows_say_what_the_badge_says_also_where_it_is_between_tiers() -> None:
    record, arrays = of([0.009, 0.002], [0.2, 0.6])
    arrays["lane/0/kld"][:] = np.random.default_rng(0).lognormal(np.log(0.009) - 0.18, 0.6, 63)
    record.lanes[1].metrics = record.lanes[1].metrics.model_copy(update={"flips": 2})  # 3.2 %, 0.9 % at least
    table = study_of(record, arrays)
    assert (
        list(table["tier"][:2])
        == [verdict(record, arrays, at).word for at in (0, 1)]
        == [
            "close or marginal",
            "close",
        ]
    )
    assert lane_lines(table)[0]["tiers"] == {"close": 0, "marginal": 0, "risky": 0, "too close to call": 1}
    assert lane_lines(table)[1]["tier"] == "marginal", "12 of 378 are surely more than 1 %"


def test_a_decision_counts_flips_as_the_tier_does() -> None:
    """2 of 63 are 0.9 % at least and may be close; so is a lane of a study that has as many in all."""
    from scipy.stats import binomtest

    for scored in (63, 378, 5000):
        for bound in TIERS[:-1]:
            most = int(most_flips(bound, scored))
            low, above = (binomtest(count, scored).proportion_ci(method="wilson").low for count in (most, most + 1))
            assert low <= bound.flips < above


@pytest.mark.parametrize(
    ("changes", "word", "reason"),
    [
        ({}, "close", "KLD"),
        ({"high": 0.02}, "close or marginal", "KLD"),
        ({"p99": 0.3}, "close", "KLD"),
        ({"p99": 0.3, "scored": P99_FROM}, "marginal", "tail"),
        ({"flips": 2}, "close", "KLD"),
        ({"flips": 3}, "marginal", "flips"),
        ({"flips": 10}, "risky", "flips"),
        ({"repeats": 1.0}, "marginal", "own text"),
        ({"repeats": 0.01}, "close", "KLD"),
        ({"repeats": 1.0, "high": 0.2}, "marginal or risky", "own text"),
    ],
)
def test_a_tier_says_which_figure_decides_it(changes: dict[str, float], word: str, reason: str) -> None:
    found = tier(Figures(**{"low": 0.001, "high": 0.002, "p99": 0.01, "flips": 0, "scored": 80, **changes}))  # type: ignore[arg-type]
    assert found is not None and (found.word, found.reason) == (word, reason)
    assert tier(Figures(0.001, 0.002, 0.01, 0, MIN_SCORED - 1)) is None


def test_the_rule_is_data() -> None:
    told = rule()
    assert [each["word"] for each in told["tiers"]] == ["close", "marginal", "risky"]
    assert told["tiers"][0]["repeats"] == 0.01 and told["tiers"][2]["kld"] is None and told["name"]


def test_rows_that_were_kept_under_another_rule_are_read_by_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    kld = [0.0094] * 80
    row = {"run": "a", "prompt": "p", "lane": "x", "at": 0, "scored": 80, "kld_mean": 0.0094, "kld": kld, "flips": 1}
    rows = [{**row, "near_tie_flips": 1, "tier": "marginal"}, {"run": "a", "prompt": "p", "tier": "close"}]
    with monkeypatch.context() as patched:
        patched.setattr(rows_module, "rule", lambda: {"name": "another"})
        keep_rows(open_store(), "study", rows)
    (found,) = read_rows(open_store(), "study").values()
    assert [each["tier"] for each in found] == ["close", None] and not knows_text(found)


def test_rows_of_an_older_study_are_read_and_know_no_text(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record, arrays = of([0.001], [0.2])
    older = {name: kind for name, kind in rows_module.COLUMNS.items() if name not in ("tier_reason", "repeats")}
    rows = kept(record, arrays, 1)
    with monkeypatch.context() as patched:
        patched.setattr(rows_module, "COLUMNS", older)
        keep_rows(open_store(), "older", rows)
    (found,) = read_rows(open_store(), "older").values()
    assert found[0]["tier"] == "close" and found[0]["repeats"] is None and not knows_text(found)
    file = tmp_path / "rows"
    file.write_bytes(rows_module.parquet(found))
    assert b"tiers" in pq.read_schema(file).metadata
