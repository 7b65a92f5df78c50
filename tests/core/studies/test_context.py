"""Long context in a study: recall by length and depth, and KLD by position, against counts and means by hand."""

import numpy as np
import pandas as pd
import pytest

from kvq_core.studies.context import position_lines, recall_lines
from kvq_core.studies.prompts import StudyPrompt


def prompts(cells: list[tuple[int, float]]) -> tuple[StudyPrompt, ...]:
    return tuple(
        StudyPrompt(id=f"p{at}", prompt="x", facts={"words": words, "depth": depth})
        for at, (words, depth) in enumerate(cells)
    )


def frame(**columns: list) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    blank = {"model": ["m"] * count, "lane": ["a"] * count, "prompt_tokens": [100] * count}
    return pd.DataFrame({**blank, **columns})


def test_recall_counts_what_the_reference_gets_right_in_each_cell():
    asked = prompts([(120, 0.0), (120, 0.0), (120, 1.0), (480, 0.0)])
    rows = frame(
        prompt=["p0", "p1", "p2", "p3", "elsewhere"],
        reference_correct=[True, True, False, True, True],
        correct=[True, False, True, False, True],
        prompt_tokens=[100, 110, 100, 400, 5],
    )
    found = {(line["words"], line["depth"]): line for line in recall_lines(rows, asked)}
    assert set(found) == {(120, 0.0), (120, 1.0), (480, 0.0)}  # a prompt without a place is in none
    both, lost = found[120, 0.0], found[480, 0.0]
    assert (both["asked"], both["counted"], both["reference"], both["right"]) == (2, 2, 1.0, 0.5)
    assert both["tokens"] == 105 and both["right_low"] < 0.5 < both["right_high"]
    assert lost["right"] == 0.0
    assert found[120, 1.0]["right"] is None and found[120, 1.0]["reference"] == 0.0
    assert recall_lines(rows, ()) == []


def test_kld_by_position_weighs_prompts_and_not_tokens():
    """Positions 3 to 8 lie in bins from 2, 4 and 8; another prompt reads 4 and 5 alone."""
    rows = frame(
        prompt=["p0", "p1"],
        kld_mean=[1.0, 1.0],
        kld=[[4.0, 6.0, 8.0], [9.0]],
        prompt_tokens=[6, 5],
        prompt_at=[np.array([3, 4, 5]), np.array([4])],
        prompt_kld=[[1.0, 2.0, 3.0], [5.0]],
    )
    found = position_lines(rows)
    assert [line["first"] for line in found] == [2, 4, 8]
    means = [line["kld_mean"] for line in found]
    first = np.mean([2.0, 3.0, 4.0, 6.0])  # of one prompt at 4, 5, 6 and 7
    assert means == pytest.approx([1.0, (first + np.mean([5.0, 9.0])) / 2, 8.0])
    assert [line["prompts"] for line in found] == [1, 2, 1] and found[1]["kld_low"] is None


def test_answers_within_two_powers_of_two_have_no_course():
    rows = frame(prompt=["p0"], kld_mean=[1.0], kld=[[1.0] * 20], prompt_at=[None], prompt_kld=[None])
    assert position_lines(rows) == []
