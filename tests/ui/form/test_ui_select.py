"""A lane's select on the page: its controls, its words, its drafts and links."""

import json
from typing import Any

import pytest

from kvq_core.methods import selections
from kvq_core.presets import presets
from kvq_core.spec import Lane, parse_spec
from kvq_core.spec.links import decode, encode
from tests.support.ui_record_factory import make_run
from ui.form.draft import draft_json, read_draft
from ui.form.editor import apply_edits, complaint, editor
from ui.form.lanes import LaneForm, add_lane, describe_lane, from_spec, title, to_spec
from ui.form.lanes_panel import apply_change, place_editor
from ui.form.rules import add_rule
from ui.form.values import FIELDS, from_comparison
from ui.html.cards import settings
from ui.selection import Selection
from ui.views.verdicts import compute


def chosen(method: str = "per_token", **values: Any) -> list[LaneForm]:
    """A lane after edits; ``heavy=.3`` is one of ``select.heavy``."""
    edits = {name if name == "select" else f"select.{name}": value for name, value in values.items()}
    lanes, said = apply_edits(add_lane([], method), 1, edits)
    assert said is None
    return lanes


def test_the_editor_offers_every_choice_and_its_knobs_alone() -> None:
    html = editor(add_lane([]), place_editor(1))
    control = html.partition('id="in-lane-select"')[2].partition("</label>")[0]
    assert all(f"&quot;{by}&quot;" in control for by in ("all", *selections()))
    assert 'data-place="select.' not in html
    open_one = editor(chosen(select="h2o", heavy=0.25), place_editor(1))
    inputs = open_one.partition('id="in-lane-select-heavy"')[2].partition(">")[0]
    assert 'value="0.25"' in inputs and 'data-place="select.recent"' in open_one
    assert 'data-place="select.by"' not in open_one and 'data-place="select.chunk_size"' not in open_one


@pytest.mark.parametrize("by", ["h2o", "scissorhands", "shadowkv", "svdq"])
def test_what_is_chosen_is_in_the_spec_and_in_its_link(by: str) -> None:
    knob = "recent" if by in ("h2o", "scissorhands") else "local_chunks"
    lanes = chosen(select=by, **{knob: 1})
    lanes = apply_edits(lanes, 1, {f"select.{knob}": 0 if knob == "recent" else 2})[0]
    spec = parse_spec({"prompt": "Hi", "lanes": to_spec(lanes)})
    assert spec.lanes[0].select is not None
    assert spec.lanes[0].select.model_dump()[knob] == (0 if knob == "recent" else 2)
    assert decode(encode(spec)) == spec
    again = from_spec(spec.lanes)
    assert parse_spec({"prompt": "Hi", "lanes": to_spec(again)}) == spec
    assert apply_edits(lanes, 1, {"select": "all"})[0][0]["select"] is None


def test_a_choice_goes_beside_rules() -> None:
    lane = {**add_rule(add_lane([])[0]), "uid": 1}
    lanes, said = apply_edits([lane], 1, {"select": "h2o", "rules.0.select": "svdq"})
    assert said is None and lanes[0]["select"] == {"by": "h2o"} and "select" not in lanes[0]["rules"][0]
    assert parse_spec({"prompt": "Hi", "lanes": to_spec(lanes)}).lanes[0].title.endswith(" + h2o")
    assert title(lanes[0]).endswith(" + h2o")


@pytest.mark.parametrize(
    "edits", [{"select": "snapkv"}, {"select": ["h2o"]}, {"select.heavy": 0.5}, {"select.by": "h2o"}]
)
def test_anybodys_edits_change_nothing(edits: dict[str, Any]) -> None:
    lanes = add_lane([])
    assert apply_edits(lanes, 1, edits) == (lanes, None)
    twice = chosen(select="h2o")
    assert apply_edits(twice, 1, {"select.by": "svdq", "select.rank": 4})[0] == twice


def test_what_cannot_be_chosen_is_said_below_the_editor() -> None:
    assert "svdq chooses" not in complaint(chosen("svdq", select="h2o"), 1)
    assert "h2o chooses the keys" in complaint(chosen("h2o", select="h2o"), 1)
    assert "keep 1.1 of the prompt" in complaint(chosen(select="h2o", heavy=1), 1)


def test_lane_and_card_say_it_in_the_same_words() -> None:
    lanes = chosen(select="h2o", heavy=0.25)
    words, error = describe_lane(lanes[0])
    assert error is None and "reads h2o 25 % heavy, 10 % recent" in words and title(lanes[0]) == "Per token + h2o"
    record = make_run(lanes=1)[0]
    lane = Lane.model_validate(to_spec(lanes)[0])
    record.lanes[0].summary = lane.summary
    assert "reads h2o 25 % heavy, 10 % recent" in settings(record.lanes[0])


def test_another_choice_draws_the_editor_anew() -> None:
    lanes, opened = add_lane([]), place_editor(1)

    def told(values: dict[str, Any], form: list[LaneForm]) -> list[Any]:
        raw = json.dumps({"uid": 1, "values": values, "do": None, "lane": None, "revision": opened["revision"]})
        return apply_change(raw, form, opened)

    drawn = told({"select": "shadowkv"}, lanes)
    assert "select.budget_tokens" in drawn[4] and drawn[1]["revision"] != opened["revision"]
    assert told({"select.budget_tokens": 64}, drawn[0])[0][0]["select"] == {"by": "shadowkv", "budget_tokens": 64}


def test_a_draft_keeps_it_and_an_older_one_has_none() -> None:
    values, _, rest = from_comparison(presets()["first-look"].spec)

    def kept(lanes: list[LaneForm]) -> list[LaneForm] | None:
        draft = {"version": 1, "values": dict(zip(FIELDS, values, strict=True)), **json.loads(draft_json(lanes, rest))}
        found = read_draft(json.dumps(draft))
        return None if found is None else found[1]

    lanes = chosen(select="svdq", budget_tokens=5)
    assert kept(lanes) == lanes
    older = kept([{k: v for k, v in lanes[0].items() if k != "select"}])
    assert older is not None and older[0]["select"] is None
    for wrong in ("h2o", {}, {"by": "x"}, {"by": "h2o", "rank": 1}, {"by": "h2o", "heavy": "much" * 3 and {}}):
        assert kept([{**lanes[0], "select": wrong}]) is None


def test_ways_to_use_it_elsewhere_say_that_they_read_all() -> None:
    record, arrays = make_run(lanes=3)  # the third is per token
    assert "reads chosen keys alone" not in compute(record, arrays, Selection()).html["verdicts"]
    record.lanes[2].select = {"by": "h2o", "heavy": 0.1, "recent": 0.1}
    assert compute(record, arrays, Selection()).html["verdicts"].count("reads chosen keys alone") == 1
