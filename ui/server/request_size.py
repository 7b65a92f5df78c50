"""Requests too large to be a comparison, refused before they are held in memory."""

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 16_000_000  # a prompt of two million characters in any script, and the form around it


class BoundedBody:
    """Answers 413 to a body over MOST_BYTES: by the length it states, else when so much of it has come."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > MOST_BYTES:
            await JSONResponse({"detail": _said()}, 413)(scope, receive, send)
            return
        come = 0

        async def counted() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > MOST_BYTES:
                raise HTTPException(413, _said())  # the framework that reads the body answers with it
            return message

        await self.app(scope, counted, send)


def _said() -> str:
    return f"The request is larger than {MOST_BYTES / 1e6:g} MB, the most this server reads. Shorten the prompt."
