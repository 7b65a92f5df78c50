"""Where a study's cells are computed: in this process, or in several of this machine.

An executor takes what is to be done and yields what came of each, in any order. It knows nothing of studies.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from kvq_core.errors import KvqError, ModelError
from kvq_core.logs import log_error
from kvq_core.machine.interrupt import not_for_children
from kvq_core.machine.memory import release_memory
from kvq_core.models import load
from kvq_core.models.source import places
from kvq_core.pipeline.compare import against, compare
from kvq_core.record.events import Finished
from kvq_core.record.retention import Quota
from kvq_core.record.store import open_store
from kvq_core.studies.cells import Cell
from kvq_core.studies.rows import Row, rows_of

TRIES = 3  # workers that die at a cell, the last of them at nothing else, before it has failed


@dataclass(frozen=True)
class CellWork:
    """A cell, and the store its run goes to; with ``answer`` its reference, another file, answers alone, before any
    cell's own model is loaded."""

    cell: Cell
    store: str
    limits: Quota
    answer: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a cell: its rows, or why there are none. ``unkept``: why the store did not take the run;
    ``unfit``: why this worker can compute no cell of that model."""

    id: str
    rows: list[Row] = field(default_factory=list)
    error: str | None = None
    unkept: str | None = None
    unfit: str | None = None


class Executor(Protocol):
    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        """Every work's outcome, in any order. Closing the iterator ends the workers."""


def compute(work: CellWork) -> Outcome:
    """Compute a cell, or find it in the store. Raises nothing that a cell can be the cause of."""
    cell = work.cell
    try:
        load(*((cell.model, cell.spec.revision) if not work.answer else (str(cell.spec.reference), None)))
    except ModelError as error:
        return Outcome(cell.id, unfit=str(error))
    try:
        store = open_store(work.store, work.limits)
        # closed by hand: a Ctrl-C while the garbage collector closes it would be lost
        with closing(against(cell.spec, store) if work.answer else compare(cell.spec, store)) as events:
            for event in events:
                if isinstance(event, Finished):
                    return outcome_of(cell, event)
        if work.answer:
            return Outcome(cell.id)
    except KvqError as error:
        return Outcome(cell.id, error=str(error))
    except Exception as error:  # one cell must not end the others
        log_error("cell failed", error, run=cell.id)
        return Outcome(cell.id, error=f"{type(error).__name__}: {error}")
    finally:
        release_memory()
    raise AssertionError("a comparison ends with Finished")


def outcome_of(cell: Cell, event: Finished) -> Outcome:
    """What came of a cell whose comparison is over."""
    if event.record.id != cell.id:
        return Outcome(
            cell.id,
            error=f"the worker made run {event.record.id} of it: its device, versions or files are not those of where "
            "the study was planned.",
        )
    return Outcome(cell.id, rows_of(cell, event.record, event.arrays), unkept=event.unkept or None)


class InProcess:
    """One cell after the other, here."""

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        yield from map(compute, works)


@dataclass
class Processes:
    """Worker processes of this machine, each with the model and its share of the threads. A worker that dies is
    replaced, and what it was at is done again."""

    workers: int

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        left = {work.cell.id: work for work in works}
        deaths = Counter[str]()  # of workers, by what they were at
        while left:
            flying: dict[Future[Outcome], CellWork] = {}
            suspected = [left[id] for id in deaths if id in left]
            others = (work for id, work in left.items() if id not in deaths)
            try:
                with self._pool() as pool:
                    for outcome in self._outcomes(pool, [*suspected, *others], flying, len(suspected)):
                        del left[outcome.id]
                        yield outcome
            except BrokenProcessPool:
                at = [work.cell.id for work in flying.values()]
                deaths.update(at)
                if len(at) == 1 and deaths[at[0]] >= TRIES:
                    del left[at[0]]
                    yield Outcome(at[0], error=f"its worker died {TRIES} times; memory may be short.")

    def _outcomes(
        self, pool: ProcessPoolExecutor, works: list[CellWork], flying: dict[Future[Outcome], CellWork], alone: int
    ) -> Iterator[Outcome]:
        """Few are handed out at once, so that a death costs few; the first ``alone`` one by one, for a worker died at
        one of them and only so it is told which. ``flying``: those that are."""
        waiting = iter(enumerate(works, 1))
        while True:
            for number, work in waiting:
                with not_for_children():  # it may start a worker
                    flying[pool.submit(compute, work)] = work
                if number <= alone or len(flying) > self.workers:
                    break
            if not flying:
                return
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = future.result()
                del flying[future]
                yield outcome

    @contextmanager
    def _pool(self) -> Iterator[ProcessPoolExecutor]:
        """Workers on a leash: they end with this process, however it ends, and when the pool is left early."""
        context = multiprocessing.get_context("spawn")
        reader, writer = context.Pipe(duplex=False)
        threads = max(1, torch.get_num_threads() // self.workers)
        pool = ProcessPoolExecutor(self.workers, context, _begin, (reader, threads, dict(places)))
        try:
            yield pool
        finally:
            writer.close()
            pool.shutdown(cancel_futures=True)
            reader.close()


def _begin(leash: Connection, threads: int, known: dict[str, list[str]]) -> None:
    """In a worker, before its first cell. Ctrl-C is for the process that gives out the work, which ``known`` is from:
    the places of models."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    places.update(known)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(leash,), daemon=True).start()


def _end_with(leash: Connection) -> None:
    try:
        leash.poll(None)
    finally:
        os._exit(1)
