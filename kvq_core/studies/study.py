"""A study from spec to result: what the store holds is read, the rest is computed, and what is known is summed up."""

import json
import os
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field

from kvq_core.errors import ModelError, StoreError
from kvq_core.store.beside import held, keep, kept, url_of
from kvq_core.store.store import Store, open_store
from kvq_core.studies.cells import Cell, Plan, Progress, plan
from kvq_core.studies.executors import Executor, InProcess, Outcome, Processes, Work
from kvq_core.studies.result import StudyResult
from kvq_core.studies.rows import Row, keep_rows, read_rows, rows_of
from kvq_core.studies.spec import StudySpec, parse_study

_SPEC = "studies/{}/study.json"
Key = tuple[str, str]  # run and prompt


def study(
    spec: StudySpec,
    store: Store | None = None,
    *,
    workers: int = 1,
    shard: tuple[int, int] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> StudyResult:
    """Compute what is missing of a study, or of the ``shard`` (i, n) of its cells, and sum up what is there.

    ``store`` None: the one that KVQ_STORE names. Raises KvqError where prompts, models or lanes cannot be had, and
    StoreError where the store does not take a run; what was kept until then is there for the next time.
    """
    planned = plan(spec, progress or _silent)
    return run_plan(planned, store, workers=workers, shard=shard, executor=executor, progress=progress)


def run_plan(
    planned: Plan,
    store: Store | None = None,
    *,
    workers: int = 1,
    shard: tuple[int, int] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> StudyResult:
    """``study`` of a plan that is made already."""
    place = open_store() if store is None else store
    if workers > 1 and place.scheme == "memory":
        raise StoreError("A store in memory is this process's alone; take workers = 1, or another store.")
    going = _Going(planned, place, progress or _silent)
    going.begin()
    try:
        own = planned.cells if shard is None else planned.shard(*shard)
        todo = going.missing(own)
        going.compute(todo, executor or (InProcess() if workers == 1 else Processes(workers)), len(own))
        if len(own) < len(planned.cells):
            going.missing(planned.cells)  # what others have done meanwhile
    finally:
        going.keep()
    return going.result()


def stored_study(planned: Plan, store: Store | None = None) -> StudyResult:
    """What the store holds of a study; nothing is computed."""
    going = _Going(planned, open_store() if store is None else store, _silent)
    going.begin()
    going.missing(planned.cells)
    return going.result()


def study_spec(id: str, store: Store) -> StudySpec:
    """The study of an id that was begun in this store. Raises StoreError where there is none."""
    data = kept(store, _SPEC.format(id)) if id.isalnum() else None
    if data is None:
        raise StoreError(f"Study {id[:40]!r} is not in this store. Check the link, or run the study again.")
    return parse_study(json.loads(data))


def _silent(doing: str, done: int, total: int) -> None:
    """Tells nobody."""


@dataclass
class _Going:
    """A study in progress: rows by run and prompt, and why cells have none."""

    plan: Plan
    store: Store
    progress: Progress
    rows: dict[Key, list[Row]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # by run
    fresh: bool = False  # whether there are rows that are not kept

    def begin(self) -> None:
        """Read what was summed up before."""
        wanted = {(cell.id, cell.prompt.id) for cell in self.plan.cells}
        self.rows = {key: rows for key, rows in read_rows(self.store, self.plan.id).items() if key in wanted}

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells without rows, after reading those whose runs the store holds; each run once."""
        without = [cell for cell in cells if (cell.id, cell.prompt.id) not in self.rows]
        there = held(self.store, (cell.id for cell in without))
        todo: dict[str, Cell] = {}
        for number, cell in enumerate(without, 1):
            if cell.id not in there or not self._read(cell):
                todo.setdefault(cell.id, cell)
            elif number % 20 == 0:
                self.progress("Reading", number, len(without))
        return list(todo.values())

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
        self._keep_spec()
        cells, done = {cell.id: cell for cell in todo}, own - len(todo)
        self.progress("Computing", done, own)
        with closing(executor.run(self._works(todo))) as outcomes:
            for outcome in outcomes:
                self._take(cells[outcome.id], outcome)
                done += 1
                self.progress("Computing", done, own)
        self.missing(self.plan.cells)  # prompts that are asked twice have one run

    def _works(self, todo: list[Cell]) -> list[Work]:
        """Model by model, from another cell in every process on: two that do one study meet in the middle."""
        found: list[Work] = []
        url, limits = url_of(self.store), self.store.limits
        for model in dict.fromkeys(cell.model for cell in todo):
            cells = [cell for cell in todo if cell.model == model]
            first = os.getpid() % len(cells)
            found += [Work(cell, url, limits) for cell in [*cells[first:], *cells[:first]]]
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

    def keep(self) -> None:
        """Rows spare reading all runs when the study is opened; a store that cannot be written costs no result."""
        if self.fresh:
            with suppress(StoreError):
                self._keep_spec()  # of a study all of whose runs were there before, too
                keep_rows(self.store, self.plan.id, self._ordered())

    def _keep_spec(self) -> None:
        name = _SPEC.format(self.plan.id)
        if kept(self.store, name) is None:
            keep(self.store, name, self.plan.spec.whole(self.plan.prompts).canonical().encode())

    def _ordered(self) -> list[Row]:
        keys = ((cell.id, cell.prompt.id) for cell in self.plan.cells)
        return [row for key in keys for row in self.rows.get(key, ())]

    def result(self) -> StudyResult:
        return StudyResult(self.plan, self._ordered(), dict(self.failed), len(self.rows))
