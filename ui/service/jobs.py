"""Work in the line: each job in a thread of its own from the press of its button, watched at its watcher's own pace."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from contextvars import copy_context
from functools import partial
from math import inf
from typing import Any
from weakref import WeakValueDictionary

from kvq_core.errors import LimitError
from kvq_core.machine.memory import release_memory
from kvq_core.machine.owner import owned
from kvq_core.pipeline.timings import UNKNOWN_COST, Cost, Stages
from kvq_core.record.events import Finished, Step
from ui.service.line import LinePlace, WaitingLine

LOOK_S = 0.03  # how often a watcher looks for news of work that has begun
WAIT_S = 0.2  # and whether it has begun
PLACE_S = 1.0  # how often its place is looked up while it waits
PATIENCE_S = 60.0  # work nobody has looked at for so long is dropped: its page is gone
UNSEEN_S = 15.0  # and after so long work that nobody ever looked at: its page was closed before it could watch
LEFT_S = 600.0  # how long a session that left is known: a press of its button may wait so long for a model

Work = Callable[[], Generator[Any]]


class Job:
    """One run, or one training or measurement. It starts as soon as its turn comes, whether or not a page watches yet,
    and a slow page holds up nothing: of several steps since it last looked it sees the newest, which tells everything
    before it too.
    """

    def __init__(
        self,
        line: WaitingLine,
        ticket: str,
        work: Work,
        seconds: float | None = None,
        stages: Stages | None = None,
    ):
        """``seconds``: after so many the work is stopped; ``stages``: what a run's were estimated at."""
        self.ticket, self.stages = ticket, stages
        self.error: Exception | None = None
        self.cancelled = self.over = self.began = self.replaced = False
        self.taken = threading.Event()  # somebody has begun to watch
        self._line, self._work, self._most = line, work, seconds
        self._news: deque[Any] = deque()
        self._lock = threading.Lock()
        self._looked = time.monotonic()

    def run(self) -> None:
        """Wait for the turn, work, end; where it gave way, all of that again. For a thread of its own."""
        try:
            waits = True
            while waits:
                with self._line.turn(self.ticket, self._wanted) as flag:
                    waits = self._follow(flag)
        except Exception as error:
            self.error = error
        finally:
            self.over = True

    def news(self) -> list[Any]:
        """What happened since the last call, in order. Who stops calling gives the work up."""
        self._looked = time.monotonic()
        with self._lock:
            news = list(self._news)
            self._news.clear()
        return news

    def _wanted(self) -> bool:
        return time.monotonic() - self._looked < (PATIENCE_S if self.taken.is_set() else UNSEEN_S)

    def _follow(self, flag: threading.Event) -> bool:
        """Work to the end; whether it gave way before that."""
        if self._gave_up(flag):
            return False
        self.began = True
        started = time.monotonic()
        with owned(lambda: not self._gave_up(flag)), closing(self._work()) as events:
            for event in events:
                if self._gave_up(flag):
                    return False
                if not isinstance(event, Finished) and self._line.gives_way(self.ticket):
                    self.began = False
                    return True
                self._tell(event)
                late = self._most is not None and time.monotonic() - started > self._most
                if late and not isinstance(event, Finished):
                    raise LimitError(
                        f"It was stopped after {self._most:g} s, the most a run may take here. Shorten the prompt, ask "
                        "for fewer new tokens, or remove lanes."
                    )
        return False

    def _gave_up(self, flag: threading.Event) -> bool:
        self.cancelled = flag.is_set() or not self._wanted()
        return self.cancelled

    def _tell(self, event: Any) -> None:
        with self._lock:
            if self._news and isinstance(event, Step) and isinstance(self._news[-1], Step):
                self._news.pop()
            self._news.append(event)


class Jobs:
    """The jobs no page has begun to watch yet, by ticket."""

    def __init__(self, line: WaitingLine):
        self._line = line
        self._waiting: dict[str, tuple[str, Job]] = {}
        self._newest: WeakValueDictionary[str, Job] = WeakValueDictionary()  # by session, as long as anybody watches
        self._left: dict[str, float] = {}  # when sessions left

    def start(
        self,
        session: str,
        work: Work,
        visitor: str = "",
        cost: Cost = UNKNOWN_COST,
        seconds: float | None = None,
        aside: bool = False,
    ) -> Job:
        """Begin work for a session; what the same session ran or waited for is cancelled, and nothing more is told of
        it.

        Others in the line are told what its ``cost`` says; after ``seconds`` it is stopped. ``aside``: it holds up
        nobody whose work is not.
        """
        self.forget(session)
        if (older := self._newest.get(session)) is not None:
            older.replaced = True
        job = Job(self._line, self._line.enter(session, visitor, cost, aside), work, seconds, cost.stages)
        self._waiting[job.ticket], self._newest[session] = (session, job), job
        run = partial(copy_context().run, self._run, job)  # with the request: ZeroGPU asks who pays
        threading.Thread(target=run, name=f"run-{job.ticket}", daemon=True).start()
        return job

    def _run(self, job: Job) -> None:
        job.run()
        release_memory()
        if job.cancelled or not job.taken.wait(PATIENCE_S):  # nobody comes for what it found
            self._waiting.pop(job.ticket, None)

    def watch(self, ticket: str | None) -> Job | None:
        """The job of a ticket, once; None where it was cancelled before anyone watched."""
        job = self._waiting.pop(ticket or "", ("", None))[1]
        if job is not None:
            job.taken.set()
        return job

    def newest(self, session: str) -> str | None:
        """The ticket of the job that a session began last; None where nobody watches it any more."""
        found = self._newest.get(session)
        return None if found is None else found.ticket

    def is_newest(self, session: str, ticket: str | None) -> bool:
        """Whether a session has begun nothing after this ticket's job; of None, whether nothing that is watched yet."""
        newest = self._newest.get(session)
        return newest is None or newest.ticket == ticket

    def forget(self, session: str) -> None:
        """Cancel a session's work."""
        self._line.cancel(session)
        for ticket in [t for t, (owner, _) in list(self._waiting.items()) if owner == session]:
            self.watch(ticket)

    def leave(self, session: str) -> None:
        """``forget`` a session whose page is closed, and what it asked for just before, which is not at work yet."""
        now = time.monotonic()
        self._left = {other: at for other, at in list(self._left.items()) if now - at < LEFT_S} | {session: now}
        self.forget(session)

    def has_left(self, session: str, since: float) -> bool:
        """Whether the page of a session was closed after that time, in seconds of ``time.monotonic``."""
        return self._left.get(session, -inf) >= since


async def follow(job: Job, line: WaitingLine) -> AsyncGenerator[LinePlace | list[Any]]:
    """A job as it goes: its place while it waits, whenever that changes, then what is new. Ends when the job is over;
    ``job.cancelled`` and ``job.error`` say how it ended. Ends without a word where the session began another one:
    whatever was still said of this one would stand over what is said of that."""
    told, last = time.monotonic(), None
    while not job.replaced:
        over = job.over  # asked before the news: what is told after this is seen by the next look
        if news := job.news():
            yield news
        if over:
            return
        if not job.began and time.monotonic() - told >= PLACE_S:
            told, place = time.monotonic(), line.place(job.ticket)
            if place.ahead and place != last:  # what has not changed costs each of many pages the more, the more wait
                yield (last := place)
        await asyncio.sleep(LOOK_S if job.began else WAIT_S)
