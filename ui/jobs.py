"""Runs at work: each in a thread of its own from the press of Run, watched by its page at the page's own pace."""

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing

from kvq_core.events import Event, Step
from ui.desk import Desk


class Job:
    """One run. It starts as soon as its turn comes, whether or not a page watches yet, and a slow page holds up
    nothing: of several steps since it last looked it sees the newest, which tells everything before it too.
    """

    def __init__(self, desk: Desk, ticket: str, events: Callable[[], Generator[Event]]):
        self.ticket = ticket
        self.error: Exception | None = None
        self.cancelled = self.over = False
        self._desk, self._events = desk, events
        self._news: deque[Event] = deque()
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name=f"run-{ticket}", daemon=True).start()

    def news(self) -> list[Event]:
        """What happened since the last call, in order."""
        with self._lock:
            news = list(self._news)
            self._news.clear()
        return news

    def _work(self) -> None:
        try:
            with self._desk.turn(self.ticket) as flag:
                self._follow(flag)
        except Exception as error:
            self.error = error
        finally:
            self.over = True

    def _follow(self, flag: threading.Event) -> None:
        if self._gave_up(flag):
            return
        with closing(self._events()) as events:
            for event in events:
                if self._gave_up(flag):
                    return
                self._tell(event)

    def _gave_up(self, flag: threading.Event) -> bool:
        self.cancelled = flag.is_set()
        return self.cancelled

    def _tell(self, event: Event) -> None:
        with self._lock:
            if self._news and isinstance(event, Step) and isinstance(self._news[-1], Step):
                self._news.pop()
            self._news.append(event)


class Jobs:
    """The jobs no page has begun to watch yet, by ticket."""

    def __init__(self, desk: Desk):
        self._desk = desk
        self._waiting: dict[str, tuple[str, Job]] = {}

    def start(self, session: str, events: Callable[[], Generator[Event]]) -> Job:
        """Begin a run for a session; what the same session ran or waited for is cancelled."""
        self.forget(session)
        job = Job(self._desk, self._desk.enter(session), events)
        self._waiting[job.ticket] = (session, job)
        return job

    def watch(self, ticket: str | None) -> Job | None:
        """The job of a ticket, once; None where it was cancelled before anyone watched."""
        return self._waiting.pop(ticket or "", ("", None))[1]

    def forget(self, session: str) -> None:
        """Cancel a session's work."""
        self._desk.cancel(session)
        for ticket in [t for t, (owner, _) in self._waiting.items() if owner == session]:
            self._waiting.pop(ticket, None)
