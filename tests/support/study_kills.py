"""Kills what computes studies: ``python -m tests.support.study_kills FOLDER SHARDS WORKERS RAY`` prints, for each study
that was finished in spite of so many kills, what of it is not as it should be.

The three numbers are kills. ``shards``: whole processes that compute a shard. ``workers``: those of local processes,
forked here from a process that is warm, where the program spawns them. ``ray``: actors of a local cluster.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from itertools import cycle
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext
from pathlib import Path
from unittest.mock import patch

import psutil

from kvq_core.machine.progress import Progress
from kvq_core.models import load
from kvq_core.record.beside import present_in
from kvq_core.record.store import Store, open_store
from kvq_core.studies.cells import CellPlan, plan
from kvq_core.studies.executors import Processes, _begin
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import run_plan, stored_study
from tests.support.study_models import study_data, write_model

CELLS = 6
MOST = 2  # cells that are done before a process is killed, at most
Attempt = Callable[[CellPlan, Store, float, random.Random], int]  # kills, 0 where what was begun has ended by itself


def forked(work: Callable[[], object]) -> int:
    """The id of a child that does the work and ends."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def ended(child: int) -> bool:
    """Waits for a child; whether it ended by itself."""
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("a process that was not killed has failed")
    return os.WIFEXITED(status)


def moment(store: Store, child: int, cell: float, chance: random.Random) -> bool:
    """Waits for a moment within or between cells; whether the child still goes on then."""
    root, after = Path(store.root), chance.randint(0, MOST)
    before = len(list(root.glob("[0-9a-f]*/manifest.json")))
    while going(child) and len(list(root.glob("[0-9a-f]*/manifest.json"))) < before + after:
        time.sleep(0.005)
    time.sleep(cell * chance.random())
    return going(child)


def going(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def a_shard(turn: cycle) -> Attempt:
    """Kills the process that computes a shard."""

    def attempt(planned: CellPlan, store: Store, cell: float, chance: random.Random) -> int:
        number = next(turn)
        child = forked(lambda: run_plan(planned, store, shard=(number, 2)))
        moment(store, child, cell, chance)
        os.kill(child, signal.SIGKILL)
        return int(not ended(child))

    return attempt


class Forking(ForkContext):
    """A worker that is forked has its parent's end of its leash, too, where one that is spawned has not: left open, it
    would never see that its parent let go."""

    def __init__(self) -> None:
        self._ends: list[Connection] = []

    def Pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:  # noqa: N802
        pair = super().Pipe(duplex)
        self._ends.append(pair[1])
        return pair

    def begin(self, leash: Connection, threads: int, known: dict[str, list[str]]) -> None:
        for end in self._ends:
            end.close()
        _begin(leash, threads, known)


def a_worker(planned: CellPlan, store: Store, cell: float, chance: random.Random) -> int:
    """Kills workers of a study again and again while it goes on."""
    fork = Forking()
    of = "kvq_core.studies.executors."
    with patch(f"{of}multiprocessing.get_context", lambda kind: fork), patch(f"{of}_begin", fork.begin):
        child = forked(lambda: run_plan(planned, store, executor=Processes(2)))
    kills = 0
    while moment(store, child, cell, chance):
        if workers := psutil.Process(child).children():
            chance.choice(workers).kill()
            kills += 1
    ended(child)
    return kills


def an_actor(planned: CellPlan, store: Store, cell: float, chance: random.Random) -> int:
    """Kills an actor after every cell."""
    from kvq_core.studies.ray_core import RayActors

    kills = []

    def progress(at: Progress) -> None:
        every = psutil.Process().children(recursive=True)
        actors = [process for process in every if process.name().startswith("ray::_Worker")]
        if at.doing == "Computing" and actors and at.done < at.total:
            chance.choice(actors).kill()
            kills.append(at.done)

    run_plan(planned, store, executor=RayActors(actors=2), progress=progress)
    return len(kills)


def wrong(planned: CellPlan, store: Store, known: list[float]) -> str:
    """What of a finished study is not as it should be: cells that are lost or doubled, damaged files, other figures."""
    ids = {cell.id for cell in planned.cells}
    for id in ids:
        store.load(id)  # raises StoreError where a file is damaged
    found = stored_study(planned, store)
    if present_in(store, ids) != ids or found.cells["done"] != len(ids):
        return f"{found.cells} of {len(ids)}"
    if len(list(Path(store.root).glob("[0-9a-f]*/manifest.json"))) != len(ids) or len(found.table) != 2 * len(ids):
        return f"{len(found.table)} rows"
    return "" if list(found.table["kld_mean"]) == known else "other figures"


def campaign(series: str, attempt: Attempt, wanted: int, planned: CellPlan, folder: Path) -> None:
    """Studies one after the other, each in a store of its own and killed until it is done. This process computes
    nothing before it forks: locks that threads hold then are held for ever."""
    began, unharmed = time.monotonic(), open_store(str(folder / series / "known"))
    ended(forked(lambda: run_plan(planned, unharmed)))
    known = list(stored_study(planned, unharmed).table["kld_mean"])
    cell, chance, kills, number = (time.monotonic() - began) / CELLS, random.Random(1), 0, 0
    while kills < wanted:
        store = open_store(str(folder / series / str(number)))
        own = 0
        while len(present_in(store, (cell.id for cell in planned.cells))) < len(planned.cells):
            own += attempt(planned, store, cell, chance)
        kills, number = kills + own, number + 1
        print(series, own, wrong(planned, store, known) or "whole", file=sys.__stdout__, flush=True)


def main(folder: Path, shards: int, workers: int, ray: int) -> None:
    model = write_model(folder / "tiny", seed=8)  # whose id no other test finds elsewhere
    load(str(model))
    planned = plan(parse_study(study_data(model, CELLS)))
    campaign("shards", a_shard(cycle((1, 2))), shards, planned, folder)
    campaign("workers", a_worker, workers, planned, folder)
    if ray:
        from ray import init, shutdown
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 2, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        try:
            with redirect_stdout(sys.stderr):  # Ray tells of each kill where this process answers
                init(address=cluster.address, log_to_driver=False)
                campaign("ray", an_actor, ray, planned, folder)
        finally:
            shutdown()  # a cluster that this process is connected to does not let its head go
            cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
