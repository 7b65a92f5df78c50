"""Runs of one browser: named, found, forgotten; what the browser sends is anybody's text."""

import json

import pytest

from tests.support.ui_record_factory import make_run
from ui.panels.history import KEPT, LISTED, changed, entries_of, history_html, remember, search


def made(*prompts: str) -> list[dict[str, str]]:
    """A history of runs of these prompts, the last one newest."""
    kept: list[dict[str, str]] = []
    record, _ = make_run(2)
    for number, prompt in enumerate(prompts):
        own = record.model_copy(update={"id": f"{number:016x}", "spec": {**record.spec, "prompt": prompt}})
        kept = remember(kept, own)
    return kept


def test_a_name_outlasts_a_second_run_of_the_same() -> None:
    kept = made("One", "Two")
    kept = changed(kept, json.dumps({"run": kept[1]["id"], "name": "  The <b>first "}))
    assert kept[1]["name"] == "The <b>first"
    html = history_html(kept)
    assert "The &lt;b&gt;first" in html and "<b>first" not in html
    record, _ = make_run(2)
    again = remember(kept, record.model_copy(update={"id": kept[1]["id"]}))
    assert again[0]["name"] == "The <b>first" and len(again) == 2


def test_a_forgotten_run_is_gone_and_nonsense_changes_nothing() -> None:
    kept = made("One", "Two")
    assert [entry["id"] for entry in changed(kept, json.dumps({"run": kept[0]["id"]}))] == [kept[1]["id"]]
    for raw in ("", "[]", "5", "null", '{"name": "x"}', '{"run": "../x", "name": "y"}', '{"run": {"a": 1}}'):
        assert changed(kept, raw) == kept


@pytest.mark.parametrize("find", ["baseline", "BASLINE", "tide mill", "Lane 1"])
def test_a_search_finds_names_prompts_and_lanes_though_misspelt(find: str) -> None:
    kept = made("The tide mill at Carrow Point", "Zebras graze by the water")
    kept[1] = {**kept[1], "name": "My baseline"}
    kept[0] = {**kept[0], "titles": "other"}
    kept[1] = {**kept[1], "titles": "Lane 1, Lane 2"}
    assert search(kept, find)[0]["id"] == kept[1]["id"]
    assert search(kept, "qqqqqqqq") == []


def test_older_runs_are_folded_and_the_oldest_given_up() -> None:
    kept = made(*(f"Prompt {number}" for number in range(LISTED + 3)))
    html = history_html(kept)
    assert "3 older runs" in html and html.count("<li>") == LISTED + 3
    assert len(entries_of(kept * KEPT)) == KEPT
