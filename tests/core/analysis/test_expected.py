"""A comparison may say what its answers should hold: it travels with the run, and every answer is judged by it."""

import pytest

from kvq_core.analysis.expected import contains_answer, expectation, expectation_sentence
from kvq_core.cli.tables import describe_record
from kvq_core.errors import SpecError
from kvq_core.presets import presets
from kvq_core.spec import parse_spec
from kvq_core.spec.links import decode, encode
from tests.support.ui_record_factory import make_run
from ui.export.page import page
from ui.form.values import FIELDS, from_comparison, to_comparison
from ui.html.cards import finished_cards
from ui.selection import Selection
from ui.views.verdicts import compute

BARE = {"prompt": "What is the code?", "lanes": [{"method": "kivi"}]}


def judged(*answers: str, expect: str = "4718", finish: str = "length"):
    """A run whose reference and lanes answer these."""
    record, arrays = make_run(len(answers) - 1)
    for row, answer in zip((record.reference, *record.lanes), answers, strict=True):
        row.text, row.finish = answer, finish
    record.spec["expect"] = expect
    return record, arrays


@pytest.mark.parametrize(
    "answer, expected, right",
    [
        ("The code is 4718.", "4718", True),
        ("The code is 47180.", "4718", False),
        ("x4718", "4718", False),
        ("Four, 4718", " 4718 ", True),
        ("it is  THE\nOpal Gate", "the opal gate", True),
        ("", "4718", False),
        ("在北京市", "北京", True),
        ("a.b*c", "a.b*c", True),
        ("axbc", "a.b*c", False),
        ("(4718)", "(4718)", True),
        ("4718", "4718", True),
        ("the fullwidth ４７１８", "4718", True),
    ],
)
def test_an_answer_says_it_or_not(answer, expected, right):
    assert contains_answer(answer, expected) is right


def test_what_is_expected_decides_no_id_where_nothing_is():
    plain = parse_spec(BARE)
    assert "expect" not in plain.canonical() and parse_spec({**BARE, "expect": ""}).canonical() == plain.canonical()
    asked = parse_spec({**BARE, "expect": "4718"})
    assert asked.canonical() != plain.canonical()  # as notes: a run's record is that of its own comparison
    assert decode(encode(asked)).expect == "4718"
    values, lanes, rest = from_comparison(asked)
    assert to_comparison(dict(zip(FIELDS, values, strict=True)), lanes, rest) == asked and "expect" not in rest
    with pytest.raises(SpecError, match="expect"):
        parse_spec({**BARE, "expect": "x" * 501})


def test_presets_whose_question_has_an_answer_carry_it():
    assert {name for name, preset in presets().items() if preset.spec.expect} == {
        "needle",
        "innerq-windows",
        "half-the-tokens",
    }
    for name in ("needle", "innerq-windows", "half-the-tokens"):
        assert contains_answer(presets()[name].spec.prompt, presets()[name].spec.expect)


@pytest.mark.slow
def test_every_answer_gets_a_tick_or_a_cross():
    record, arrays = judged("It is 4718.", "4718!", "It is 4817.")
    cards = finished_cards(record, arrays).split('id="card-')[1:]
    assert ["✓ 4718" in card for card in cards] == [True, True, False]
    assert ["✗ 4718" in card for card in cards] == [False, False, True]
    drawn = compute(record, arrays, Selection())
    assert drawn.words.startswith("Expected in the answer: “4718”; found in Full precision, Lane 0; missing in Lane 1.")
    assert drawn.html["verdicts"].count("✓ 4718") == 1 == drawn.html["verdicts"].count("✗ 4718")
    assert "missing in Lane 1" in describe_record(record, arrays) and "missing in Lane 1" in page(record, arrays)


def test_a_failed_lane_gets_neither():
    record, arrays = judged("It is 4718.", "4718")
    record.lanes[0].status, record.lanes[0].error = "failed", "why"
    assert "✓" not in (html := compute(record, arrays, Selection()).html["verdicts"]) and "✗" not in html
    assert expectation_sentence(record).endswith("found in Full precision.")


@pytest.mark.parametrize("changes", [{"expect": ""}, {"finish": "continuation"}])
def test_nothing_is_judged_where_nothing_is_expected_or_written(changes):
    record, arrays = judged("It is 4718.", "4718", **changes)
    assert expectation(record) == expectation_sentence(record) == ""
    assert "✓" not in finished_cards(record, arrays) and "Expected" not in compute(record, arrays, Selection()).words


def test_a_run_of_before_expects_nothing():
    record, arrays = make_run(1)
    del record.spec["expect"]
    assert expectation_sentence(record) == "" and "✓" not in finished_cards(record, arrays)


def test_what_is_expected_is_shown_as_text():
    record, arrays = judged("a", "b", expect="<img src=x>\"'${1}")
    html = finished_cards(record, arrays) + compute(record, arrays, Selection()).html["verdicts"]
    assert "<img" not in html and "${" not in html and "✗" in html
