"""Work that a client starts and follows: in a session of its own, told at a pace, dropped when the client leaves."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

import gradio as gr

from ui.service.one_line import one_line

RUN_PACE_S = 0.15  # between two updates of a run
LONG_PACE_S = 0.5  # of a study or a decision

T = TypeVar("T")


@contextmanager
def client_session(request: gr.Request, forget: Callable[[str], None]) -> Iterator[str]:
    """A session for one piece of work, since a client may have several at once; what is left of the work at its end is
    dropped by ``forget``. What goes wrong within is a line for the client."""
    session = f"{request.session_hash}/{secrets.token_hex(8)}"
    try:
        with one_line():
            yield session
    finally:
        forget(session)


async def paced(updates: AsyncGenerator[T], seconds: float) -> AsyncGenerator[T]:
    """The same, no faster than so."""
    async with aclosing(updates):
        async for update in updates:
            yield update
            await asyncio.sleep(seconds)
