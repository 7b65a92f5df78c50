"""Work that calls back as it goes, told as events: who listens can always leave, and stops the work by that."""

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")
Told = tuple[str, int, int]  # what is being done, how much of it is done, how much there is
Tell = Callable[[str, int, int], None]


class _StoppedError(Exception):
    """Ends the work inside its own call of ``tell``."""


class _Ended:
    """The last word: what came of the work, or why nothing did."""

    def __init__(self, result: object = None, error: BaseException | None = None):
        self.result, self.error = result, error


def telling(work: Callable[[Tell], Result], name: str, every: float = 0.2) -> Generator[Told | None, None, Result]:
    """Do the work in a thread of that name: what it tells, the newest every so many seconds, None where nothing is new;
    returns its result. Raises what the work raises. Closing the generator stops it where it tells next, and waits."""
    told, stop = queue.SimpleQueue[Told | _Ended](), threading.Event()

    def tell(doing: str, done: int, total: int) -> None:
        if stop.is_set():
            raise _StoppedError
        told.put((doing, done, total))

    def run() -> None:
        try:
            told.put(_Ended(work(tell)))
        except BaseException as error:  # handed to the one who listens
            told.put(_Ended(error=error))

    thread = threading.Thread(target=copy_context().run, args=[run], name=name, daemon=True)
    thread.start()
    try:
        while True:
            word = _newest(told, every)
            if isinstance(word, _Ended):
                if word.error is not None:
                    raise word.error
                return word.result  # type: ignore[return-value]
            yield word
    finally:
        stop.set()
        thread.join()


def _newest(told: "queue.SimpleQueue[Told | _Ended]", every: float) -> Told | _Ended | None:
    word: Told | _Ended | None = None
    with suppress(queue.Empty):
        word = told.get(timeout=every)
        while not isinstance(word, _Ended):
            word = told.get_nowait()
    return word
