"""The form's bundles."""

import pytest

from kvq_core.presets import BUNDLES, parse_placed
from kvq_core.spec import parse_spec
from ui.form.lanes import add_lane, to_spec
from ui.form.lanes_panel import bundle_choices, take_bundle
from ui.form.values import FIELDS, from_comparison

PANEL = 8  # the lanes' outputs and the picker


def taken(words: str, lanes: list, prompt: str = "A prompt.") -> list:
    usual, _, rest = from_comparison(parse_spec({"prompt": "-"}))
    return take_bundle(words, lanes, rest, *{**dict(zip(FIELDS, usual, strict=True)), "prompt": prompt}.values())


def test_every_bundle_is_offered_by_its_title_with_each_of_its_options() -> None:
    words = [value for _, value in bundle_choices()]
    assert {word.partition(":")[0] for word in words} == set(BUNDLES)
    assert "grid:vllm" in words and "grid" not in words and "deploy" in words
    assert len({title for title, _ in bundle_choices()}) == len(words)


def test_a_bundle_replaces_the_lanes_and_leaves_its_picker_free() -> None:
    lanes, *rest, picker = taken("grid:KIVI", add_lane([]))
    assert len(rest) + 2 == PANEL and picker is None
    assert len(lanes) == 24 and [lane["uid"] for lane in lanes] == list(range(1, 25))
    assert to_spec(lanes)[0]["label"] == "K fp16 V 8"


@pytest.mark.slow
def test_lanes_are_solved_for_the_forms_prompt_or_a_usual_one_where_it_is_empty() -> None:
    def labels(words: str, prompt: str) -> list[str]:
        return [lane["label"] for lane in taken(words, [], prompt=prompt)[0]]

    tides = "The tide rises twice a day. "
    assert labels("equal-bytes:4.5", "") != labels("equal-bytes:4.5", tides * 40) != labels("equal-bytes:4.5", tides)
    usual = [lane.label for lane in parse_placed({"prompt": "-", "bundle": "equal-bytes"}).lanes]
    assert labels("equal-bytes:4.5", " ") == usual


def test_nonsense_in_place_of_a_bundle_changes_nothing_and_is_said() -> None:
    lanes = add_lane([])
    kept, _, rows, said, *_ = taken("<b>deploy", lanes)
    assert kept == lanes and "Unknown bundle" in said and "<b>" not in said + rows
