"""Figures of two runs beside each other, and what is said of their texts."""

from kvq_core.analysis.two_runs import versus
from tests.support.ui_record_factory import make_run
from ui.figures.two_runs import strips_of
from ui.panels.versus import _texts


def test_flips_stand_as_high_above_the_bars_of_both_runs():
    (record, arrays), (other, its) = make_run(2), make_run(2)
    for index in range(2):
        arrays[f"lane/{index}/same_top"][3] = its[f"lane/{index}/same_top"][3] = 0
        its[f"lane/{index}/kld"][:] *= 5
    drawn = strips_of((record, arrays), (other, its), 4)
    heights = {dots.y[0] for figure in drawn for dots in figure.select_traces({"type": "scatter"})}
    assert len(heights) == 1
    assert max(heights) < drawn[0].layout.yaxis.range[1] == drawn[1].layout.yaxis.range[1]


def test_texts_that_share_no_token_are_equal_up_to_none():
    record, _ = make_run(1)
    tokens = [token + 1 for token in record.reference.token_ids]
    other = record.model_copy(update={"reference": record.reference.model_copy(update={"token_ids": tokens})})
    assert "differ from their first token on" in _texts(record, other, versus(record, other))
