"""A decision at work: its looks, runs and passes take their turns with other visitors' runs, one ticket a step."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from kvq_core.errors import KvqError, StoreError
from kvq_core.logs import log_error
from kvq_core.machine.progress import Progress
from kvq_core.pipeline.timings import Cost
from kvq_core.recommend.decision import Decision, DecisionRequest, keep_decision
from kvq_core.recommend.policies import ScoringBudget
from kvq_core.recommend.recommend import DecisionMaker
from kvq_core.settings import settings
from kvq_core.studies.cells import CellPlan
from kvq_core.studies.executors import CellWork, Outcome
from ui.service.line import LinePlace
from ui.service.services import Services
from ui.study.turns import SessionTurns, SessionWork, in_a_thread
from ui.study.work import cell_in_turn, failure_words

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """What goes on, with the seconds of this stage, waiting not counted, None before its first part; ``beside``: the
    place in line, or what a run is at. ``decision``: the last one."""

    now: Progress = Progress("Reading what is there", 0, 0)
    prompt: str = ""
    beside: Any = None
    decision: Decision | None = None


@dataclass(frozen=True)
class Question:
    """All that a decision is begun with. ``cost``: of a run, as others in the line are told; ``scoring`` None: layers
    are not tried."""

    plan: CellPlan
    model: str
    asked: DecisionRequest
    weights: tuple[Path, ...] = ()
    scoring: ScoringBudget | None = None
    cost: Cost = Cost()


class DecisionWork:
    """One decision of a page or a client. It stops when its watcher stops looking; what is computed lies in the store,
    so that it goes on from there when it is begun again."""

    def __init__(self, question: Question, services: Services, session: str, visitor: str, number: int = 0):
        self.question, self.session, self.number = question, session, number
        self.over = self.replaced = False
        self.error: Exception | None = None
        self.unkept: str | None = None
        self._services = services
        self._turns = SessionTurns(services, session, visitor)
        self._stage = Stage()

    @property
    def cancelled(self) -> bool:
        return self._turns.stopped

    @property
    def wanted(self) -> bool:
        return self._turns.wanted

    @property
    def decision(self) -> Decision | None:
        return self._stage.decision

    def begin(self) -> None:
        in_a_thread(self._work, self._turns, f"decide-{self.question.plan.id}")

    def stop(self) -> None:
        self._turns.stop()

    def standing(self) -> Stage:
        """How far it is now. Who stops asking gives it up."""
        self._turns.looked()
        return self._stage

    def failure(self) -> str | None:
        """Why it ended without an answer, for people; None where it did not."""
        return None if self.cancelled and isinstance(self.error, KvqError) else failure_words(self.error)

    def _work(self) -> None:
        asked = self.question
        going = DecisionMaker(
            asked.plan,
            asked.model,
            asked.asked,
            self._services.store,
            asked.weights,
            turns=self,
            progress=self._progress,
            looks=not settings().zero_gpu,
            layers=asked.scoring is not None,
            scoring=asked.scoring or ScoringBudget(),
        )
        try:
            for decision in going.decisions():
                self._keep(decision)
                self._stage = replace(self._stage, decision=decision)
        except Exception as error:
            self.error = error
            if not isinstance(error, KvqError):
                log_error("decision failed", error)
        finally:
            self.over = True

    def _keep(self, decision: Decision) -> None:
        """A store that takes nothing more costs no answer."""
        try:
            keep_decision(decision, self._services.store)
        except StoreError as error:
            self.unkept = str(error)

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        """Cells of a study, each when its turn has come."""
        waiting, self._turns.took = list(works), []
        for work in waiting:
            tell = partial(self._tell, prompt=work.cell.prompt.id)
            outcome = cell_in_turn(self._turns, work, self.question.cost, tell)
            if outcome is None:
                return
            yield outcome

    def each(self, work: Iterator[T]) -> Iterator[T]:
        """Every step in a turn of its own."""
        self._turns.took = []
        yield from self._turns.each(work, self._tell)

    def _tell(self, beside: Any, prompt: str = "") -> None:
        self._stage = replace(self._stage, beside=beside, prompt=prompt)

    def _progress(self, now: Progress) -> None:
        took = self._turns.took
        left = (now.total - now.done) * fmean(took) if took and 0 < now.done < now.total else None
        self._stage = Stage(replace(now, left=left), decision=self._stage.decision)


class Decisions(SessionWork[DecisionWork]):
    """The decisions at work, by session."""

    def begin(self, question: Question, session: str, visitor: str) -> DecisionWork:
        """Begin a decision, or go on with it. Raises LimitError where the line has no room, or this visitor asks too
        much."""
        going = DecisionWork(question, self.services, session, visitor, self.number())
        return self.enter(going, session, visitor)


def waits(stage: Stage) -> LinePlace | None:
    """The place in line, where it waits."""
    return stage.beside if isinstance(stage.beside, LinePlace) and stage.beside.ahead else None
