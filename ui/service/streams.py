"""Streams of updates to the page, and their end."""

from collections.abc import AsyncGenerator
from typing import Any

import gradio as gr


async def with_empty_end(updates: AsyncGenerator[list[Any]]) -> AsyncGenerator[list[Any]]:
    """The updates, then one without new content.

    Gradio sends the last update again when a stream ends, which may be after what that update set going: a finished
    run's cards would be followed by the cards of its last step. What was set of a component beside its value, such as
    whether a button can be pressed, is said again: the browser takes a change that is left out at once back from an
    update that it has not come to yet.
    """
    last: list[Any] = []
    async for update in updates:
        last = [dict(value) if _is_update(value) else gr.skip() for value in update]  # Gradio takes updates apart
        yield update
    if last:
        yield last


def _is_update(value: Any) -> bool:
    return isinstance(value, dict) and value.get("__type__") == "update"
