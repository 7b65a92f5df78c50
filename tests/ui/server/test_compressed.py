"""The page, its streams and its files come compressed, say so, and are what they were once unpacked."""

import asyncio
from typing import Any

import brotli
import pytest
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from ui.server.compressed import LEAST, Compressed

PAGE = "<p>every word of a page</p>" * 200
PIECES = [f"data: piece {number} of a stream\n\n" for number in range(4)]
STREAM = "/gradio_api/queue/data"


@pytest.fixture(scope="module")
def read() -> list[str]:
    """Files that were asked of what is behind the middleware."""
    return []


@pytest.fixture(scope="module")
def served(tmp_path_factory, read):
    script = tmp_path_factory.mktemp("assets") / "index-1a2b.js"
    script.write_text("export const lanes = 8;\n" * 5000)

    async def pieces():
        for piece in PIECES:
            yield piece

    def file(request):
        read.append(request.url.path)
        return FileResponse(script) if request.url.path.endswith(script.name) else PlainTextResponse("none", 404)

    routes = [
        Route("/", lambda request: PlainTextResponse(PAGE, media_type="text/html")),
        Route("/config", lambda request: JSONResponse({"small": 1})),
        Route("/other", lambda request: PlainTextResponse(PAGE)),
        Route(STREAM, lambda request: StreamingResponse(pieces(), media_type="text/event-stream")),
        Route("/assets/{name:path}", file),
    ]
    return Compressed(Starlette(routes=routes))


def ask(served: Any, path: str, takes: str = "gzip, br", method: str = "GET"):
    """Status, headers, and the pieces of the body as they were sent."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"accept-encoding", takes.encode())],
    }

    async def receive():
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(served(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, [message.get("body", b"") for message in sent[1:]]


def test_the_page_is_small_and_whole(served):
    status, headers, body = ask(served, "/")
    assert status == 200 and headers["content-encoding"] == "br" and "Accept-Encoding" in headers["vary"]
    assert "content-length" not in headers and len(b"".join(body)) < len(PAGE) / 10
    assert brotli.decompress(b"".join(body)).decode() == PAGE


def test_every_piece_of_a_stream_can_be_read_when_it_arrives(served):
    _, headers, body = ask(served, STREAM)
    assert headers["content-encoding"] == "br" and headers["content-type"].startswith("text/event-stream")
    unpacked = brotli.Decompressor()
    assert [unpacked.process(piece).decode() for piece in body][: len(PIECES)] == PIECES


def test_a_file_is_compressed_once_for_all(served, read):
    answers = [ask(served, "/assets/index-1a2b.js") for _ in range(3)]
    assert read == ["/assets/index-1a2b.js"]
    assert answers[0] == answers[1] == answers[2]
    status, headers, body = answers[0]
    assert status == 200 and "javascript" in headers["content-type"] and headers["content-encoding"] == "br"
    assert brotli.decompress(b"".join(body)) == b"export const lanes = 8;\n" * 5000
    assert int(headers["content-length"]) == len(b"".join(body))


@pytest.mark.parametrize("way", [".", "./.", "/", "x/.."])
def test_a_file_is_kept_under_one_name_alone(served, way):
    kept = dict(served.kept)
    status, headers, body = ask(served, f"/assets/{way}/index-1a2b.js")
    assert status == 200 and "content-encoding" not in headers and b"".join(body).startswith(b"export")
    assert served.kept == kept


@pytest.mark.parametrize(
    "path, takes, method",
    [("/", "gzip", "GET"), ("/", "br", "HEAD"), ("/other", "br", "GET"), ("/config", "br", "GET")],
)
def test_what_else_is_sent_as_it_is(served, path, takes, method):
    status, headers, body = ask(served, path, takes, method)
    assert status in (200, 405) and "content-encoding" not in headers
    if path == "/config":
        assert b"".join(body) == b'{"small":1}' and len(b"".join(body)) < LEAST


def test_half_a_file_is_not_kept():
    """A visitor who leaves while one is read must not break it for all who come later."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/css")]})
        await send({"type": "http.response.body", "body": b"a { color: ", "more_body": True})
        if receive is whole:
            await send({"type": "http.response.body", "body": b"red }"})

    async def whole():
        return {"type": "http.request"}

    async def gone():
        return {"type": "http.disconnect"}

    compressed, sent = Compressed(app), []
    scope = {"type": "http", "method": "GET", "path": "/assets/a.css", "headers": [(b"accept-encoding", b"br")]}

    async def send(message):
        sent.append(message)

    asyncio.run(compressed(scope, gone, send))
    assert sent == []
    asyncio.run(compressed(scope, whole, send))
    assert brotli.decompress(sent[1]["body"]) == b"a { color: red }"


def test_a_file_that_is_not_there_is_not_kept(served):
    for _ in range(2):
        status, headers, body = ask(served, "/assets/none.js")
        assert status == 404 and "content-encoding" not in headers and b"".join(body) == b"none"
