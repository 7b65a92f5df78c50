"""The scorecard, its CSV and the block of perplexities."""

from tests.support.ui_record_factory import make_run
from ui.html.tables import COLUMNS, perplexity_rows, scorecard, to_csv


def test_scorecard_has_the_noise_floor_first_and_every_column(run):
    rows = scorecard(*run)
    assert [row["lane"] for row in rows] == ["Noise floor", "Lane 0", "Lane 1", "Lane 2"]
    absent = {column.name for row in rows[1:] for column in COLUMNS if row[column.name] is None}
    # of too few positions; of a model whose layers keep all tokens, and nothing else
    assert absent == {"kld_p999", "kld_p999_low", "kld_p999_high", "whole_ratio"}
    assert rows[0]["above_floor"] is None and rows[0]["verdict"] == ""


def test_csv_is_raw_and_guards_against_formulas():
    text = to_csv(scorecard(*make_run(labels=("=HYPERLINK(1)",))))
    assert "'=HYPERLINK(1)" in text and ",0.2," in text


def test_perplexity_block_keeps_its_order(run):
    head, rows = perplexity_rows(run[0])
    assert head[1:] == ["Noise floor", "Lane 0", "Lane 1", "Lane 2"]
    assert [row[0] for row in rows] == ["Mean KLD", "Maximum KLD"] and rows[0][1] == "0.2000 ± 0.010"
