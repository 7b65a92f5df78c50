"""Ctrl-C before a program has begun: libraries take seconds to import, and whatever they were at would be a trace."""

import os
import signal
from typing import Any


def end_quietly() -> None:
    """From here to ``raise_again`` Ctrl-C ends the process with a line; where it is ignored or handled, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: Any) -> None:
    os.write(2, b"Interrupted; nothing was written.\n")
    os._exit(130)
