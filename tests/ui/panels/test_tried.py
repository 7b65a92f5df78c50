"""Lanes that were added to a run: told of and taken back by whoever may, also on a page that is opened later."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.requests import Request

from kvq_core.analysis.acts import Effect
from kvq_core.cli.main import main as cli
from kvq_core.errors import SpecError
from kvq_core.record.store import open_store
from tests.support.ui_record_factory import make_run
from ui.html.acts import before_after, tried_html
from ui.panels.tried import came, drawn_anew, undone
from ui.server.embeds import Embeds
from ui.service.access import MOST_ADDED
from ui.service.services import Services
from ui.views.tabs import OnPage, labels

RUN, CHILD, OTHER = "c" * 16, "d" * 16, "e" * 16


def lane_run(parent: str, id: str, label: str):
    """A run of one lane beside another."""
    record, arrays = make_run(lanes=1, labels=(label,))
    spec = {**record.spec, "capture": {**record.spec.get("capture", {}), "detail": "off"}}
    spec["notes"] = record.spec.get("notes", "")
    return record.model_copy(update={"id": id, "parent": parent, "spec": spec}), arrays


@pytest.fixture
def services(tmp_path: Path) -> Services:
    store = open_store(str(tmp_path))
    record, arrays = make_run(lanes=2, labels=("KIVI", "KIVI + layer 3 fp16"))
    spec = {**record.spec, "notes": record.spec.get("notes", "")}
    store.save(record.model_copy(update={"id": RUN, "spec": spec}), arrays)
    store.save(*lane_run(RUN, CHILD, "KIVI + layer 3 fp16 + 4 sinks"))
    store.save(*lane_run(RUN, OTHER, "q8_0"))
    return Services(store, None, None)


def test_a_page_is_drawn_anew_once_where_another_one_took_a_lane_back(services: Services) -> None:
    shown = {"run": RUN, "ticket": "link"}
    page = OnPage(shown=shown, lanes=labels(services.records.drawn(shown)[0]))
    assert drawn_anew(services, shown, page) is None
    undone(services, {"run": RUN}, CHILD)
    assert drawn_anew(services, shown, OnPage(shown={"run": None}, lanes=page.lanes)) is None, "another one is shown"
    anew = drawn_anew(services, shown, page)
    assert anew is not None and anew != shown and anew["stays"]
    assert page.lanes == ("KIVI", "KIVI + layer 3 fp16", "q8_0")
    page.shown = anew
    assert drawn_anew(services, anew, page) is None


def test_what_changed_is_told_in_digits_that_show_it() -> None:
    small = Effect(before=0.1158, after=0.1141, gain=0.0017, se=0.0025, more_bytes=115_000, flips=(None, None))
    assert before_after(small).replace("\xa0", " ").startswith("mean KLD 0.116 → 0.114 (−0.0017 ± 0.005, within")
    large = replace(small, after=0.0876, gain=0.0282)
    assert before_after(large).replace("\xa0", " ").startswith("mean KLD 0.12 → 0.088 (−0.028 ")


def test_a_lane_is_told_beside_the_one_that_it_changes_and_is_taken_back_later(services: Services) -> None:
    first, second = came(services, {"run": RUN})
    whole, arrays = services.records.whole({"run": RUN})
    assert (first.label, second.label, second.effect) == ("KIVI + layer 3 fp16 + 4 sinks", "q8_0", None)
    assert first.effect is not None
    assert first.effect.before == pytest.approx(float(arrays["lane/1/kld"].double().mean()))
    assert first.effect.after == pytest.approx(float(arrays["lane/2/kld"].double().mean()))
    assert tried_html([first, second]).count('data-act="undo"') == 2 and len(whole.lanes) == 4
    left = undone(services, {"run": RUN, "lanes": [0, 2]}, CHILD)
    assert not services.store.exists(CHILD) and "lanes" not in left
    assert [tried.run for tried in came(services, left)] == [OTHER]
    kept = undone(services, {"run": RUN, "reused": [OTHER]}, OTHER)
    assert services.store.exists(OTHER) and not came(services, kept), "it was there before this page asked for it"
    again = undone(services, {"run": RUN}, CHILD)
    assert again["without"] == [CHILD], "of a page that drew it before another one took it back"
    for run in (RUN, None, ["a"]):
        with pytest.raises(SpecError, match="not one of this run"):
            undone(services, {"run": RUN}, run)
    assert services.store.exists(RUN)
    with pytest.raises(SpecError):
        undone(services, {"run": RUN, "without": [CHILD] * MOST_ADDED}, CHILD)


def test_on_a_public_instance_what_others_added_is_not_taken_back(services: Services, monkeypatch) -> None:
    monkeypatch.setenv("KVQ_MODELS", "one-of-mine")
    services.store.share(OTHER)
    assert len(services.records.whole({"run": RUN})[0].lanes) == 3 and not came(services, {"run": RUN})
    assert [tried.run for tried in came(services, {"run": RUN, "own": [CHILD]})] == [CHILD]
    with pytest.raises(SpecError):
        undone(services, {"run": RUN}, OTHER)


def test_previews_embeds_and_the_command_tell_of_lanes_that_were_added(services: Services, monkeypatch, capsys) -> None:
    title, _ = Embeds(services).title_and_answer(RUN) or ("", "")
    assert "4 quantized KV caches" in title
    scope = {"type": "http", "method": "GET", "path": "/embed", "query_string": f"run={RUN}&view=rate".encode()}
    scope |= {"server": ("here", 80), "scheme": "http", "root_path": "", "headers": []}
    assert "q8_0" in asyncio.run(Embeds(services).answer(Request(scope))).body.decode()
    monkeypatch.setenv("KVQ_STORE", str(services.store.root))
    assert cli(["show", RUN]) == 0
    assert "q8_0" in capsys.readouterr().out
    assert cli(["show", RUN, "--json"]) == 0
    assert "q8_0" not in capsys.readouterr().out, "the record that is stored"
