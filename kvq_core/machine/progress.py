"""How far a long job is: the one event that jobs yield, or call with, while they go on."""

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Progress:
    """A job goes on: of what it is ``doing``, ``done`` of ``total`` are over, in ``unit``, such as tokens; without a
    unit they are a share to draw, not numbers to read. ``stage``: of the job's stages, where it names them; ``share``:
    of the whole job; ``left``: seconds until its end, or the stage's. Both None where they are not known."""

    doing: str
    done: int = 0
    total: int = 1
    unit: str = ""
    stage: str = ""
    share: float | None = None
    left: float | None = None

    @property
    def part(self) -> float:
        """What is done of ``total``, 0 to 1."""
        return self.done / max(1, self.total)


def downloading(done: int, total: int) -> Progress:
    """So many bytes of a model's file are here."""
    return Progress("Downloading the model", done, total, "bytes")


def converting(done: int, total: int) -> Progress:
    """So many weights of a GGUF file are converted."""
    return Progress("Converting the model, once", done, total, "weights")


Report = Callable[[Progress], None]


def unreported(now: Progress) -> None:
    """A Report that nobody reads."""


def calling(progress: Callable[[str, int, int], None] | None) -> Report:
    """A Report for a caller of a public function, who takes what is done, how much of it, and how much there is."""
    return unreported if progress is None else lambda now: progress(now.doing, now.done, now.total)


class _StoppedError(Exception):
    """Ends the work inside its own report."""


class _Ended:
    """The last word: what came of the work, or why nothing did."""

    def __init__(self, result: object = None, error: BaseException | None = None):
        self.result, self.error = result, error


def yielding(
    work: Callable[[Report], Result], name: str, every: float = 0.2
) -> Generator[Progress | None, None, Result]:
    """Do work that reports by calling in a thread of that name, and yield its newest report every so many seconds, None
    where there is none; returns its result. Raises what the work raises. Closing the generator stops the work at its
    next report, and waits for that."""
    reports, stop = queue.SimpleQueue[Progress | _Ended](), threading.Event()

    def report(now: Progress) -> None:
        if stop.is_set():
            raise _StoppedError
        reports.put(now)

    def run() -> None:
        try:
            reports.put(_Ended(work(report)))
        except BaseException as error:  # handed to the one who listens
            reports.put(_Ended(error=error))

    thread = threading.Thread(target=copy_context().run, args=[run], name=name, daemon=True)
    thread.start()
    try:
        while True:
            newest = _newest(reports, every)
            if isinstance(newest, _Ended):
                if newest.error is not None:
                    raise newest.error
                return newest.result  # type: ignore[return-value]
            yield newest
    finally:
        stop.set()
        thread.join()


def _newest(reports: "queue.SimpleQueue[Progress | _Ended]", every: float) -> Progress | _Ended | None:
    newest: Progress | _Ended | None = None
    with suppress(queue.Empty):
        newest = reports.get(timeout=every)
        while not isinstance(newest, _Ended):
            newest = reports.get_nowait()
    return newest
