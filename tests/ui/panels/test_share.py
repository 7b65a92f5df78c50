"""Addresses of runs: the ones that are made, the ones people paste, and what the page does with what comes back."""

import re
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
from starlette.requests import Request

from kvq_core.errors import KvqError, StoreError
from kvq_core.record.sharing import key_of
from kvq_core.record.store import open_store
from kvq_core.settings import settings
from kvq_core.spec import parse_spec
from kvq_core.spec.links import decode, encode
from tests.support.pages import EVIL, Seen, harmless
from ui.form.filling import open_page
from ui.layout import build_ui
from ui.panels.history import remember, shared_runs
from ui.panels.versus import parse_run_id
from ui.service.access import open_run
from ui.service.address import comparison_link, link
from ui.service.services import Services

ID = "0123456789abcdef"


def request(path="/gradio_api/queue/join", **headers) -> gr.Request:
    names = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return gr.Request(
        Request(
            {
                "type": "http",
                "method": "POST",
                "scheme": "http",
                "path": path,
                "query_string": b"",
                "headers": names,
                "server": ("127.0.0.1", 7860),
            }
        )
    )


@pytest.mark.parametrize(
    "env, headers, base",
    [
        ({}, {"host": "127.0.0.1:7860", "referer": "http://127.0.0.1:7860/?run=x"}, "http://127.0.0.1:7860/?"),
        ({}, {"host": "inner", "referer": "https://lab.example/kvq/?preset=x"}, "https://lab.example/kvq/?"),
        (
            {},
            {"host": "inner", "x_forwarded_host": "kvq.example, inner", "x_forwarded_proto": "https"},
            "https://kvq.example/?",
        ),
        ({}, {"host": "127.0.0.1:7860"}, "http://127.0.0.1:7860/?"),
        (
            {"SPACE_ID": "me/kvq", "SPACE_HOST": "me-kvq.hf.space"},
            {"host": "me-kvq.hf.space"},
            "https://huggingface.co/spaces/me/kvq?",
        ),
        ({"SPACE_HOST": "me-kvq.hf.space"}, {"host": "x"}, "https://me-kvq.hf.space/?"),
        (
            {"KVQ_ADDRESS": "https://kvq.example/lab"},
            {"host": "x", "referer": "https://stranger.example/"},
            "https://kvq.example/lab/?",
        ),
        ({}, {"host": "127.0.0.1:7860", "referer": "javascript:alert(1)"}, "http://127.0.0.1:7860/?"),
    ],
)
def test_links_hold_the_public_address(env, headers, base, monkeypatch):
    for name in ("SPACE_ID", "SPACE_HOST", "KVQ_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert link(ID, request(**headers)) == f"{base}run={ID}"
    assert link(ID, request(**headers), "f" * 16) == f"{base}run={ID}&vs={'f' * 16}"
    spec = parse_spec({"prompt": "Say hi."})
    found = comparison_link(spec, request(**headers))
    assert found.startswith(f"{base}c=") and decode(found.split("c=")[1]) == spec


@pytest.mark.parametrize(
    "text", [ID, f" {ID}\n", f"https://huggingface.co/spaces/a/b?run={ID}", f"http://x/?vs=1&run={ID}&vs={'f' * 16}"]
)
def test_a_run_is_found_in_what_people_paste(text):
    assert parse_run_id(text) == ID


@pytest.mark.parametrize("text", ["", None, "nope", ID + "0", "?run=../../etc/passwd", 7, EVIL, "x" * 100_000])
def test_what_names_no_run_is_refused(text):
    with pytest.raises(StoreError, match="names no run") as caught:
        parse_run_id(text)
    assert len(str(caught.value)) < 300


@pytest.fixture
def services(tmp_path, sample_run):
    made = Services(open_store(str(tmp_path / "runs")), None, None)
    for id in (ID, "f" * 16):
        made.store.save(*sample_run(id=id))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("configured", ["", "https://kvq.example/lab"])
def test_a_report_names_no_address_that_a_visitor_told(services, monkeypatch, configured):
    """It is made once for all visitors: who came first must not decide where the others' reports lead."""
    monkeypatch.setenv("KVQ_ADDRESS", configured)
    fill = next(fn.fn for fn in build_ui(services).fns.values() if fn.name == "fill")
    for host in ("https://stranger.example/", "https://kvq.example/lab/"):
        *_, last = fill({"run": ID}, request(referer=host, host="inner"))
        text = Path(last[1]["value"]).read_bytes().partition(b"<!--kvq-run")[0].decode()  # the page before its run
        assert "stranger.example" not in text
        assert [url for name, url in Seen(text).attributes if name == "href"] == (
            [f"https://kvq.example/lab/?run={ID}"] if configured else []
        )


@pytest.mark.parametrize(
    "text", ["kvq.example", "ftp://kvq.example", "https://", "https://x/?run=1", "javascript:alert(1)"]
)
def test_an_address_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("KVQ_ADDRESS", text)
    with pytest.raises(KvqError, match="KVQ_ADDRESS"):
        settings()


def visit(services, kept=None, **query):
    return open_page(SimpleNamespace(query_params=query), services, kept)


def test_a_comparison_link_fills_the_form_and_runs_nothing(services):
    spec = parse_spec({"prompt": "Why did people trust the mill?", "seed": 11, "lanes": [{"method": "squat"}]})
    shown, message, form = visit(services, c=encode(spec))
    assert shown is None and "nothing was computed" in message
    assert "Why did people trust the mill?" in form and 11 in form


@pytest.mark.parametrize(
    "text", ["", "1.", "1.AAAA", "2.eJwrSS0u", "é" * 9000, "\x00", "../../x", encode(parse_spec({"prompt": "Hi"}))[:-4]]
)
def test_a_comparison_link_that_holds_none_is_a_card(services, text):
    shown, message, form = visit(services, c=text)
    assert shown is None and "This link holds no comparison" in message and len(form) > 10
    harmless(message)


def test_a_second_run_comes_with_a_first_one_only(services):
    shown, _, _ = visit(services, run=ID, vs="f" * 16)
    assert shown == {"run": ID, "ticket": "link", "vs": "f" * 16}
    shown, message, _ = visit(services, vs=ID)
    assert shown is None and "needs a first one" in message


def test_a_run_of_an_earlier_version_says_so(services, sample_run):
    assert "results 1" in visit(services, run=ID)[1]


class TestPublic:
    """On a public instance."""

    @pytest.fixture(autouse=True)
    def _public(self, monkeypatch):
        monkeypatch.setenv("KVQ_MODELS", "smollm2-135m-instruct-q4_1")

    def test_a_run_opens_for_the_browser_that_made_it(self, services, sample_run):
        kept = remember([], sample_run()[0], key_of(services.store, ID))
        assert visit(services, kept, run=ID)[0]["run"] == ID
        for other in (None, [], [{"id": ID, "key": "x"}], [{"id": ID}], "junk", [{"id": ID, "key": 3}]):
            shown, message, _ = visit(services, other, run=ID)
            assert shown is None and "has not shared it" in message

    def test_one_that_is_held_in_memory_is_no_way_around(self, services):
        services.records.get(ID)
        with pytest.raises(StoreError, match="has not shared it"):
            open_run(services, ID, None)

    def test_a_shared_run_opens_for_everybody_and_is_listed_only_if_its_maker_says_so(self, services):
        services.store.share(ID)
        assert visit(services, None, run=ID)[0]["run"] == ID
        assert "Nobody has listed" in shared_runs(services.store)
        services.store.share(ID, listed=True)
        assert re.findall(r'href="\?run=(\w+)"', shared_runs(services.store)) == [ID]

    def test_runs_that_ship_with_the_app_are_everybodys(self, services):
        from kvq_core.pipeline.examples import packaged_store

        for stored in packaged_store().list():
            assert visit(services, None, run=stored.id)[0]["run"] == stored.id
