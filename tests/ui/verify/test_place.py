"""The place Verify: what its form asks, a verification as it goes, how it ends, and what it shows."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvq_core.errors import SpecError
from kvq_core.machine.progress import Progress
from kvq_core.record.store import open_store
from kvq_core.servers.verification import kept
from tests.support.toy_servers import Toy, serving
from ui.panels.header import header_html
from ui.service.services import Services
from ui.verify import place
from ui.verify.result import answer_html, files_of, tables_html

PROMPTS = "\n".join(f"Prompt {number} with words enough to be read in pieces." for number in range(3))


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Services:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVQ_STORE", f"file://{tmp_path}/store")
    monkeypatch.setattr(place.verification, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    return Services(open_store(), None, None)  # type: ignore[arg-type]


def form(server: str, against: str = "", text: str = PROMPTS, **more: Any) -> tuple[Any, ...]:
    """The form's values in the order of its fields."""
    own = {"model": "", "form": None, "tokens": 6, "top": 8, "tolerance": "", **more}
    return ("Paste", text, "", False, "needle", 20, 0, "", "", "", server, against, *own.values())


def updates(values: tuple[Any, ...], services: Services, until: Any = None) -> list[list[Any]]:
    async def watch() -> list[list[Any]]:
        found = []
        async for update in place.stream(values, "s/verify", "", services):
            found.append(update)
            if until and until(update):
                services.jobs.forget("s/verify")
        return found

    return asyncio.run(watch())


def test_a_server_is_verified_and_what_was_found_is_kept_and_shown(services: Services) -> None:
    with serving(Toy(noise=0.3), Toy()) as at:
        *_, last = updates(form(*at, tolerance="1.0"), services)
    status, start, cancel, report = last
    assert "Verified" in status and start["interactive"] and not cancel["visible"]
    assert report["verdict"] == "as expected" and kept(services.store, report["id"]) == report
    assert f"{report['kld']['mean']:.2g} nats" in answer_html(report) and 'class="chip good"' in answer_html(report)
    assert tables_html(report).count("<tr>") == 2 + len(report["prompts"]) + len(report["worst"])
    files = [Path(each["value"]) for each in files_of(report, services)]
    assert [file.suffix for file in files] == [".md", ".xml", ".json"]
    assert json.loads(files[2].read_text()) == report and "| Prompt | Delivered |" in files[0].read_text()


def test_how_far_it_is_is_told_with_what_to_know(services: Services) -> None:
    said: list[str] = []
    with serving(Toy(noise=0.3, reuse=False), Toy()) as at:
        told = [event for event in place.verifying(place.request_of(form(*at)), services.store, said) if event]
    assert told[-1]["verdict"] == "cannot tell" and len(said) == 3  # once a prompt
    line = place._progress(Progress("Asking", 6, 18, "tokens"), said)
    assert "Asking: 6 of 18 tokens" in line and "width:33%" in line and "reads a text again with every token" in line


def test_cancelling_stops_it_and_the_next_goes_on(services: Services) -> None:
    server = Toy(noise=0.3)
    with serving(server, Toy()) as at:
        found = updates(form(*at, tokens=40), services, lambda update: len(server.asked) > 60)
        assert "Cancelled" in found[-1][0] and found[-1][3] == place.gr.skip()
        before = len(server.asked)
        *_, last = updates(form(*at, tokens=40), services)
    assert last[3]["n_scored"] == 120 and len(server.asked) - before < 3 * 40 + 20


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (form(""), "There is no server yet"),
        (form("http://a b"), "is not allowed"),
        (form("http://127.0.0.1:1"), "--against URL2, or --model M"),
        (form("http://127.0.0.1:1", "http://127.0.0.1:2", text=""), "There are no prompts yet"),
        (form("http://127.0.0.1:1", "http://127.0.0.1:2", form="q9"), "Cache type"),
        (form("http://127.0.0.1:1", "http://127.0.0.1:2", tokens=None), "give a whole number"),
        (form("http://127.0.0.1:1", "http://127.0.0.1:2", tokens=0), "give 1 to 4,096"),
        (form("http://127.0.0.1:1", "http://127.0.0.1:2", tolerance="much"), "give nats from 0"),
    ],
)
def test_what_cannot_be_asked_is_a_notice(values: tuple[Any, ...], said: str, services: Services) -> None:
    (found,) = updates(values, services)
    assert said in found[0] and 'class="notice bad"' in found[0] and found[1]["interactive"]


def test_a_fault_of_the_server_is_a_notice(services: Services) -> None:
    with serving(Toy(fault="html", after=6), Toy()) as at:
        *_, last = updates(form(*at), services)
    assert "The server cannot be verified" in last[0] and "not JSON" in last[0] and "Traceback" not in last[0]


def test_a_public_instance_has_no_such_place(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "?verify" in header_html("")
    monkeypatch.setenv("KVQ_MODELS", "smollm2-135m-instruct-q4_1")
    assert "?verify" not in header_html("") and place.create_verify(services) is None
    with pytest.raises(SpecError, match="asks no servers"):
        place.request_of(form("http://127.0.0.1:1", "http://127.0.0.1:2"))


def test_hostile_text_stays_text(services: Services) -> None:
    with serving(Toy(noise=0.3), Toy()) as at:
        report = updates(form(*at), services)[-1][3]
    bad = "<script>${1}"
    hostile = {**report, "why": bad, "worst": [{**report["worst"][0], "before": bad, "server": bad}]}
    assert "<script" not in answer_html(hostile) + tables_html(hostile)
