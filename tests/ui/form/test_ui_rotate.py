"""A lane's rotate on the page: its controls, its words, and what is said where nothing can be rotated."""

import json
from typing import get_args

import pytest

from kvq_core.presets import presets
from kvq_core.spec import WORDS, Rotation, parse_spec
from kvq_core.spec.links import decode, encode
from tests.support.ui_record_factory import make_run
from ui.form.draft import draft_json, read_draft
from ui.form.editor import apply_edits, complaint, editor
from ui.form.lanes import LaneForm, add_lane, describe_lane, from_spec, to_spec
from ui.form.lanes_panel import place_editor
from ui.form.values import FIELDS, from_comparison
from ui.html.cards import settings
from ui.selection import Selection
from ui.views.verdicts import compute

HOW = get_args(Rotation)


def turned(how: str, method: str = "per_token", block: int | None = None) -> list[LaneForm]:
    lanes, said = apply_edits(add_lane([], method), 1, {"rotate": how, "rotate_block": block})
    assert said is None
    return lanes


def test_the_editor_offers_every_rotation_and_a_block() -> None:
    html = editor(turned("signed", block=16), place_editor(1))
    control = html.partition('id="in-lane-rotate"')[2].partition("</label>")[0]
    assert [f"&quot;{how}&quot;" in control for how in HOW] == [True] * len(HOW)
    assert "Nothing is stored for it" in control
    assert 'value="16"' in html.partition('id="in-lane-rotate_block"')[2].partition(">")[0]


@pytest.mark.parametrize("how", HOW)
def test_what_is_chosen_is_in_the_spec_and_in_its_link(how: str) -> None:
    block = None if how == "none" else 32
    spec = parse_spec({"prompt": "Hi", "lanes": to_spec(turned(how, block=block))})
    assert (spec.lanes[0].rotate, spec.lanes[0].rotate_block) == (how, block)
    assert decode(encode(spec)) == spec
    assert from_spec(spec.lanes)[0]["rotate"] == how


@pytest.mark.parametrize("how", HOW)
def test_lane_and_card_say_it_in_the_same_words(how: str) -> None:
    words, error = describe_lane(turned(how)[0])
    record = make_run(lanes=1)[0]
    record.lanes[0].rotate = how
    said = WORDS["rotate"].get(how, "rotated")
    assert error is None
    assert (said in words, said in settings(record.lanes[0])) == (how != "none", how != "none")


@pytest.mark.parametrize(("method", "said"), [("fp16", "quantizes nothing"), ("svdq", "before RoPE")])
def test_what_cannot_be_rotated_is_said_below_the_editor(method: str, said: str) -> None:
    assert said in complaint(turned("signed", method), 1)


def test_a_draft_keeps_it_and_an_older_one_has_none() -> None:
    values, _, rest = from_comparison(presets()["first-look"].spec)

    def kept(lanes: list[LaneForm]) -> list[LaneForm]:
        draft = {"version": 1, "values": dict(zip(FIELDS, values, strict=True)), **json.loads(draft_json(lanes, rest))}
        found = read_draft(json.dumps(draft))
        assert found is not None
        return found[1]

    lanes = turned("hadamard", block=8)
    assert kept(lanes) == lanes
    older = kept([{k: v for k, v in lanes[0].items() if not k.startswith("rotate")}])[0]
    assert (older["rotate"], older["rotate_block"]) == ("none", None)


def test_ways_to_use_a_rotated_lane_elsewhere_say_that_they_do_not_rotate() -> None:
    record, arrays = make_run(lanes=3)  # the third is per token
    assert "Nothing is rotated" not in compute(record, arrays, Selection()).html["verdicts"]
    record.lanes[2].rotate = "hadamard"
    html = compute(record, arrays, Selection()).html["verdicts"]
    assert html.count("Nothing is rotated.") == 1  # transformers; llama.cpp rotates by itself
