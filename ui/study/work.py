"""A study at work: its cells take their turns with other visitors' runs, one ticket a cell."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from kvq_core.errors import KvqError, ModelError
from kvq_core.logs import log_error
from kvq_core.pipeline.timings import Cost
from kvq_core.record.events import Event, Finished
from kvq_core.studies.cells import Cell, CellPlan
from kvq_core.studies.executors import CellWork, Outcome, outcome_of
from kvq_core.studies.result import StudyResult
from kvq_core.studies.study import run_plan, stored_study
from ui.html.status import unexpected_error
from ui.service.admission import check_memory
from ui.service.line import LinePlace
from ui.service.services import Services
from ui.study.access import Results
from ui.study.turns import SessionTurns, SessionWork, in_a_thread


@dataclass(frozen=True)
class StudyState:
    """How far a study is: its result so far, the prompt at work and what is done with it, and the seconds that are
    left, waiting not counted; None before the first cell."""

    result: StudyResult | None = None
    prompt: str = ""
    doing: Event | LinePlace | None = None
    left: float | None = None


class StudyWork:
    """One study of a page or a client, and the executor of its cells. It stops when its watcher stops looking.

    What is computed lies in the store: a study that is stopped goes on from there when it is begun again.
    """

    def __init__(self, planned: CellPlan, services: Services, session: str, visitor: str, cost: Cost, number: int = 0):
        """``cost``: of a cell, which others in the line are told; ``number``: among those of this server."""
        self.plan, self.session, self.number = planned, session, number
        self.over = self.replaced = False
        self.error: Exception | None = None
        self._services, self._cost = services, cost
        self._turns = SessionTurns(services, session, visitor)
        self._standing = StudyState()

    @property
    def cancelled(self) -> bool:
        return self._turns.stopped

    def begin(self) -> None:
        in_a_thread(self._work, self._turns, f"study-{self.plan.id}")

    def stop(self) -> None:
        self._turns.stop()

    def standing(self) -> StudyState:
        """How far it is now. Who stops asking gives the study up."""
        self._turns.looked()
        return self._standing

    def _work(self) -> None:
        store = self._services.store
        try:
            self._standing = StudyState(stored_study(self.plan, store))
            self._standing = StudyState(run_plan(self.plan, store, executor=self))
        except Exception as error:
            self.error = error
            if not isinstance(error, KvqError):
                log_error("study failed", error)
        finally:
            self.over = True

    def failure(self) -> str | None:
        """Why it ended before its last cell, for people; None where it did not."""
        return failure_words(self.error)

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        """The executor's part: each cell when its turn has come, until the study is stopped."""
        waiting = list(works)
        for at, work in enumerate(waiting):
            outcome = cell_in_turn(self._turns, work, self._cost, partial(self._tell, work.cell))
            if outcome is None:
                return
            self._add(outcome, len(waiting) - at - 1)
            yield outcome

    def _tell(self, cell: Cell, doing: Event | LinePlace) -> None:
        self._standing = StudyState(self._standing.result, cell.prompt.id, doing, self._standing.left)

    def _add(self, outcome: Outcome, left: int) -> None:
        """A cell more in the result so far."""
        so_far = self._standing.result
        assert so_far is not None
        failed = {**so_far.failed, **({outcome.id: outcome.error} if outcome.error else {})}
        done = so_far.done + (not outcome.error)
        result = StudyResult(self.plan, [*so_far.rows, *outcome.rows], failed, done)
        took = self._turns.took
        seconds = left * fmean(took) if took else None
        self._standing = StudyState(result, "", None, seconds)


def cell_in_turn(turns: SessionTurns, work: CellWork, cost: Cost, tell: Callable[[Any], None]) -> Outcome | None:
    """A cell, from its ticket to its outcome; None where it is wanted no more."""
    if not turns.wanted:
        return None
    found: list[Outcome] = []
    job = turns.take(partial(_compute, turns.services, work.cell, found), tell, cost)
    if isinstance(job.error, ModelError):
        return Outcome(work.cell.id, unfit=str(job.error))
    if job.error is not None:
        if not isinstance(job.error, KvqError):
            log_error("cell failed", job.error, run=work.cell.id)
        return Outcome(work.cell.id, error=str(job.error))
    if not found:  # cancelled
        turns.stop()
    return found[0] if found else None


def _compute(services: Services, cell: Cell, found: list[Outcome]) -> Generator[Event]:
    check_memory(services.estimate(cell.spec), len(cell.spec.lanes))
    for event in services.compare(cell.spec, services.store):
        yield event
        if isinstance(event, Finished):
            found.append(outcome_of(cell, event))


def failure_words(error: Exception | None) -> str | None:
    """Why work ended early, for people; None where it did not."""
    if error is None:
        return None
    return str(error) if isinstance(error, KvqError) else unexpected_error("Start")


class Studies(SessionWork[StudyWork]):
    """The studies at work, by session, and the last results."""

    def __init__(self, services: Services):
        super().__init__(services)
        self.results = Results(services)

    def begin(self, planned: CellPlan, session: str, visitor: str, cost: Cost) -> StudyWork:
        """Begin a study, or go on with it; what the session computed before is cancelled.

        Raises LimitError where the line has no room, or this visitor asks too much.
        """
        going = StudyWork(planned, self.services, session, visitor, cost, self.number())
        return self.enter(going, session, visitor)
