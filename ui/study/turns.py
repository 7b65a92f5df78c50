"""Long work in everybody's line: a ticket a step, for one session, until it is stopped or nobody looks any more."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from kvq_core.errors import KvqError
from kvq_core.limits import limits
from kvq_core.machine.owner import owned
from kvq_core.pipeline.timings import UNKNOWN_COST, Cost
from ui.service.jobs import LOOK_S, PATIENCE_S, Job, Work
from ui.service.line import LinePlace
from ui.service.services import Services

T = TypeVar("T")


class SessionTurns:
    """Turns of one session. ``took``: seconds of those that are over, waiting not counted."""

    def __init__(self, services: Services, session: str, visitor: str):
        self.services, self.session, self.visitor = services, session, visitor
        self.took: list[float] = []
        self._stopped = threading.Event()
        self._looked = time.monotonic()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()
        self.services.jobs.forget(self.session)

    def looked(self) -> None:
        """Somebody looks. Who stops looking gives the work up."""
        self._looked = time.monotonic()

    @property
    def wanted(self) -> bool:
        if time.monotonic() - self._looked > PATIENCE_S:
            self._stopped.set()
        return not self.stopped

    def take(self, work: Work, tell: Callable[[Any], None], cost: Cost = UNKNOWN_COST) -> Job:
        """One turn, to its end. ``tell`` is given the place while it waits, then the newest event."""
        job = self.services.jobs.start(self.session, work, self.visitor, cost, limits().seconds)
        self.services.jobs.watch(job.ticket)
        began = None
        while not job.over:
            began = began or (time.monotonic() if job.began else None)
            if not self.wanted:
                self.services.jobs.forget(self.session)
            news: list[Any] = job.news()
            doing: Any = news[-1] if news else None if job.began else self.services.line.place(job.ticket)
            if doing is not None:
                tell(doing)
            time.sleep(LOOK_S)
        if began is not None:
            self.took.append(time.monotonic() - began)
        return job

    def each(self, work: Iterator[T], tell: Callable[[LinePlace], None]) -> Iterator[T]:
        """Every step of some work in a turn of its own; ends where the work does, or is wanted no more. Raises what the
        work raises."""
        while self.wanted:
            found: list[T] = []
            job = self.take(
                partial(_one, work, found), lambda news: tell(news) if isinstance(news, LinePlace) else None
            )
            if job.error is not None:
                raise job.error
            if not found:
                if job.cancelled:
                    self._stopped.set()
                return
            yield found[0]


def _one(work: Iterator[T], found: list[T]) -> Generator[T]:
    for item in work:
        found.append(item)
        yield item
        return


class AtWork(Protocol):
    """Work that goes on in a thread of its own for a session."""

    replaced: bool

    def begin(self) -> None: ...

    def stop(self) -> None: ...


W = TypeVar("W", bound=AtWork)


class SessionWork(Generic[W]):
    """What is at work, by session; a session's older work is replaced."""

    def __init__(self, services: Services):
        self.services = services
        self._going: dict[str, W] = {}
        self._lock = threading.Lock()
        self._numbers = count(1)

    def number(self) -> int:
        """Of the next work of this server."""
        return next(self._numbers)

    def enter(self, going: W, session: str, visitor: str) -> W:
        """Raises LimitError where the line has no room, or this visitor asks too much."""
        self.forget(session)
        with self.services.admission.counted(visitor, session):
            with self._lock:
                self._going[session] = going
            going.begin()
        return going

    def of(self, session: str) -> W | None:
        with self._lock:
            return self._going.get(session)

    def forget(self, session: str) -> None:
        """Cancel a session's work."""
        with self._lock:
            older = self._going.pop(session, None)
        if older is not None:
            older.replaced = True
            with suppress(KvqError):
                older.stop()


def in_a_thread(work: Callable[[], None], turns: SessionTurns, name: str) -> None:
    """For as long as its turns are wanted; with the request: ZeroGPU asks who pays."""

    def going() -> None:
        with owned(lambda: turns.wanted):
            work()

    threading.Thread(target=partial(copy_context().run, going), name=name, daemon=True).start()
