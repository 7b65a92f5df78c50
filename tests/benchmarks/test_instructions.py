"""How far lanes lie apart under another processor's instructions, against cells worked by hand."""

import numpy as np
import pytest

from benchmarks import by_table
from benchmarks.instructions import moved

IDS = np.array([3, 1, 4])


def cell(**lanes: list[float]) -> dict[str, np.ndarray]:
    return {label: np.array(kld) for label, kld in lanes.items()} | {"token_ids": IDS}


@pytest.fixture
def found() -> dict[str, object]:
    own = cell(alike=[0.1, 0.3], near=[0.01, 0.01], far=[0.2, 0.6], twice=[0.1, 0.1], nothing=[0.0, 1e-5], lost=[1.0])
    other = cell(alike=[0.3, 0.1], near=[0.009, 0.009], far=[0.1, 0.5], twice=[0.3, 0.3], nothing=[0.0, 3e-5])
    return moved(own, other)


def test_each_lane_counts_by_the_share_of_its_larger_mean(found):
    assert found["same_answer"] is True and (found["lanes"], found["under_small"]) == (5, 1)
    assert found["median"] == pytest.approx((0.1 + 0.25) / 2)  # of 0, .1, .25 and 2/3
    assert [found[name] for name in ("over_near", "over_fifth", "over_factor")] == [3, 2, 1]
    assert found["most"] == ["twice", pytest.approx(0.1), pytest.approx(0.3)]


def test_another_answer_of_the_reference_is_said(found):
    other = cell(lane=[0.2]) | {"token_ids": IDS[::-1]}
    assert moved(cell(lane=[0.2]), other)["same_answer"] is False


def test_the_table_has_a_row_a_cell_and_says_what_is_not_measured(found, monkeypatch):
    part = {"title": "M-1-Instruct (bundled)", "own": "AVX2", "cells": [{"prompt": "prose"} | found]}
    parts = {"instructions": {"m": part}}
    monkeypatch.setattr(by_table, "figures", parts.get)
    assert "| M-1 | prose | 5 (1) | the same | 17.5% | 3 | 2 | 1 | twice: 0.1 and 0.3 |" in by_table.instructions_part()
    monkeypatch.setattr(by_table, "figures", lambda name: None)
    assert "python benchmarks/instructions.py" in by_table.instructions_part()
