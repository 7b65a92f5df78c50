"""The tags other sites preview a link by: Gradio's template describes Gradio, and no option of it changes that."""

import re
from html import escape

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TITLE = "KVQ Explorer"
DESCRIPTION = (
    "One prompt, one real model: the full-precision KV cache beside quantized ones. See what a smaller cache changes "
    "in the answer, in numbers and token by token."
)
_TAGS = re.compile(rb"""<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*""")
_HEAD = re.compile(rb"<head[^>]*>")
OWN = "".join(
    f'<meta {kind}="{name}" content="{escape(content)}">'
    for kind, name, content in (
        ("name", "description", DESCRIPTION),
        ("property", "og:title", TITLE),
        ("property", "og:type", "website"),
        ("property", "og:description", DESCRIPTION),
        ("name", "twitter:card", "summary"),
        ("name", "twitter:title", TITLE),
        ("name", "twitter:description", DESCRIPTION),
    )
).encode()


def with_preview_tags(page: bytes) -> bytes:
    """Gradio's page with this project's tags for previews instead of its own."""
    return _HEAD.sub(lambda head: head[0] + OWN, _TAGS.sub(b"", page), count=1)


class Preview:
    """Rewrites the page itself; everything else passes as it is, files to download above all."""

    def __init__(self, app: ASGIApp):
        self.app = app

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
            page, begun, start = with_preview_tags(body), start, None
            MutableHeaders(raw=begun["headers"])["content-length"] = str(len(page))
            await send(begun)
            await send({"type": "http.response.body", "body": page})

        await self.app(scope, receive, rewritten)


def _is_page(start: Message) -> bool:
    headers = dict(start.get("headers", []))
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers
