"""Runs of many lanes on the page: a table of all, and cards and figures of those chosen in it."""

import re
from functools import cache

import pytest

from kvq_core.record.events import LaneProgress, Step
from kvq_core.record.store import open_store
from kvq_core.record.subset import best
from kvq_core.spec import MAX_LANES, parse_spec
from tests.support.ui_record_factory import make_run
from ui.export.card import card, card_text
from ui.export.page import page
from ui.html.cards import finished_cards
from ui.html.status import event_line
from ui.panels.answers import all_lanes
from ui.panels.live_cards import LiveCards
from ui.selection import Selection
from ui.service.records import RecordCache, drawn_lanes
from ui.views.verdicts import create_verdicts


@cache
def many():
    """Made when a test asks: to collect the tests needs none."""
    return make_run(MAX_LANES, scored=9, tokens=60)


@pytest.fixture
def records(tmp_path) -> RecordCache:
    cache = RecordCache(open_store(str(tmp_path)))
    cache.put(*many())
    return cache


def shown(*lanes: object) -> dict[str, object]:
    return {"run": many()[0].id, "lanes": list(lanes)}


def test_the_best_lanes_are_drawn_until_others_are_chosen(records):
    record, _ = records.drawn({"run": many()[0].id})
    assert [lane.label for lane in record.lanes] == [f"Lane {i}" for i in best(many()[0])]
    chosen, arrays = records.drawn(shown(40, 2, 2))
    assert [lane.label for lane in chosen.lanes] == ["Lane 2", "Lane 40"]
    assert arrays["lane/1/kld"] is many()[1]["lane/40/kld"]
    assert records.drawn(shown(2, 40))[0] is chosen, "a page's views are drawn from one object, which they compare"


@pytest.mark.parametrize("asked", [["x"], [-1, 64], [True], [], None, "best"])
def test_what_is_no_lane_chooses_nothing(asked):
    assert drawn_lanes(many()[0], {"lanes": asked}) == best(many()[0])


def test_never_more_are_drawn_than_there_are_colours(records):
    assert len(records.drawn(shown(*range(MAX_LANES)))[0].lanes) == 8


def test_views_are_drawn_anew_for_other_lanes(records):
    view = create_verdicts()
    (one, own), (other, theirs) = records.drawn(shown(1, 2)), records.drawn(shown(3))
    assert view.key(one, Selection(), []) != view.key(other, Selection(), [])
    assert (
        "Lane 1" in view.draw(one, own, Selection(), [])[1] and "Lane 3" in view.draw(other, theirs, Selection(), [])[1]
    )


def test_the_table_has_a_row_a_lane_and_says_which_are_drawn():
    table = all_lanes(*many(), {"lanes": [5, 9]})
    assert table.count("<tr>") == 1 + MAX_LANES and "the lanes chosen here" in table
    assert re.findall(r'value="(\d+)" checked', table) == ["5", "9"]
    assert re.findall(r'class="dot (lane-\d+)"', table) == [f"lane-{number}" for number in range(MAX_LANES)]
    assert "that no other lane beats" in all_lanes(*many(), {})


def test_a_run_of_eight_lanes_has_no_table():
    assert all_lanes(*make_run(8, scored=9, tokens=60), {}) == ""


def test_a_stream_shows_the_cards_of_the_lanes_that_decode_now():
    spec = parse_spec(many()[0].spec)
    board = LiveCards(spec)
    assert board.html.count('class="card answer') == 9
    lanes = [LaneProgress(lane.label, ["a"], [0.1], [True], None) for lane in spec.lanes]
    step = Step(20, 72, ["a"], lanes, range(16, 24))
    board.show(step)
    assert board.html.count('class="card answer') == 9 and "Lane 16" in board.html and "Lane 24" not in board.html
    assert "Decoding, lanes 17 to 24 of 64: 20 of 72 tokens" in event_line(step)


@pytest.mark.slow
def test_what_is_taken_away_shows_the_best_and_scores_all():
    record, arrays = many()
    made = page(record, arrays)
    assert all(f'<th scope="row">Lane {i}</th>' in made for i in range(MAX_LANES))
    assert made.count("<h3>Lane") == 8 and "8 lanes: those that no other lane beats" in made
    assert len(made) < 1_000_000
    picture = card(record, arrays, "")
    assert sum(f">Lane {i}<" in picture for i in range(MAX_LANES)) == 8 and "64 quantized" in picture
    assert len(card_text(record, arrays, "").splitlines()) < 16
    assert len(finished_cards(record, arrays)) > 0
