"""A study from spec to result: what the store holds is read, the rest is computed, and what is known is summed up."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import inf
from statistics import median

from kvq_core.errors import ModelError, StoreError
from kvq_core.machine.progress import Progress, Report, calling, unreported
from kvq_core.record.beside import present_in, url_of
from kvq_core.record.store import Store, open_store
from kvq_core.studies.cells import Cell, CellPlan, plan
from kvq_core.studies.executors import CellWork, Executor, InProcess, Outcome, Processes
from kvq_core.studies.result import StudyResult
from kvq_core.studies.rows import Row, keep_rows, knows_text, read_rows, rows_of
from kvq_core.studies.spec import StudySpec
from kvq_core.studies.stored_plan import keep_plan

Key = tuple[str, str]  # run and prompt
KEPT_EVERY_S = 60.0  # rows of a study at work, so that one that is killed need not read all its runs again
LONG = 1.5  # times the tokens of the prompt in the middle, from which on a prompt is a long one
KEEPING = 0.02  # of the time, at most, that keeping them may take


def study(
    spec: StudySpec,
    store: Store | None = None,
    *,
    workers: int = 1,
    shard: tuple[int, int] | None = None,
    executor: Executor | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> StudyResult:
    """Compute what is missing of a study, or of the ``shard`` (i, n) of its cells, and sum up what is there.

    ``store`` None: the one that KVQ_STORE names. Raises KvqError where prompts, models or lanes cannot be had, and
    StoreError where the store does not take a run; what was kept until then is there for the next time.
    """
    report = calling(progress)
    planned = plan(spec, report)
    return run_plan(planned, store, workers=workers, shard=shard, executor=executor, progress=report)


def run_plan(
    planned: CellPlan,
    store: Store | None = None,
    *,
    workers: int = 1,
    shard: tuple[int, int] | None = None,
    executor: Executor | None = None,
    progress: Report = unreported,
) -> StudyResult:
    """``study`` of a plan that is made already."""
    place = open_store() if store is None else store
    if workers > 1 and place.scheme == "memory":
        raise StoreError("A store in memory is this process's alone; take workers = 1, or another store.")
    going = _Going(planned, place, progress, shard)
    going.begin()
    try:
        own = planned.cells if shard is None else planned.shard(*shard)
        todo = going.missing(own)
        going.compute(todo, executor or (InProcess() if workers == 1 else Processes(workers)), len(own))
        if len(own) < len(planned.cells):
            going.begin()
            going.missing(planned.cells)  # what others have done meanwhile
    finally:
        going.keep()
    return going.result()


def stored_study(planned: CellPlan, store: Store | None = None) -> StudyResult:
    """What the store holds of a study; nothing is computed."""
    going = _Going(planned, open_store() if store is None else store, unreported)
    going.begin()
    going.missing(planned.cells)
    return going.result()


@dataclass
class _Going:
    """A study in progress: rows by run and prompt, and why cells have none."""

    plan: CellPlan
    store: Store
    progress: Report
    shard: tuple[int, int] | None = None
    rows: dict[Key, list[Row]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # by run
    fresh: bool = False  # whether there are rows that are not kept
    due: float = field(default_factory=lambda: time.monotonic() + KEPT_EVERY_S)  # when they are to be

    def begin(self) -> None:
        """Read what was summed up before, here and elsewhere."""
        wanted = {(cell.id, cell.prompt.id) for cell in self.plan.cells}
        kept = read_rows(self.store, self.plan.id).items()
        self.rows |= {key: rows for key, rows in kept if key in wanted and key not in self.rows}

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells without rows, after reading those whose runs the store holds; each run once."""
        without = [cell for cell in cells if not self._whole(cell)]
        there = present_in(self.store, (cell.id for cell in without))
        todo: dict[str, Cell] = {}
        for number, cell in enumerate(without, 1):
            if (cell.id not in there or not self._read(cell)) and (cell.id, cell.prompt.id) not in self.rows:
                todo.setdefault(cell.id, cell)
            elif number % 20 == 0:
                self.progress(Progress("Reading", number, len(without), "runs"))
        return list(todo.values())

    def _whole(self, cell: Cell) -> bool:
        """Whether a cell has rows with all that is told of a lane; older ones are read from their runs again."""
        rows = self.rows.get((cell.id, cell.prompt.id))
        return rows is not None and knows_text(rows)

    def _read(self, cell: Cell) -> bool:
        """Whether the store's run of a cell could be read. A damaged one is computed again, which replaces it."""
        with suppress(StoreError):
            record, arrays = self.store.load(cell.id)
            self._add(cell, rows_of(cell, record, arrays))
            return True
        return False

    def _add(self, cell: Cell, rows: list[Row]) -> None:
        self.rows[cell.id, cell.prompt.id] = rows
        self.failed.pop(cell.id, None)
        self.fresh = True

    def compute(self, todo: list[Cell], executor: Executor, own: int) -> None:
        """Raises ModelError where no worker has the model, StoreError where the store does not take a run."""
        if not todo:
            return
        keep_plan(self.store, self.plan)
        if self.plan.spec.comparison.reference is not None:
            self._ask_reference(todo, executor)
        cells, done = {cell.id: cell for cell in todo}, own - len(todo)
        self.progress(Progress("Computing", done, own, "runs"))
        with closing(executor.run(self._works(todo))) as outcomes:
            for outcome in outcomes:
                self._take(cells[outcome.id], outcome)
                done += 1
                self.progress(Progress("Computing", done, own, "runs"))
                self.keep(time.monotonic())
        self.missing(self.plan.cells)  # prompts that are asked twice have one run

    def _ask_reference(self, todo: list[Cell], executor: Executor) -> None:
        """Let a reference that is another file answer all prompts, so that it is loaded once and then no more. Where it
        cannot, the cell says why. Raises ModelError where no worker has it."""
        with closing(executor.run(self._works(todo, answer=True))) as outcomes:
            for number, outcome in enumerate(outcomes, 1):
                if outcome.unfit is not None:
                    raise ModelError(outcome.unfit)
                self.progress(Progress("Asking the reference", number, len(todo), "prompts"))

    def _works(self, todo: list[Cell], answer: bool = False) -> list[CellWork]:
        """Model by model, what takes longest first, lest it is begun when all others are done: long prompts, and
        conversations, whose turns enter the caches one by one. Of both kinds from another cell in every process on: two
        that do one study meet in the middle."""
        found: list[CellWork] = []
        url, limits = url_of(self.store), self.store.limits
        for model in dict.fromkeys(cell.model for cell in todo):
            cells = [cell for cell in todo if cell.model == model]
            usual = LONG * median(cell.tokens for cell in cells)
            for kind in (True, False):
                own = [cell for cell in cells if (cell.tokens > usual or cell.prompt.messages is not None) == kind]
                first = os.getpid() % len(own) if own else 0
                found += [CellWork(cell, url, limits, answer) for cell in [*own[first:], *own[:first]]]
        return found

    def _take(self, cell: Cell, outcome: Outcome) -> None:
        if outcome.unfit is not None:
            raise ModelError(outcome.unfit)
        if outcome.error is not None:
            self.failed[cell.id] = outcome.error
            return
        self._add(cell, outcome.rows)
        if outcome.unkept is not None:
            raise StoreError(f"{outcome.unkept} The study stops here; what was kept before is there for the next time.")

    def keep(self, now: float = inf) -> None:
        """Rows spare reading all runs when the study is opened, or gone on with after it was killed; they are kept when
        that is due, in the end whatever the time. A store that cannot be written costs no result."""
        if not self.fresh or now < self.due:
            return
        began = time.monotonic()
        with suppress(StoreError):
            keep_plan(self.store, self.plan)  # of a study all of whose runs were there before, too
            part = "" if self.shard is None else "-{}-of-{}".format(*self.shard)
            keep_rows(self.store, self.plan.id, self._ordered(self.shard), part)
            self.fresh = False
        ended = time.monotonic()
        self.due = ended + max(KEPT_EVERY_S, (ended - began) / KEEPING)

    def _ordered(self, shard: tuple[int, int] | None = None) -> list[Row]:
        cells = self.plan.cells if shard is None else self.plan.shard(*shard)
        keys = ((cell.id, cell.prompt.id) for cell in cells)
        return [row for key in keys for row in self.rows.get(key, ())]

    def result(self) -> StudyResult:
        return StudyResult(self.plan, self._ordered(), dict(self.failed), len(self.rows))
