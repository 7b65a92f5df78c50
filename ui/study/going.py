"""A study at work: its cells take their turns with other visitors' runs, one ticket a cell."""

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import fmean
from typing import Any

from kvq_core.errors import KvqError, ModelError
from kvq_core.events import Event, Finished
from kvq_core.limits import limits
from kvq_core.logs import log_error
from kvq_core.studies.cells import Cell, Plan
from kvq_core.studies.executors import Outcome, Work, outcome_of
from kvq_core.studies.result import StudyResult
from kvq_core.studies.study import run_plan, stored_study
from ui.html.status import unexpected_error
from ui.service.admission import check_memory
from ui.service.jobs import LOOK_S, PATIENCE_S, Job
from ui.service.line import Cost, Place
from ui.service.services import Services
from ui.study.opening import Results


@dataclass(frozen=True)
class Standing:
    """How far a study is: its result so far, the prompt at work and what is done with it, and the seconds that are
    left, waiting not counted; None before the first cell."""

    result: StudyResult | None = None
    prompt: str = ""
    doing: Event | Place | None = None
    left: float | None = None


class Going:
    """One study of a page or a client, and the executor of its cells. It stops when its watcher stops looking.

    What is computed lies in the store: a study that is stopped goes on from there when it is begun again.
    """

    def __init__(self, planned: Plan, services: Services, session: str, visitor: str, cost: Cost, number: int = 0):
        """``cost``: of a cell, which others in the line are told; ``number``: among those of this server."""
        self.plan, self.session, self.number = planned, session, number
        self.over = self.replaced = False
        self.error: Exception | None = None
        self._services, self._visitor, self._cost = services, visitor, cost
        self._stopped = threading.Event()
        self._standing = Standing()
        self._looked = time.monotonic()
        self._took: list[float] = []

    @property
    def cancelled(self) -> bool:
        return self._stopped.is_set()

    def begin(self) -> None:
        """In a thread of its own, with the request: ZeroGPU asks who pays."""
        work = partial(copy_context().run, self._work)
        threading.Thread(target=work, name=f"study-{self.plan.id}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._services.jobs.forget(self.session)

    def standing(self) -> Standing:
        """How far it is now. Who stops asking gives the study up."""
        self._looked = time.monotonic()
        return self._standing

    def _work(self) -> None:
        store = self._services.store
        try:
            self._standing = Standing(stored_study(self.plan, store))
            self._standing = Standing(run_plan(self.plan, store, executor=self))
        except Exception as error:
            self.error = error
            if not isinstance(error, KvqError):
                log_error("study failed", error)
        finally:
            self.over = True

    def failure(self) -> str | None:
        """Why it ended before its last cell, for people; None where it did not."""
        if self.error is None:
            return None
        return str(self.error) if isinstance(self.error, KvqError) else unexpected_error("Start")

    def run(self, works: Iterable[Work]) -> Generator[Outcome]:
        """The executor's part: each cell when its turn has come, until the study is stopped."""
        waiting = list(works)
        for at, work in enumerate(waiting):
            outcome = self._turn(work)
            if outcome is None:
                return
            self._add(outcome, len(waiting) - at - 1)
            yield outcome

    def _turn(self, work: Work) -> Outcome | None:
        """A cell, from its ticket to its outcome; None where the study was stopped."""
        if not self._wanted():
            return None
        found: list[Outcome] = []
        compute = partial(self._compute, work.cell, found)
        job = self._services.jobs.start(self.session, compute, self._visitor, self._cost, limits().seconds)
        self._services.jobs.watch(job.ticket)
        self._follow(job, work.cell)
        if isinstance(job.error, ModelError):
            return Outcome(work.cell.id, unfit=str(job.error))
        if job.error is not None:
            if not isinstance(job.error, KvqError):
                log_error("cell failed", job.error, run=work.cell.id)
            return Outcome(work.cell.id, error=str(job.error))
        if not found:  # cancelled
            self._stopped.set()
        return found[0] if found else None

    def _wanted(self) -> bool:
        if time.monotonic() - self._looked > PATIENCE_S:
            self._stopped.set()
        return not self._stopped.is_set()

    def _compute(self, cell: Cell, found: list[Outcome]) -> Generator[Event]:
        check_memory(self._services.estimate(cell.spec), len(cell.spec.lanes))
        for event in self._services.compare(cell.spec, self._services.store):
            yield event
            if isinstance(event, Finished):
                found.append(outcome_of(cell, event))

    def _follow(self, job: Job, cell: Cell) -> None:
        """Tell of a cell until it is over; its place while it waits."""
        began = None
        while not job.over:
            began = began or (time.monotonic() if job.began else None)
            if not self._wanted():
                self._services.jobs.forget(self.session)
            news: list[Any] = job.news()
            doing = news[-1] if news else None if job.began else self._services.line.place(job.ticket)
            if doing is not None:
                self._standing = Standing(self._standing.result, cell.prompt.id, doing, self._standing.left)
            time.sleep(LOOK_S)
        if began is not None:
            self._took.append(time.monotonic() - began)

    def _add(self, outcome: Outcome, left: int) -> None:
        """A cell more in the result so far."""
        so_far = self._standing.result
        assert so_far is not None
        failed = {**so_far.failed, **({outcome.id: outcome.error} if outcome.error else {})}
        done = so_far.done + (not outcome.error)
        result = StudyResult(self.plan, [*so_far.rows, *outcome.rows], failed, done)
        seconds = left * fmean(self._took) if self._took else None
        self._standing = Standing(result, "", None, seconds)


class Studies:
    """The studies at work, by session, and the last results."""

    def __init__(self, services: Services):
        self.services = services
        self.results = Results(services)
        self._going: dict[str, Going] = {}
        self._lock = threading.Lock()
        self._numbers = count(1)

    def begin(self, planned: Plan, session: str, visitor: str, cost: Cost) -> Going:
        """Begin a study, or go on with it; what the session computed before is cancelled.

        Raises LimitError where the line has no room, or this visitor asks too much.
        """
        self.forget(session)
        going = Going(planned, self.services, session, visitor, cost, next(self._numbers))
        with self.services.admission.counted(visitor, session):
            with self._lock:
                self._going[session] = going
            going.begin()
        return going

    def of(self, session: str) -> Going | None:
        with self._lock:
            return self._going.get(session)

    def forget(self, session: str) -> None:
        """Cancel a session's study."""
        with self._lock:
            older = self._going.pop(session, None)
        if older is not None:
            older.replaced = True
            with suppress(KvqError):
                older.stop()
