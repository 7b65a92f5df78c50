"""Who work is for: a loop that asks ``demand_wanted`` at every step ends soon after nobody waits for it any more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kvq_core.errors import KvqError

_wanted: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


@contextmanager
def owned(wanted: Callable[[], bool]) -> Iterator[None]:
    """Work of the body, also in threads that take its context along, is for whoever ``wanted`` asks."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def demand_wanted() -> None:
    """Raises KvqError where nobody waits for this work any more. Work without an owner is always wanted."""
    if not _wanted.get()():
        raise KvqError("Nobody waited for this any more, or it took too long; it was stopped. Ask for less at once.")
