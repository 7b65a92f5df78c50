"""A lane's center on the page: its control, its words, and what is said where keys cannot be centred."""

import json
from typing import get_args

import pytest

from kvq_core.presets import presets
from kvq_core.spec import WORDS, Centering, parse_spec
from kvq_core.spec.links import decode, encode
from tests.support.ui_record_factory import make_run
from ui.form.draft import draft_json, read_draft
from ui.form.editor import apply_edits, complaint, editor
from ui.form.lanes import LaneForm, add_lane, describe_lane, from_spec, to_spec
from ui.form.lanes_panel import place_editor
from ui.form.values import FIELDS, from_comparison
from ui.html.cards import settings

HOW = get_args(Centering)


def centred(how: str, method: str = "per_token") -> list[LaneForm]:
    lanes, said = apply_edits(add_lane([], method), 1, {"center": how})
    assert said is None
    return lanes


def test_the_editor_offers_every_center_with_its_help() -> None:
    html = editor(centred("mean"), place_editor(1))
    control = html.partition('id="in-lane-center"')[2].partition("</label>")[0]
    assert [f"&quot;{how}&quot;" in control for how in HOW] == [True] * len(HOW)
    assert "Centre keys" in html and "2 bytes a channel" in control
    assert '<details class="about" open' in html  # an option that is set is not hidden


@pytest.mark.parametrize("how", HOW)
def test_what_is_chosen_is_in_the_spec_and_in_its_link(how: str) -> None:
    spec = parse_spec({"prompt": "Hi", "lanes": to_spec(centred(how))})
    assert spec.lanes[0].center == how
    assert decode(encode(spec)) == spec
    assert from_spec(spec.lanes)[0]["center"] == how


@pytest.mark.parametrize("how", HOW)
def test_lane_and_card_say_it_in_the_same_words(how: str) -> None:
    words, error = describe_lane(centred(how)[0])
    record = make_run(lanes=1)[0]
    record.lanes[0].center = how
    said = WORDS["center"].get(how, "centred")
    assert error is None
    assert (said in words, said in settings(record.lanes[0])) == (how != "none", how != "none")


@pytest.mark.parametrize(("method", "said"), [("fp16", "quantizes no keys"), ("svdq", "mean key itself")])
def test_what_cannot_be_centred_is_said_below_the_editor(method: str, said: str) -> None:
    assert said in complaint(centred("mean", method), 1)


def test_a_draft_keeps_it_and_an_older_one_has_none() -> None:
    values, _, rest = from_comparison(presets()["first-look"].spec)

    def kept(lanes: list[LaneForm]) -> list[LaneForm]:
        draft = {"version": 1, "values": dict(zip(FIELDS, values, strict=True)), **json.loads(draft_json(lanes, rest))}
        found = read_draft(json.dumps(draft))
        assert found is not None
        return found[1]

    lanes = centred("bias")
    assert kept(lanes) == lanes
    assert kept([{k: v for k, v in lanes[0].items() if k != "center"}])[0]["center"] == "none"
