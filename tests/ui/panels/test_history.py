"""Runs of one browser: named, found, forgotten; what the browser sends is anybody's text."""

import json
from types import SimpleNamespace

import pytest

from kvq_core.record.sharing import key_of
from kvq_core.record.store import open_store
from tests.support.ui_record_factory import make_run
from ui.panels.history import KEPT, LISTED, change_history, entries_of, history_html, list_history, remember, search
from ui.service.access import added_here, key_in


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
    kept = change_history(kept, json.dumps({"run": kept[1]["id"], "name": "  The <b>first "}))
    assert kept[1]["name"] == "The <b>first"
    html = history_html(kept)
    assert "The &lt;b&gt;first" in html and "<b>first" not in html
    record, _ = make_run(2)
    again = remember(kept, record.model_copy(update={"id": kept[1]["id"]}))
    assert again[0]["name"] == "The <b>first" and len(again) == 2


def test_a_forgotten_run_is_gone_and_nonsense_changes_nothing() -> None:
    kept = made("One", "Two")
    assert [entry["id"] for entry in change_history(kept, json.dumps({"run": kept[0]["id"]}))] == [kept[1]["id"]]
    for raw in ("", "[]", "5", "null", '{"name": "x"}', '{"run": "../x", "name": "y"}', '{"run": {"a": 1}}'):
        assert change_history(kept, raw) == kept


def test_what_another_tab_did_is_taken_over() -> None:
    """New runs come first, others stay where they are, and saying it twice changes nothing."""
    kept, other = made("One", "Two"), made("Three")[0] | {"id": "3" * 16}
    named = kept[1] | {"name": "The first"}
    told = json.dumps({"put": [other, named, {"id": "../x"}, 5], "gone": [kept[0]["id"], "unknown"]})
    assert change_history(kept, told) == change_history(change_history(kept, told), told) == [other, named]
    assert change_history(kept, json.dumps({"whole": [named, *kept, 5]})) == [named, *kept]
    for raw in (
        '{"put": 5}',
        '{"whole": 5, "put": 5}',
        '{"put": {}, "gone": []}',
        '{"put": [], "gone": [{}]}',
        '{"put": [], "gone": 5}',
    ):
        assert change_history(kept, raw) == kept
    many = made(*(f"Run {n}" for n in range(KEPT)))
    assert len(change_history(many, told)) == KEPT and change_history(many, told)[0] == other


@pytest.mark.parametrize("find", ["baseline", "BASLINE", "tide mill", "Lane 1"])
def test_a_search_finds_names_prompts_and_lanes_though_misspelt(find: str) -> None:
    kept = made("The tide mill at Carrow Point", "Zebras graze by the water")
    kept[1] = {**kept[1], "name": "My baseline"}
    kept[0] = {**kept[0], "titles": "other"}
    kept[1] = {**kept[1], "titles": "Lane 1, Lane 2"}
    assert search(kept, find)[0]["id"] == kept[1]["id"]
    assert search(kept, "qqqqqqqq") == []


def test_a_search_stays_when_a_run_joins_the_list() -> None:
    find, html = list_history(made("A tide mill", "A lighthouse"), "tide")
    assert find["visible"] and "value" not in find
    assert "A tide mill" in html and "A lighthouse" not in html


def test_older_runs_are_folded_and_the_oldest_given_up() -> None:
    kept = made(*(f"Prompt {number}" for number in range(LISTED + 3)))
    html = history_html(kept)
    assert "3 older runs" in html and html.count("<li>") == LISTED + 3
    assert len(entries_of(kept * KEPT)) == KEPT


def test_a_browser_keeps_what_it_added_to_a_run_and_draws_that_again(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("KVQ_MODELS", "one-of-mine")
    store = open_store(f"file://{tmp_path}/store")
    services = SimpleNamespace(store=store)
    record, _ = make_run(2)
    one, two = "1" * 16, "2" * 16
    kept = remember([], record, "its key", {one: key_of(store, one), two: "not the key of that one"})
    assert added_here(services, record.id, kept) == [one] and added_here(services, "f" * 16, kept) == []
    assert key_in(kept, one) == key_of(store, one) and key_in(kept, record.id) == "its key", "its own link opens"
    again = remember(kept, record, "", {two: key_of(store, two)})
    assert again[0]["key"] == "its key" and added_here(services, record.id, again) == [one, two]
    assert added_here(services, record.id, remember(again, record, gone=[one])) == [two]
    for nonsense in (5, [{"id": record.id, "beside": "../x:y a:b:c"}], [{"id": record.id, "beside": {"a": 1}}]):
        assert added_here(services, record.id, nonsense) == []
    monkeypatch.delenv("KVQ_MODELS")
    assert added_here(services, record.id, kept) == [], "every run beside one is drawn there"
