"""The form as a browser kept it: what was left is found again, and anything else is no draft."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.presets import presets
from ui.form.draft import draft_json, read_draft
from ui.form.draft_panel import restore_form
from ui.form.lanes import add_lane, describe_lane, update_lane
from ui.form.lanes_panel import redraw_lanes
from ui.form.values import FIELDS, from_comparison

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def kept(values, lanes, rest, changes=()) -> str:
    draft = {"version": 1, "values": dict(zip(FIELDS, values, strict=True)), **json.loads(draft_json(lanes, rest))}
    return json.dumps(draft | dict(changes))


@pytest.mark.parametrize("name", presets())
def test_a_presets_form_is_found_as_it_was_left(name):
    values, lanes, rest = from_comparison(presets()[name].spec)
    assert read_draft(kept(values, lanes, rest)) == (values, lanes, rest)


def test_what_is_wrong_in_a_form_is_kept_too():
    """A draft is what a person left, not what can run."""
    values, _, rest = from_comparison(presets()["first-look"].spec)
    values = ["" if name == "prompt" else None if name == "seed" else v for name, v in zip(FIELDS, values, strict=True)]
    lanes = update_lane(
        add_lane(add_lane([]), "svdq"), 1, knobs={"group_size": 5000}, layers="all but one", sink_tokens=-1
    )
    lanes = update_lane(lanes, 2, knobs={"sparsity": {"chunk_size": 0}, "schedule": [8, 4]})
    assert read_draft(kept(values, lanes, rest)) == (values, lanes, rest)
    assert describe_lane(lanes[0])[1] and describe_lane(lanes[1])[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": None},
        {"values": {}},
        {"values": []},
        {"lanes": None},
        {"lanes": [1]},
        {"lanes": [{"method": "nope"}]},
        {"rest": []},
        {"rest": {"revision": 5}},
        {"rest": {"capture": "all"}},
    ],
)
def test_what_is_no_draft_is_ignored(changes):
    assert read_draft(kept(*from_comparison(presets()["first-look"].spec), changes)) is None


@pytest.mark.parametrize("raw", ["", None, 5, "{", "[]", "null", '"x"', "[" * 5000, "x" * 4_000_000])
def test_what_is_no_json_is_ignored(raw):
    assert read_draft(raw) is None and restore_form(raw) is None


@pytest.mark.slow
@given(name=st.sampled_from(FIELDS), value=JSON)
def test_any_value_of_a_field_is_kept_or_refused(name, value):
    values, lanes, rest = from_comparison(presets()["first-look"].spec)
    found = read_draft(kept(values, lanes, rest, {"values": dict(zip(FIELDS, values, strict=True)) | {name: value}}))
    assert found is None or found[0][FIELDS.index(name)] == value


@given(name=st.sampled_from(("label", "knobs", "tensors", "layers", "sink_tokens", "method")), value=JSON, uid=JSON)
def test_any_lane_that_is_kept_can_be_shown(name, value, uid):
    values, _, rest = from_comparison(presets()["first-look"].spec)
    found = read_draft(kept(values, [{**add_lane([])[0], "uid": uid, name: value}], rest))
    if found is not None:
        redraw_lanes(found[1], 1)
