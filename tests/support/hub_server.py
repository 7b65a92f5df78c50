"""A server that speaks as much of the Hub's interface as finding and downloading a file takes, on this machine."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What a server offers and was asked for. ``breaks``: of the file it sends next, bytes after which it hangs up, and
    is out of order until that is None again; ``asked``: method, path and Range of every request."""

    repo: str
    files: dict[str, bytes]
    breaks: int | None = None
    broken: bool = False
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""

    @property
    def ranges(self) -> list[str | None]:
        """Of the downloads."""
        return [range for method, path, range in self.asked if method == "GET" and "/resolve/" in path]


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *args: object):
        self.hub = hub
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:  # noqa: N802
        self._answer()

    def do_GET(self) -> None:  # noqa: N802
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range")))
        if not path.startswith((f"/api/models/{hub.repo}/tree/", f"/{hub.repo}/resolve/")):
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if path.startswith("/api/"):
            told = [{"type": "file", "path": name, "size": len(x), "oid": "0" * 40} for name, x in hub.files.items()]
            return self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})
        revision, _, name = path.removeprefix(f"/{hub.repo}/resolve/").partition("/")
        if revision not in ("main", COMMIT):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if name not in hub.files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        return self._file(hub.files[name])

    def _file(self, whole: bytes) -> None:
        if self.command == "GET" and self.hub.broken:
            return self._send(503, b"", {})
        told = {
            "ETag": f'"{hashlib.sha256(whole).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked is None:
            return self._send(200, whole, told)
        first = int(asked[1])
        return self._send(206, whole[first:], told | {"Content-Range": f"bytes {first}-{len(whole) - 1}/{len(whole)}"})

    def _send(self, status: int, body: bytes, told: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**told, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.breaks is not None and status == 200 and "ETag" in told:
            self.wfile.write(body[: self.hub.breaks])
            self.hub.broken = self.close_connection = True
            return
        self.wfile.write(body)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Answers, hub))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: str) -> None:
    """Let the Hub's client ask that endpoint, as HF_ENDPOINT and HF_HUB_CACHE let it from the start."""
    told = huggingface_hub.constants
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(told, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(told, "ENDPOINT", endpoint)
    monkeypatch.setattr(told, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(told, "HF_HUB_CACHE", cache)
    monkeypatch.setattr(told, "DOWNLOAD_CHUNK_SIZE", 1 << 12)  # of a file that is tiny
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", endpoint)
    for module in ("file_download", "utils._http"):  # tries as often as ever, without the waits between
        monkeypatch.setattr(f"huggingface_hub.{module}.time", SimpleNamespace(sleep=lambda seconds: None))
    huggingface_hub.close_session()
