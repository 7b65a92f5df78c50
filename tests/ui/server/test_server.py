"""A served page over HTTP: headers, previews, and the files and routes nobody gets at."""

import asyncio
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from kvq_core.settings import settings
from ui.panels.tour import shipped_ids
from ui.server.guard import PROJECT
from ui.server.preview import Preview


@pytest.mark.slow
def test_previews_of_a_link_speak_of_this_page(server):
    _, headers, body = server("/?run=00000000deadbeef")
    page = body.decode()
    assert int(headers["content-length"]) == len(body)
    tags = dict(re.findall(r'<meta (?:property|name)="((?:og|twitter):[a-z:]+)" content="([^"]*)"', page))
    assert tags["og:title"] == tags["twitter:title"] == "KVQ Explorer" and "KV cache" in tags["og:description"]
    assert len(re.findall("og:title", page)) == 1 and "{url}" not in page and "try out the app" not in page
    assert "@Gradio" not in page and 'gradio.app/"' not in page.split("</head>")[0].split("<script")[0]


def test_an_answer_that_cannot_be_written_ahead_costs_no_page():
    sent, html = [], b"<html><head></head><body>the page</body></html>"

    async def page(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": html})

    async def keep(message):
        sent.append(message)

    def fails(run):
        raise ValueError(run)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"run=0000", "headers": []}
    asyncio.run(Preview(page, early=fails)(scope, None, keep))
    assert sent[0]["status"] == 200 and sent[1]["body"].endswith(b"<body>the page</body></html>")


@pytest.mark.slow
def test_an_empty_page_and_a_link_of_a_run_have_their_answer_inside(server):
    home, other = shipped_ids()["first-sight"], shipped_ids()["keys-or-values"]
    shown = {"__theme=dark": home, f"run={other}": other, f"run={other}&view=damage&at=3.1.5": other}
    for query, run in shown.items():
        page = server(f"/?{query}")[2].decode()
        early, _, rest = page.partition("<body")[2].partition("<gradio-app")
        assert f'id="early" data-run="{run}"' in early and 'id="answer-said"' not in early
        assert "<h1>" in early and f"run {run[:8]}" in early and ("instead of" in early or run != home)
        assert 'id="early"' not in rest
    others = ("run=00000000deadbeef", "run=", "study", "preset=first-look", "learn=1", "view=damage", f"vs={other}")
    for query in (*others, f"run={other}&vs={home}", f"run={other}&form=1.x"):
        assert b'id="early"' not in server(f"/?{query}")[2], query


@pytest.mark.slow
def test_previews_of_a_runs_link_are_its_answer_and_its_card(server):
    run = shipped_ids()["five-ideas"]
    page = server(f"/?run={run}")[2].decode()
    tags = dict(re.findall(r'<meta (?:property|name)="((?:og|twitter):[a-z:]+)" content="([^"]*)"', page))
    assert (
        "KV cache" in tags["og:title"]
        and tags["og:title"] != "KVQ Explorer"
        and " of the fp16 cache" in tags["og:description"]
    )
    assert tags["og:image"].endswith(f"/card.png?run={run}") and tags["twitter:card"] == "summary_large_image"
    status, headers, body = server(f"/card.png?run={run}")
    assert status == 200 and headers["Content-Type"] == "image/png"
    assert Image.open(BytesIO(body)).size == (1200, 630)
    status, _, body = server("/card.png?run=00000000deadbeef")
    assert status == 404 and b"not in this store" in body


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/health", "/config", "/nothing-here", "/gradio_api/upload"])
def test_headers(server, path):
    _, headers, _ = server(path)
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "object-src 'none'" in policy
    assert "frame-ancestors" not in policy and headers["X-Frame-Options"] is None, "Spaces show the page in an iframe"
    assert len(headers.get_all("X-Content-Type-Options")) == 1


@pytest.mark.slow
def test_a_browser_keeps_files_named_by_their_contents(server):
    names = set(re.findall(r"assets/[\w.-]+\.(?:js|css)", server("/")[2].decode()))
    assert names
    for name in names:
        status, headers, _ = server(f"/{name}")
        assert status == 200 and "immutable" in headers["Cache-Control"]
    assert server("/assets/none.js")[1]["Cache-Control"] is None and server("/config")[1]["Cache-Control"] is None


def secret_files(server) -> list[str]:
    store = server.services.store
    home = settings().home
    files = [PROJECT / "app.py", PROJECT / "requirements.txt", Path("/etc/passwd"), Path(store.root)]
    files += [Path(path) for path in store.fs.find(store.root)]
    files += sorted((home / "models").rglob("*.json"))[:2]
    return [str(path) for path in files]


@pytest.mark.slow
def test_no_file_of_the_machine_is_served(server):
    files = secret_files(server)
    assert len(files) > 7
    for file in files:
        relative = file.lstrip("/")
        for path in (
            file,
            f"..{file}",
            f"../../../../../..{file}",
            f"/{file}",
            f"{relative}",
            f"./{file}",
            f"file://{file}",
            f"{PROJECT}/../..{file}",
            f"{server.services.downloads}/../..{file}",
            f"{file}\x00.png",
            f"{file}/",
        ):
            for route in ("/gradio_api/file=", "/gradio_api/file/", "/static/", "/assets/", "/svelte/", "/file="):
                status, _, body = server(route + urllib.parse.quote(path))
                assert status in (400, 403, 404, 405, 422), (route, path, status)
                assert b"root:" not in body and b"schema_version" not in body and b"torch>=" not in body


def test_what_was_made_for_a_download_is_no_door_to_its_folder(server):
    (server.services.downloads / "someone-elses.csv").write_text("secret")
    status, _, body = server(f"/gradio_api/file={server.services.downloads}/someone-elses.csv")
    assert status == 403 and b"secret" not in body


@pytest.mark.parametrize(
    "path",
    [
        "upload",
        "upload?upload_id=x",
        "upload/",
        "process_recording",
        "deep_link?session_hash=x",
        "component_server",
        "file=http://127.0.0.1/",
        "file=HTTPS://example.org/x",
        "file=%68ttp://example.org",
        "proxy=http://example.org",
        "run-history/buckets",
        "run-history/connect",
        "runs",
        "vibe-edit",
        "vibe-code/",
        "stream/x/close",
    ],
)
@pytest.mark.parametrize("data", [None, b"x"])
def test_what_gradio_offers_and_nobody_needs_is_closed(server, path, data):
    status, _, body = server(f"/gradio_api/{path}", data)
    assert status == 403 and b"takes no files" in body


def test_uploads_are_refused_and_leave_nothing(server):
    from gradio.utils import get_upload_folder

    before = sorted(Path(get_upload_folder()).rglob("*"))
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.html"\r\n\r\n<script>\r\n--x--\r\n'
    status, _, _ = server("/gradio_api/upload", body, **{"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 403 and sorted(Path(get_upload_folder()).rglob("*")) == before


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("queue/join", {"data": [], "fn_index": 10**9, "session_hash": "s"}),
        ("call/nothing", {"data": []}),
        ("queue/join", {"data": [], "fn_index": -1, "session_hash": "s"}),
        ("call/__class__", {"data": [None]}),
    ],
)
def test_an_endpoint_that_is_not_there_is_said_plainly(server, path, body):
    status, headers, answer = server(f"/gradio_api/{path}", json.dumps(body).encode(), **JSON)
    assert status == 404 and "no such endpoint" in json.loads(answer)["detail"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "body"), [("call/v2/run", b'{"data": ["x"]}'), ("cancel", b'{"session_hash": NaN}'), ("reset", b"[NaN]")]
)
def test_a_request_that_means_nothing_is_told_so(server, path, body):
    status, _, answer = server(f"/gradio_api/{path}", body, **JSON)
    assert status == 400 and "could not be understood" in json.loads(answer)["detail"]


def test_a_stream_of_a_session_that_is_not_there_ends_with_a_message(server, logged):
    status, _, body = server("/gradio_api/queue/data?session_hash=nobody")
    assert status == 200 and b'"session_not_found":true' in body and not logged


def test_a_request_the_framework_fails_on_gets_a_sentence_and_no_trace(server, monkeypatch, logged):
    def broken(*_, **__):
        raise RuntimeError("/srv/secret")

    monkeypatch.setattr("gradio.route_utils.get_fn", broken)
    status, headers, answer = server("/gradio_api/call/methods", b'{"data": []}', **JSON)
    assert status == 500 and "could not be answered" in json.loads(answer)["detail"] and b"secret" not in answer
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert [line for line in logged if line.startswith("kvq: ")] == ["kvq: request failed"]


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 200_000, b'{"data": ' + b"[" * 200_000, b"\xff\xfe", b"null", b"7"])
def test_a_body_that_is_none_is_refused(server, body):
    for path in ("queue/join", "call/compare", "cancel"):
        status, _, answer = server(f"/gradio_api/{path}", body, **JSON)
        assert status in (400, 422) and len(answer) < 2000, (path, status, answer[:300])


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/monitoring", "/monitoring/summary"])
def test_no_page_about_the_server(server, path):
    assert server(path)[0] in (403, 404)
