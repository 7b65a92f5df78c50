"""Middleware before Gradio: /health, response headers, and the routes of Gradio that are closed here."""

import re
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from gradio.route_utils import FnIndexInferError
from gradio.utils import get_upload_folder
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvq_core.logs import log_error
from kvq_core.record.store import Store
from kvq_core.settings import settings
from kvq_core.shipped import root
from ui.server.compressed import Compressed
from ui.server.embeds import Embeds
from ui.server.health import Health
from ui.server.origins import KnownHosts
from ui.server.preview import EarlyOf, Preview
from ui.server.request_size import BoundedBody

PROJECT = root()
# Gradio needs inline scripts and eval, so this cannot stop a script that got in; it stops what such a script is for:
# sending what it read elsewhere, and loading more. No frame-ancestors: a Space shows the page in an iframe.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: https://cdnjs.cloudflare.com",  # Spaces: iframe height
        "style-src 'self' 'unsafe-inline'",
        "font-src 'self' data:",
        "img-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
]
# Files of the page whose names hold their contents' hash. Without a word on it a browser asks for each of them again.
UNCHANGING = (b"cache-control", b"public, max-age=31536000, immutable")
# What Gradio offers to any page and this one does not use: taking files, fetching addresses for a visitor, writing
# component values to disk, a history in somebody's bucket, editing the app.
CLOSED = re.compile(
    r"/gradio_api/(upload|upload_progress|process_recording|deep_link|component_server|run-history|runs|vibe-\w+|"
    r"undo-vibe-edit|dev|stream|proxy=.*|file=\s*[a-z]+://.*)(/.*)?",
    re.IGNORECASE | re.DOTALL,
)


class Guard:
    """Adds HEADERS to every response; answers CLOSED, and requests that nothing else could answer, itself."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        begun = False
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        lasting = [UNCHANGING] if path.startswith("/assets/") else []

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = {name for name, _ in HEADERS}
                kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in own]
                more = lasting if message["status"] == 200 else []
                message = {**message, "headers": kept + HEADERS + more}
            await send(message)

        if CLOSED.fullmatch(path):
            refusal = JSONResponse({"detail": "This page takes no files and fetches none."}, 403)
            await refusal(scope, receive, guarded)
            return
        try:
            await self.app(scope, receive, guarded)
        except Exception as error:
            if begun and isinstance(error.__cause__, HTTPException):  # a stream of a session that is not there: told so
                await send({"type": "http.response.body"})
            elif begun:
                raise
            else:
                await _unanswered(error)(scope, receive, guarded)


def _unanswered(error: Exception) -> JSONResponse:
    """The answer to a request on which the framework failed."""
    if isinstance(error, FnIndexInferError | KeyError):  # Gradio looks handlers up by name or number
        return JSONResponse({"detail": "There is no such endpoint. /gradio_api/info lists those there are."}, 404)
    if isinstance(error, TypeError | ValueError):  # arguments that fit no parameter, numbers that are no JSON
        said = "This request could not be understood. /gradio_api/info lists the endpoints and what they take."
        return JSONResponse({"detail": said}, 400)
    log_error("request failed", error)
    return JSONResponse({"detail": "This request could not be answered; it was logged."}, 500)


def app_kwargs(health: Health, embeds: Embeds, early: EarlyOf = lambda run: "") -> dict[str, Any]:
    """For ``launch``: what the FastAPI app under the page is made with; ``early``: see ``EarlyOf``."""
    return {
        "routes": [
            Route("/health", health.answer),
            Route("/embed", embeds.answer),
            Route("/card.png", embeds.picture),
            Route("/lab", embeds.lab),
            Route("/open", embeds.opened.answer, methods=["POST"]),
        ],
        "middleware": [
            Middleware(Guard),
            Middleware(KnownHosts, found=settings()),
            Middleware(BoundedBody),
            Middleware(Compressed),
            Middleware(Preview, title_of=embeds.title_and_answer, early=early),
        ],
        "docs_url": None,
        "redoc_url": None,
        "openapi_url": None,
    }


def blocked_paths(store: Store) -> list[str]:
    """Folders Gradio serves nothing from, whatever else it may serve: models, codebooks, runs, this project."""
    own: list[str | Path] = [PROJECT, settings().home, *([store.root] if isinstance(store.fs, LocalFileSystem) else [])]
    served = Path(get_upload_folder()).resolve()
    return [str(path) for path in (Path(folder).resolve() for folder in own) if not served.is_relative_to(path)]
