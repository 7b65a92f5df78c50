"""Two runs beside each other: what differs, which lanes belong together, and when their figures must not be ranked."""

import pytest

from kvq_core.analysis.two_runs import Change, versus
from ui.panels.versus import versus_html


@pytest.fixture
def pair(sample_run):
    return sample_run()[0], sample_run(id="f" * 16)[0]


def with_spec(record, **changes):
    return record.model_copy(update={"spec": {**record.spec, **changes}})


def with_lanes(record, *lanes):
    return record.model_copy(update={"lanes": list(lanes)})


def test_equal_runs_have_nothing_between_them(pair):
    found = versus(*pair)
    assert found.changes == () and found.unfair == () and found.same_text
    assert [(p.one.label, p.other.label) for p in found.pairs] == [("KIVI 2-bit",) * 2, ("SQuat",) * 2]


def test_changed_fields_are_named_with_both_values(pair):
    one, other = pair
    other = with_spec(other, seed=7, capture={"detail": "off"})
    assert set(versus(one, other).changes) == {Change("seed", None, 7), Change("capture.detail", None, "off")}


def test_lanes_are_matched_by_label_first_then_by_what_they_are(pair):
    one, other = pair
    kivi, squat = other.lanes
    renamed = kivi.model_copy(update={"label": "Two bits"})
    swapped = squat.model_copy(update={"label": "KIVI 2-bit"})
    found = versus(one, with_lanes(other, renamed, swapped))
    assert [p.label for p in found.pairs] == ["KIVI 2-bit", "SQuat", "Two bits"]
    assert Change("KIVI 2-bit: method", "kivi", "squat") in found.changes
    found = versus(one, with_lanes(other, squat, renamed))
    assert [p.label for p in found.pairs] == ["KIVI 2-bit / Two bits", "SQuat"]


def test_knobs_of_matched_lanes_are_compared(pair):
    one, other = pair
    changed = other.lanes[0].model_copy(update={"knobs": {"bits": 4}, "tensors": "keys"})
    found = versus(one, with_lanes(other, changed, other.lanes[1]))
    assert set(found.changes) == {
        Change("KIVI 2-bit: bits", None, 4),
        Change("KIVI 2-bit: tensors", "both", "keys"),
    }


def test_lanes_without_a_partner_stay_in_the_list(pair):
    one, other = pair
    found = versus(with_lanes(one, one.lanes[0]), with_lanes(other, other.lanes[1]))
    assert [(p.one and p.one.label, p.other and p.other.label) for p in found.pairs] == [
        ("KIVI 2-bit", None),
        (None, "SQuat"),
    ]
    assert set(found.changes) == {Change("lane KIVI 2-bit", "kivi", None), Change("lane SQuat", None, "squat")}


def test_more_lanes_and_other_names_are_no_equal_comparison(pair):
    one, other = pair
    more = versus(with_lanes(one), other)
    assert [(c.place, c.one, c.other) for c in more.changes] == [
        ("lane KIVI 2-bit", None, "kivi"),
        ("lane SQuat", None, "squat"),
    ]
    shown = versus_html(one, other, more, ({}, {}), "x", "y")
    assert "are the same" not in shown and "lane SQuat" in shown
    renamed = other.lanes[0].model_copy(update={"label": "Two bits"})
    assert versus(one, with_lanes(other, renamed, other.lanes[1])).changes == (
        Change("KIVI 2-bit / Two bits: label", "KIVI 2-bit", "Two bits"),
    )


@pytest.mark.parametrize(
    "part, changes, says",
    [
        ("environment", {"weights_hash": "1" * 16, "model_title": "Another"}, "Other model: A model and Another"),
        ("environment", {"model_hash": "2" * 16}, "Other configuration of A model: the same weights"),
        ("reference", {"prompt_token_ids": [3, 4]}, "Other prompt"),
        ("reference", {"token_ids": [1, 9, 9]}, "Other reference text, from token 1 on"),
        ("environment", {"dtype": "float16"}, "Other device or number format"),
        (None, {"results_version": 2}, "results 1 and 2"),
        (None, {"spec": {"prompt": "Say hi.", "model": "m", "stress": {"key_bias": 2}}}, "Other stress"),
    ],
)
def test_what_is_not_fair_is_said(pair, part, changes, says):
    one, other = pair
    changed = changes if part is None else {part: getattr(other, part).model_copy(update=changes)}
    found = versus(one, other.model_copy(update=changed))
    assert len(found.unfair) == 1 and says in found.unfair[0]


def test_another_center_is_another_cache(pair):
    one, other = pair
    kivi, squat = other.lanes
    found = versus(one, with_lanes(other, kivi.model_copy(update={"center": "mean"}), squat))
    assert found.changes == (Change("KIVI 2-bit: center", "none", "mean"),)
    renamed = kivi.model_copy(update={"center": "mean", "label": "Other"})
    assert {
        (p.one and p.one.label, p.other and p.other.label) for p in versus(one, with_lanes(other, renamed)).pairs
    } == {
        ("KIVI 2-bit", None),
        ("SQuat", None),
        (None, "Other"),
    }
