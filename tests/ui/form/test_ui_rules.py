"""The rule editor: a lane of several rules is shown and edited, one rule stays what it was."""

import json

import pytest

from kvq_core.spec import ComparisonSpec, Lane, parse_lane, parse_spec
from ui.form.draft import VERSION, draft_json, read_draft
from ui.form.editor import apply_edits, editor
from ui.form.lanes import LaneForm, add_lane, append_lane, describe_lane, duplicate_lane, from_spec, title, to_spec
from ui.form.lanes_panel import apply_change, lane_rows_html, place_editor
from ui.form.rules import add_rule, move_rule_up, parse_tokens, remove_rule, rules_of
from ui.form.rules import as_typed as tokens_text
from ui.form.values import FIELDS, from_comparison, to_comparison

KEYS = {"method": "per_token", "knobs": {"bits": 8}, "tensors": "keys"}
VALUES = {"method": "kivi", "tensors": "values", "center": "none"}
SKIP = {"method": "fp16", "layers": [0, 1]}
MIXED = {"label": "mixed", "rules": [SKIP, KEYS, VALUES]}


def spec(*lanes: dict) -> ComparisonSpec:
    return parse_spec({"prompt": "p", "lanes": list(lanes)})


def form(*lanes: dict) -> list[LaneForm]:
    return from_spec(spec(*lanes).lanes)


def press(do: str, number: int, lanes: list[LaneForm], opened: dict, values: dict | None = None) -> list:
    sent = {"uid": opened["uid"], "values": values or {}, "do": do, "lane": number}
    return apply_change(json.dumps(sent), lanes, opened)


def test_a_lane_of_several_rules_passes_through_the_form():
    asked = spec(MIXED, {"method": "kivi"})
    values, lanes, rest = from_comparison(asked)
    shown = dict(zip(FIELDS, values, strict=True))
    assert to_comparison(shown, lanes, rest).lanes == asked.lanes
    held = json.loads(draft_json(lanes, rest))
    draft = json.dumps({"version": VERSION, "values": shown, **held})
    found = read_draft(draft)
    assert found is not None
    assert to_comparison(dict(zip(FIELDS, found[0], strict=True)), *found[1:]).lanes == asked.lanes


def test_it_is_described_listed_and_opened():
    lanes = form(MIXED)
    assert describe_lane(lanes[0]) == ("K per_token 8, V kivi 2; layers 0-1 fp16", None)
    assert title({**lanes[0], "label": ""}) == "layers 0-1 fp16; K per_token 8; V kivi 2"
    shown = editor(lanes, place_editor(1, 1))
    assert "1. layers 0-1 fp16" in shown and "3. V kivi 2" in shown
    assert 'data-lane="2" aria-pressed="true"' in shown and 'data-place="rules.1.knobs.bits"' in shown
    assert 'data-place="rules.1.method"' in shown and 'data-place="method"' not in shown
    assert "lane-row" in lane_rows_html(lanes, place_editor(None))[0]


def test_a_lane_of_one_rule_is_shown_as_before_with_one_button_more():
    shown = editor(form({"method": "kivi"}), place_editor(1))
    assert 'class="rules"' not in shown and "rules." not in shown and 'data-do="rule-add"' in shown


def test_a_rule_is_added_before_the_others_moved_and_removed():
    (one,) = form({"method": "kivi"})
    two = add_rule(one)
    assert two["method"] is None and two["label"] == "" and [r["method"] for r in two["rules"]] == ["fp16", "kivi"]
    assert parse_lane(to_spec([two])[0]).title == "kivi 2; layer 0 fp16"
    assert {**remove_rule(two, 0), "label": "KIVI"} == one
    assert rules_of(move_rule_up(two, 1))[0]["method"] == "kivi" and move_rule_up(two, 0) == two
    assert remove_rule(one, 0) == one


def test_buttons_open_add_move_and_remove_rules():
    lanes = form({"method": "kivi"})
    lanes, opened, *_ = press("rule-add", 0, lanes, place_editor(1))
    assert (opened["rule"], len(lanes[0]["rules"])) == (0, 2)
    lanes, opened, *_ = press("rule", 2, lanes, opened, {"rules.0.layers": "1-2", "rules.0.label": "x"})
    assert opened["rule"] == 1 and lanes[0]["rules"][0]["layers"] == [1, 2] and "label" not in lanes[0]["rules"][0]
    lanes, opened, _, said, *_ = press("rule-up", 2, lanes, opened)
    assert opened["rule"] == 0 and "rule 2 (layers 1-2 fp16) can never be reached" in said
    lanes, opened, _, said, *_ = press("rule-remove", 2, lanes, opened)
    assert lanes[0]["rules"] is None and lanes[0]["method"] == "kivi" and said == ""


def test_changes_told_before_the_rules_moved_reach_none_of_them():
    lanes, opened = form(MIXED), place_editor(1, 2)
    sent = {"uid": 1, "values": {"rules.2.knobs.bits": 4}, "do": None, "lane": None}
    assert apply_change(json.dumps({**sent, "revision": "older"}), lanes, opened)[0] == lanes
    changed = apply_change(json.dumps({**sent, "revision": opened["revision"]}), lanes, opened)[0]
    assert changed[0]["rules"][2]["knobs"] == {"bits": 4}


def test_edits_reach_the_rule_they_name():
    lanes = form(MIXED)
    values = {"rules.2.knobs.bits": 4, "rules.1.method": "innerq", "label": "other", "rules.0.layers": "0, 2-3"}
    changed, said = apply_edits(lanes, 1, values)
    rules = changed[0]["rules"]
    assert said is None and changed[0]["label"] == "other" and rules[0]["layers"] == [0, 2, 3]
    assert (rules[1]["method"], rules[1]["knobs"], rules[1]["tensors"]) == ("innerq", {}, "keys")
    assert rules[2]["knobs"] == {"bits": 4}
    lanes, opened, *_ = apply_change(
        json.dumps({"uid": 1, "values": {"rules.1.method": "svdq"}, "do": None, "lane": None}),
        lanes,
        place_editor(1, 1),
    )
    assert opened["rule"] == 1 and lanes[0]["rules"][1]["method"] == "svdq"


@pytest.mark.parametrize(
    "values",
    [
        {"rules.9.method": "kivi"},
        {"rules.": 1},
        {"rules.x.method": "kivi"},
        {"rules.99999999999999999999.layers": "all"},
        {"rules.0.rules.0.method": "kivi"},
        {"rules.0.rules": []},
        {"rules": []},
        {"rules.0.uid": 5},
        {"method": "kivi"},
        {"knobs.bits": 2},
    ],
)
def test_places_that_are_not_there_change_nothing(values):
    lanes = form(MIXED)
    assert apply_edits(lanes, 1, values) == (lanes, None)


def test_a_wrong_rule_is_marked_and_named():
    lanes, _ = apply_edits(form(MIXED), 1, {"rules.2.knobs.group_size": 7, "rules.2.sink_tokens": -1})
    assert describe_lane(lanes[0])[1].startswith("rule 3: ")
    assert "rule wrong" in editor(lanes, place_editor(1))


def test_lanes_are_copied_and_added_beside_it():
    lanes = duplicate_lane(form(MIXED), 1)
    assert lanes[1]["rules"] == lanes[0]["rules"] and lanes[1]["label"] == "mixed 2"
    assert add_lane(lanes)[2]["method"] == "kivi"
    assert append_lane(lanes, Lane.model_validate({**MIXED, "label": "third"}))[2]["rules"] == lanes[0]["rules"]


@pytest.mark.parametrize(
    ("typed", "tokens"),
    [("first:4", "first:4"), (" Last: 32 ", "last:32"), ("40-60, 80-90", [[40, 60], [80, 90]]), ("", "all")],
)
def test_tokens_of_a_rule_are_typed_in_its_editor(typed, tokens):
    lanes, said = apply_edits(form(MIXED), 1, {"rules.0.tokens": typed})
    assert said is None and lanes[0]["rules"][0]["tokens"] == tokens
    shown = editor(lanes, place_editor(1, 0)).partition('data-place="rules.0.tokens"')
    assert shown[1] and tokens_text(parse_tokens(typed)) == tokens_text(tokens)
    assert read_draft(draft(lanes))[1][0]["rules"][0]["tokens"] == tokens


def test_tokens_that_are_none_are_refused_by_the_spec():
    lanes, _ = apply_edits(form(MIXED), 1, {"rules.0.tokens": "newest few"})
    assert "is not allowed" in describe_lane(lanes[0])[1]


def draft(lanes):
    values, _, rest = from_comparison(spec(MIXED))
    shown = dict(zip(FIELDS, values, strict=True))
    return json.dumps({"version": VERSION, "values": shown, **json.loads(draft_json(lanes, rest))})
