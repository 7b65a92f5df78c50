"""The page as it is sent: the tags other sites preview a link by, for Gradio's template describes Gradio, and the
answer it shows before its scripts are there. No option of Gradio changes either."""

import re
from collections.abc import Callable
from functools import partial
from html import escape

import anyio
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvq_core.logs import log_error

TITLE = "KVQ Explorer"
DESCRIPTION = (
    "One prompt, one real model: the full-precision KV cache beside quantized ones. See what a smaller cache changes "
    "in the answer, in numbers and token by token."
)
_TAGS = re.compile(rb"""<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*""")
_HEAD = re.compile(rb"<head[^>]*>")
_BODY = re.compile(rb"<body[^>]*>")
TitleOf = Callable[[str], tuple[str, str] | None]  # title and sentence of a run that anybody may open
SHOWS_A_RUN = {"__theme", "run", "view", "at"}  # names of an address that show one as it is
EarlyOf = Callable[[str | None], str]  # what comes first in the body of a page that shows a run; None: the empty page's


def tags(title: str = TITLE, description: str = DESCRIPTION, image: str = "") -> bytes:
    """What sites that show a link read of it; ``image``: an address, of a picture of 1200 x 630."""
    picture = (
        ("property", "og:image", image),
        ("property", "og:image:width", "1200"),
        ("name", "twitter:image", image),
    )
    told = (
        ("name", "description", description),
        ("property", "og:title", title),
        ("property", "og:type", "website"),
        ("property", "og:description", description),
        ("name", "twitter:card", "summary_large_image" if image else "summary"),
        ("name", "twitter:title", title),
        ("name", "twitter:description", description),
        *(picture if image else ()),
    )
    return "".join(f'<meta {kind}="{name}" content="{escape(content)}">' for kind, name, content in told).encode()


def with_preview_tags(page: bytes, own: bytes = b"") -> bytes:
    """Gradio's page with this project's tags for previews instead of its own."""
    return _HEAD.sub(lambda head: head[0] + (own or tags()), _TAGS.sub(b"", page), count=1)


class Preview:
    """Rewrites the page itself; everything else passes as it is, files to download above all."""

    def __init__(self, app: ASGIApp, title_of: TitleOf = lambda run: None, early: EarlyOf = lambda run: ""):
        self.app, self._title_of, self._early = app, title_of, early

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and scope["method"] == "GET"
        if not asked or scope["path"].removeprefix(scope.get("root_path", "")).strip("/"):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def rewritten(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_page(message):
                start = message  # told once its length is known
                return
            if start is None or message["type"] != "http.response.body":
                await send(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            begun, start = start, None
            page = await anyio.to_thread.run_sync(partial(self._page, scope, body))
            MutableHeaders(raw=begun["headers"])["content-length"] = str(len(page))
            await send(begun)
            await send({"type": "http.response.body", "body": page})

        await self.app(scope, receive, rewritten)

    def _page(self, scope: Scope, body: bytes) -> bytes:
        page = with_preview_tags(body, self._own(scope))
        asked = Request(scope).query_params
        if not set(asked) <= SHOWS_A_RUN or bool(asked.keys() - {"__theme"}) != bool(asked.get("run")):
            return page
        try:
            early = self._early(asked.get("run")).encode()
        except Exception as error:  # the page itself may still show the run
            log_error("no early answer", error, run=asked.get("run"))
            return page
        return _BODY.sub(lambda tag: tag[0] + early, page, count=1)

    def _own(self, scope: Scope) -> bytes:
        """Those of the run that an address names, with its card as the picture."""
        request = Request(scope)
        run = request.query_params.get("run", "")
        known = self._title_of(run) if run else None
        return (
            tags()
            if known is None
            else tags(*known, str(request.base_url.replace(path="/card.png", query=f"run={run}")))
        )


def _is_page(start: Message) -> bool:
    headers = dict(start.get("headers", []))
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers
