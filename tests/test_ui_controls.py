"""Controls come from the methods' fields; the form and a spec say the same."""

import gradio as gr
import pytest

from kvq_core.errors import SpecError
from kvq_core.methods import Knob, knobs, methods
from kvq_core.presets import presets
from kvq_core.spec import MAX_LANES
from ui.controls import changed, describe, read, widget
from ui.form import FIELDS, from_comparison, to_comparison
from ui.lanes import added, described, duplicated, from_spec, parse_layers, removed, title, updated, with_knob

EVERY_KNOB = [pytest.param(m, k, id=f"{name}-{k.name}") for name, m in methods().items() for k in knobs(m)]


@pytest.mark.parametrize("method, knob", EVERY_KNOB)
def test_every_knob_has_a_control_with_its_help_and_range(method, knob):
    with gr.Blocks():
        control = widget(knob, knob.default)
    assert control.label == knob.title and knob.help in control.info
    if knob.type in ("integer", "number") and knob.maximum is not None:
        assert f"{knob.maximum:,g}" in control.info
    if knob.choices:
        offered = [value for _, value in control.choices]
        assert set(knob.choices) <= set(offered) and ("" in offered) == knob.nullable


@pytest.mark.parametrize("method, knob", EVERY_KNOB)
def test_a_control_left_alone_changes_nothing(method, knob):
    with gr.Blocks():
        shown = widget(knob, knob.default).value
    value = read(knob, shown)
    as_built = method(**({} if value is None else {knob.name: value}))
    assert as_built == method()


def test_no_control_knows_a_method_by_name():
    from pathlib import Path

    import ui

    sources = [path.read_text() for path in Path(ui.__file__).parent.rglob("*.py")]
    for name in methods():
        assert not any(f'== "{name}"' in source or f"== '{name}'" in source for source in sources)


def test_a_knob_at_its_default_is_left_out():
    given = changed("kivi", {"bits": 4}, "group_size", 64.0)
    assert given == {"bits": 4, "group_size": 64} and isinstance(given["group_size"], int)
    assert changed("kivi", given, "group_size", 32) == {"bits": 4}
    assert changed("kivi", {"key_bits": 4}, "key_bits", "") == {}


def test_lists_and_objects_are_read_as_people_write_them():
    listing = Knob("schedule", "Schedule", "", "list", None, None, None, None, True)
    assert read(listing, "8, 4, 4, 0") == [8, 4, 4, 0] and read(listing, "[8]") == [8] and read(listing, "") is None
    with pytest.raises(SpecError, match="cannot be read"):
        read(listing, "8; rm")


def test_describe_tells_the_range():
    assert describe(Knob("x", "X", "Help.", "integer", 1, 1, 4096, None, False)) == "Help. 1 to 4,096."


def test_lanes_are_added_duplicated_and_removed_up_to_the_limit():
    lanes = added([])
    for _ in range(20):
        lanes = added(lanes)
    assert len(lanes) == MAX_LANES == len({lane["uid"] for lane in lanes})
    assert duplicated(lanes, lanes[0]["uid"]) == lanes
    lanes = removed(lanes, lanes[0]["uid"])
    lanes = updated(lanes, lanes[0]["uid"], label="mine")
    lanes = duplicated(lanes, lanes[0]["uid"])
    assert [lane["label"] for lane in lanes[:2]] == ["mine", "mine 2"] and len(lanes) == MAX_LANES


def test_another_method_starts_from_its_own_defaults():
    lanes = with_knob(added([]), 1, "bits", 4)
    assert lanes[0]["knobs"] == {"bits": 4}
    assert updated(lanes, 1, method="squat")[0]["knobs"] == {}
    assert updated(lanes, 1, method="kivi")[0]["knobs"] == {"bits": 4}


def test_an_impossible_lane_says_why_and_keeps_its_values():
    lanes = with_knob(added([]), 1, "group_size", 5000)
    summary, error = described(lanes[0])
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
    with pytest.raises(SpecError, match="at most 8"):
        to_comparison(form, [{**lanes[0], "uid": i, "label": f"l{i}"} for i in range(40)], rest)


def test_system_prompt_none_and_empty_are_different():
    values, lanes, rest = from_comparison(next(iter(presets().values())).spec)
    form = dict(zip(FIELDS, values, strict=True))
    assert to_comparison({**form, "system": "", "no_system": False}, lanes, rest).system is None
    assert to_comparison({**form, "system": "x", "no_system": True}, lanes, rest).system == ""
    assert from_spec(to_comparison(form, lanes, rest).lanes) == lanes
