"""Ctrl-C before a program has begun, for libraries take seconds to import, and whatever they were at would be a trace;
and one that is lost on the way: Python drops what is raised while an object is freed."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def end_quietly() -> None:
    """From here to ``raise_again`` Ctrl-C ends the process with a line; where it is ignored or handled, it stays so."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _raise):
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again."""
    global _pressed
    if signal.getsignal(signal.SIGINT) is _end:
        _pressed = False
        signal.signal(signal.SIGINT, _raise)


def raise_lost() -> None:
    """Raises KeyboardInterrupt where Ctrl-C was pressed and the program went on all the same."""
    global _pressed
    if _pressed:
        _pressed = False
        raise KeyboardInterrupt


@contextmanager
def not_for_children() -> Iterator[None]:
    """Processes that are started here never hear of Ctrl-C, not even while they import; this one does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_pressed = False


def _raise(number: int, frame: Any) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt


def _end(number: int, frame: Any) -> None:
    os.write(2, b"Interrupted; nothing was written.\n")
    os._exit(130)
