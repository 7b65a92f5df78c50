"""KLD, flips and bits are explained wherever they head a number."""

import pytest

from tests.support.ui_record_factory import make_run
from ui.html.glossary import MEANINGS, glossary_html
from ui.html.lane_table import lane_table
from ui.selection import Selection
from ui.views.verdicts import compute


def test_every_meaning_is_on_the_page_once():
    assert [glossary_html().count(f'data-means="{name}"') for name in MEANINGS] == [1] * len(MEANINGS)


@pytest.mark.parametrize("word", ["KLD", "flips"])
def test_tables_of_lanes_explain_their_heads(word):
    record, arrays = make_run(2)
    assert lane_table(record, arrays, [0, 1], chosen=False).count(f'data-term="{word}"') == 1
    assert compute(record, arrays, Selection()).html["verdicts"].count(f'data-term="{word}"') == len(record.lanes)
