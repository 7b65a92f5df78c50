"""Errors of a request as the one line that a client gets, never a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.logs import log_error
from ui.html.status import unexpected_error


@contextmanager
def one_line() -> Iterator[None]:
    """What went wrong as the one line that a client gets."""
    try:
        yield
    except gr.Error:
        raise
    except KvqError as error:
        raise gr.Error(str(error), print_exception=False) from None
    except Exception as error:
        log_error("request failed", error)
        raise gr.Error(unexpected_error(), print_exception=False) from None
