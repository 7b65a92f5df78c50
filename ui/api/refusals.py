"""What a request is refused with: one line, never a trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError, excerpt
from kvq_core.logs import log_error
from ui.html.status import unexpected_error

_KINDS = {str: "text", int: "a whole number", bool: "true or false"}


def demand(kind: type, **given: Any) -> None:
    """Gradio hands on whatever a client sends. Raises KvqError for an argument of another type."""
    for name, value in given.items():
        if not isinstance(value, kind):
            raise KvqError(f"{name} = {excerpt(value)} is not allowed: it must be {_KINDS[kind]}.")


@contextmanager
def one_line() -> Iterator[None]:
    """What went wrong as the one line that a client gets, never a trace."""
    try:
        yield
    except KvqError as error:
        raise gr.Error(str(error), print_exception=False) from None
    except Exception as error:
        log_error("request failed", error)
        raise gr.Error(unexpected_error(), print_exception=False) from None
