"""Controls come from the methods' fields; the form and a spec say the same."""

import html
import json
import re

import gradio as gr
import pytest

from kvq_core.errors import SpecError
from kvq_core.methods import Knob, methods
from kvq_core.presets import presets
from kvq_core.spec import MAX_LANES, parse_spec
from ui.form.controls import control, control_value, current, describe, places, read, set_knob
from ui.form.editor import apply_edits, editor
from ui.form.lane_list import OFF
from ui.form.lanes import (
    add_lane,
    describe_lane,
    duplicate_lane,
    from_spec,
    move_lane,
    parse_layers,
    remove_lane,
    switch_lane,
    title,
    to_spec,
    update_lane,
    with_knob,
)
from ui.form.lanes_panel import apply_change as told
from ui.form.lanes_panel import lane_rows_html, place_editor
from ui.form.values import FIELDS, from_comparison, to_comparison

EVERY_KNOB = [pytest.param(m, place, k, id=f"{n}-{place}") for n, m in methods().items() for place, k in places(m)]


@pytest.mark.parametrize("method, place, knob", EVERY_KNOB)
def test_every_knob_has_a_control_with_its_help_and_range(method, place, knob):
    shown = html.unescape(control(method.name, place, place, knob, knob.default))
    assert knob.title in shown and knob.help in shown and f'data-place="{place}"' in shown
    if knob.type in ("integer", "number") and knob.maximum is not None:
        assert f"{knob.maximum:,g}" in shown
    if knob.choices:
        offered = [json.loads(value) for value in re.findall(r'<option value="(.*?)"[ >]', shown)]
        assert set(knob.choices) <= set(offered) and ("" in offered) == knob.nullable


@pytest.mark.parametrize("method, place, knob", EVERY_KNOB)
def test_a_control_left_alone_changes_nothing(method, place, knob):
    shown = control_value(knob, knob.default)
    assert knob.title and knob.help
    given = set_knob(method.name, {place.split(".")[0]: {}} if "." in place else {}, place, shown)
    assert given == ({place.split(".")[0]: {}} if "." in place else {})


def test_no_control_knows_a_method_by_name():
    from pathlib import Path

    import ui

    sources = [path.read_text() for path in Path(ui.__file__).parent.rglob("*.py")]
    for name in methods():
        assert not any(f'== "{name}"' in source or f"== '{name}'" in source for source in sources)


def test_a_knob_at_its_default_is_left_out():
    given = set_knob("kivi", {"bits": 4}, "group_size", 64.0)
    assert given == {"bits": 4, "group_size": 64} and isinstance(given["group_size"], int)
    assert set_knob("kivi", given, "group_size", 32) == {"bits": 4}
    assert set_knob("kivi", {"key_bits": 4}, "key_bits", "") == {}


def test_an_object_is_switched_on_and_its_own_knobs_are_set():
    on = set_knob("svdq", {}, "sparsity", True)
    assert on == {"sparsity": {}} and describe_lane({**add_lane([], "svdq")[0], "knobs": on})[1] is None
    smaller = set_knob("svdq", on, "sparsity.budget_tokens", 64.0)
    assert smaller == {"sparsity": {"budget_tokens": 64}}
    assert set_knob("svdq", smaller, "sparsity.budget_tokens", 256) == on
    assert set_knob("svdq", smaller, "sparsity", False) == {}
    by_place = dict(places(methods()["svdq"]))
    assert current(smaller, "sparsity.budget_tokens", by_place["sparsity.budget_tokens"]) == 64
    assert current(smaller, "sparsity.chunk_size", by_place["sparsity.chunk_size"]) == 8
    assert control_value(by_place["sparsity"], {}) is True and control_value(by_place["sparsity"], None) is False
    said = describe_lane({**add_lane([], "svdq")[0], "knobs": {"sparsity": {"chunk_size": 0}}})[1]
    assert "sparsity.chunk_size = 0" in said and "1 to 256" in said


def test_named_values_are_offered_beside_any_other():
    knob = dict(places(methods()["svdq"]))["schedule"]
    labels = re.findall(r'<option value="(.*?)">', control("svdq", "schedule", "schedule", knob, knob.default))
    assert [label.rsplit(" (", 1)[1] for label in labels][:3] == ["3)", "2.25)", "2)"]
    for label in labels:  # chosen, or left in the box and edited
        assert read(knob, label) == knob.named[label.rsplit(" (", 1)[1].rstrip(")")]
    assert set_knob("svdq", {}, "schedule", "8, 4, 4, 0, 0, 0, 0, 1 (2)") == {"schedule": [8, 4, 4, 0, 0, 0, 0, 1]}


def test_lists_are_read_as_people_write_them():
    listing = Knob("schedule", "Schedule", "", "list", None, None, None, None, True)
    assert read(listing, "8, 4, 4, 0") == [8, 4, 4, 0] and read(listing, "[8]") == [8] and read(listing, "") is None
    with pytest.raises(SpecError, match="cannot be read"):
        read(listing, "8; rm")


def test_describe_tells_the_range():
    assert describe(Knob("x", "X", "Help.", "integer", 1, 1, 4096, None, False)) == "Help. 1 to 4,096."


def test_lanes_are_added_duplicated_and_removed_up_to_the_limit():
    lanes = add_lane([])
    for _ in range(MAX_LANES):
        lanes = add_lane(lanes)
    assert len(lanes) == MAX_LANES == len({lane["uid"] for lane in lanes})
    assert duplicate_lane(lanes, lanes[0]["uid"]) == lanes
    lanes = remove_lane(lanes, lanes[0]["uid"])
    lanes = update_lane(lanes, lanes[0]["uid"], label="mine")
    lanes = duplicate_lane(lanes, lanes[0]["uid"])
    assert [lane["label"] for lane in lanes[:2]] == ["mine", "mine 2"] and len(lanes) == MAX_LANES


def test_another_method_starts_from_its_own_defaults():
    lanes = update_lane(with_knob(add_lane([]), 1, "bits", 4), 1, label="KIVI 4-bit")
    assert lanes[0]["knobs"] == {"bits": 4}
    changed_to = update_lane(lanes, 1, method="squat")[0]
    assert changed_to["knobs"] == {} and title(changed_to) == "SQuat"
    assert update_lane(lanes, 1, method="kivi") == lanes


def test_an_impossible_lane_says_why_and_keeps_its_values():
    lanes = with_knob(add_lane([]), 1, "group_size", 5000)
    summary, error = describe_lane(lanes[0])
    assert summary == "" and "group_size = 5000" in error and "1 to 1024" in error
    assert lanes[0]["knobs"] == {"group_size": 5000} and title(lanes[0]) == "KIVI"


@pytest.mark.parametrize(
    "text, layers", [("all", "all"), ("", "all"), ("0, 2, 5-7", [0, 2, 5, 6, 7]), ("x", "x"), ("1-99999", "1-99999")]
)
def test_layers_are_read_from_ranges(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize("name", list(presets()))
def test_a_preset_survives_the_form(name):
    spec = presets()[name].spec
    values, lanes, rest = from_comparison(spec)
    assert to_comparison(dict(zip(FIELDS, values, strict=True)), lanes, rest) == spec


def test_bad_forms_are_refused_in_one_line():
    values, lanes, rest = from_comparison(next(iter(presets().values())).spec)
    form = dict(zip(FIELDS, values, strict=True))
    for change in (
        {"prompt": "  "},
        {"max_new_tokens": None},
        {"max_new_tokens": 10**6},
        {"temperature": -1},
        {"model": "x" * 500},
    ):
        with pytest.raises(SpecError) as refused:
            to_comparison({**form, **change}, lanes, rest)
        assert "\n" not in str(refused.value)
    with pytest.raises(SpecError, match="at most 64"):
        to_comparison(form, [{**lanes[0], "uid": i, "label": f"l{i}"} for i in range(70)], rest)


def test_system_prompt_none_and_empty_are_different():
    values, lanes, rest = from_comparison(next(iter(presets().values())).spec)
    form = dict(zip(FIELDS, values, strict=True))
    assert to_comparison({**form, "system": "", "no_system": False}, lanes, rest).system is None
    assert to_comparison({**form, "system": "x", "no_system": True}, lanes, rest).system == ""
    assert from_spec(to_comparison(form, lanes, rest).lanes) == lanes


def test_all_changes_of_an_editor_arrive_with_the_last():
    lanes = add_lane(add_lane([]))
    values = {"knobs.bits": 4, "label": " mine ", "layers": "0, 2", "sink_tokens": 4}
    lanes, said = apply_edits(lanes, 2, values)
    assert said is None and lanes[0] == add_lane([])[0]
    assert lanes[1]["knobs"] == {"bits": 4} and lanes[1]["label"] == "mine"
    assert lanes[1]["layers"] == [0, 2] and lanes[1]["sink_tokens"] == 4
    again, _ = apply_edits(lanes, 2, values)
    assert again == lanes
    moved, _ = apply_edits(lanes, 2, {"method": "squat"})
    assert moved[1]["method"] == "squat" and moved[1]["knobs"] == {}


def test_a_button_of_the_editor_takes_the_last_changes_along():
    lanes, opened = add_lane(add_lane([])), place_editor(1)
    sent = {"uid": 1, "values": {"knobs.bits": 4}, "do": "duplicate", "lane": None}
    after, now, rows, error, form, below, _ = told(json.dumps(sent), lanes, opened)
    assert [lane["knobs"] for lane in after] == [{"bits": 4}, {"bits": 4}, {}] and now["uid"] == after[1]["uid"]
    assert (rows + below).count('class="lane-row') == 3 and error == "" and f'data-uid="{now["uid"]}"' in form
    after, now, _, _, form, *_ = told(json.dumps({**sent, "do": "open", "lane": 1}), lanes, opened)
    assert now["uid"] is None and form == "" and after[0]["knobs"] == {"bits": 4}
    assert len(told(json.dumps({**sent, "do": "remove"}), lanes, opened)[0]) == 1


@pytest.mark.parametrize(
    "raw",
    ["", "[]", "null", "{", '{"uid": 1}', '{"uid": 1, "values": 3, "do": null, "lane": null}', "[" * 5000, None],
)
def test_what_no_page_sends_changes_nothing(raw):
    lanes, opened = add_lane([]), place_editor(1)
    assert all(update == gr.skip() for update in told(raw, lanes, opened))


@pytest.mark.parametrize(
    "values",
    [
        {"knobs.nonsense": 1},
        {"uid": 7},
        {"method": "__class__"},
        {"method": ["kivi"]},
        {"__proto__": 1},
    ],
)
def test_places_that_are_not_there_change_nothing(values):
    lanes = add_lane([])
    assert apply_edits(lanes, 1, values) == (lanes, None) and apply_edits(lanes, 99, {"label": "x"}) == (lanes, None)
    assert apply_edits(lanes, "1", {"label": "x"}) == (lanes, None)


@pytest.mark.parametrize("value", ["?", [1, [2]], {"a": 1}, 1e308, -1])
def test_an_impossible_value_is_kept_and_complained_about(value):
    lanes, said = apply_edits(add_lane([]), 1, {"knobs.group_size": value, "sink_tokens": value})
    assert said or describe_lane(lanes[0])[1]


def test_text_in_the_lanes_card_is_escaped():
    lanes = update_lane(add_lane([]), 1, label="<img src=x onerror=alert(1)>\"'${1}")
    for shown in (*lane_rows_html(lanes, place_editor(1)), editor(lanes, place_editor(1))):
        assert "<img" not in shown and "${" not in shown


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"sink_tokens": -1}, "sink_tokens = -1 is not allowed: it must be greater than or equal to 0."),
        ({"layers": "all but one"}, "layers = 'all but one' is not allowed: give such as \"all\" or [0, 1]."),
        ({"label": "x" * 61}, "label = 'xxx"),
        ({"knobs": {"group_size": None}}, "group_size = nothing is not allowed"),
        ({"tensors": "k"}, "tensors = 'k' is not allowed: it must be 'both', 'keys' or 'values'."),
    ],
)
def test_what_is_wrong_with_a_lane_is_said_in_one_line_of_our_own(changes, said):
    summary, error = describe_lane({**add_lane([])[0], **changes})
    assert summary == "" and said in error, error
    assert not any(word in error for word in ("pydantic", "http", "validation", "input_type", "None", "Input should"))


def test_a_wrong_lane_is_named_by_its_number_and_label():
    values, _, rest = from_comparison(parse_spec({"prompt": "p"}))
    form = dict(zip(FIELDS, values, strict=True))
    wrong = {**add_lane([])[0], "sink_tokens": -1}
    for label, said in (("", "lane 2 (KIVI): sink_tokens = -1"), ("Mine", "lane 2 (Mine): sink_tokens")):
        with pytest.raises(SpecError) as refused:
            to_comparison(form, [add_lane([])[0], {**wrong, "label": label}], rest)
        assert str(refused.value).startswith(said) and "lanes[" not in str(refused.value)


def test_a_lane_that_is_off_is_kept_and_not_asked_for():
    lanes = add_lane(add_lane(add_lane([], "kivi"), "svdq"), "fp16")
    off = switch_lane(lanes, 2)
    assert [lane["method"] for lane in to_spec(off)] == ["kivi", "fp16"] and len(off) == 3
    assert switch_lane(off, 2) == lanes and switch_lane(lanes, 9) == lanes
    html = "".join(lane_rows_html(off, place_editor(None)))
    marks = re.findall(r'class="lane-item ([^"]+)"', html)
    assert marks == ["lane-0", "is-off", "lane-1"], "the colours that they have in the run"
    assert html.count('aria-checked="false"') == 1 and OFF in html


@pytest.mark.parametrize(
    "uid, to, order",
    [
        (3, 0, [3, 1, 2]),
        (1, 2, [2, 3, 1]),
        (1, 99, [2, 3, 1]),
        (2, -5, [2, 1, 3]),
        (9, 0, [1, 2, 3]),
        (1, "0", [1, 2, 3]),
    ],
)
def test_a_lane_goes_where_it_is_put(uid, to, order):
    lanes = add_lane(add_lane(add_lane([])))
    assert [lane["uid"] for lane in move_lane(lanes, uid, to)] == order
    sent = {"uid": None, "values": {}, "do": "move", "lane": uid, "to": to}
    assert [lane["uid"] for lane in told(json.dumps(sent), lanes, place_editor(None))[0]] == order
