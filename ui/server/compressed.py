"""What Gradio sends as it is, made small: the page itself, its answers while they stream, and its own files, each once.

Gradio compresses by the ending of an address, which neither the page (a megabyte) nor its answers have; and files as
they are read, piece by piece, anew for every visitor.
"""

from functools import partial
from posixpath import normpath

import anyio
from brotli import MODE_TEXT, Compressor, compress
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGES = {"", "/", "/config", "/gradio_api/queue/data"}
FILES = "/assets/"  # their names hold their contents' hash
ENDINGS = (".js", ".css")
LEAST = 1000  # bytes; what is smaller and whole is sent as it is
SWIFT = {
    "quality": 5,
    "lgwin": 18,
}  # of what is made for one visitor: a stream keeps its window, 256 KB, while it lasts
ONCE = {"quality": 9, "lgwin": 22}  # a third of a second for Plotly, whose 4.6 MB are 1.1 then


class Compressed:
    """Middleware; ``kept`` are the files that somebody asked for, at most all of Gradio's: 6 MB."""

    def __init__(self, app: ASGIApp):
        self.app = app
        self.kept: dict[str, tuple[bytes, str]] = {}  # path -> body and content type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or scope["method"] != "GET" or not _takes_brotli(scope):
            await self.app(scope, receive, send)
        elif path in PAGES:
            await self.app(scope, receive, Streamed(send))
        elif path.startswith(FILES) and path.endswith(ENDINGS) and normpath(path) == path:  # one file has one name
            await self._file(path, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _file(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if path not in self.kept:
            whole = Whole(send)
            await self.app(scope, receive, whole)
            if whole.start is None or not whole.ended:
                return  # it was answered otherwise, or whoever asked is gone
            body = await anyio.to_thread.run_sync(partial(compress, whole.body, mode=MODE_TEXT, **ONCE))
            self.kept[path] = body, Headers(raw=whole.start["headers"])["content-type"]
        body, kind = self.kept[path]
        said = {"content-type": kind, "content-encoding": "br", "vary": "Accept-Encoding"}
        await Response(body, headers=said)(scope, receive, send)


class Whole:
    """Holds back a file that is found until all of it is here; hands on any other answer."""

    def __init__(self, send: Send):
        self._send, self.body, self.ended = send, b"", False
        self.start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            self.start = message
        elif self.start is None:
            await self._send(message)
        else:
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)


class Streamed:
    """Compresses an answer as it goes out: every piece can be read when it arrives."""

    def __init__(self, send: Send):
        self._send = send
        self._start: Message | None = None
        self._made = Compressor(mode=MODE_TEXT, **SWIFT)
        self._begun = self._plain = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message  # told when it is known whether there is enough to compress
            return
        if message["type"] != "http.response.body" or self._start is None:
            await self._send(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not self._begun:
            await self._begin(len(body) < LEAST and not more)
        if not self._plain:
            body = (self._made.process(body) if body else b"") + (self._made.flush() if more else self._made.finish())
        await self._send({**message, "body": body})

    async def _begin(self, small: bool) -> None:
        assert self._start is not None
        headers = MutableHeaders(raw=self._start["headers"])
        self._begun, self._plain = True, small or "content-encoding" in headers or self._start["status"] != 200
        if not self._plain:
            del headers["content-length"]
            headers["content-encoding"] = "br"
            headers.add_vary_header("Accept-Encoding")
        await self._send({**self._start, "headers": headers.raw})


def _takes_brotli(scope: Scope) -> bool:
    return "br" in [each.split(";")[0].strip() for each in Headers(scope=scope).get("accept-encoding", "").split(",")]
