"""Cells on the actors of a Ray cluster. Nothing but the command line and whoever asks for it knows this module.

An actor is a process with a GPU, where the cluster has any, else with a few cores; it keeps the model it has loaded. An
actor that is lost, with its node or by itself, is replaced where the cluster has room for another, and its cell is done
again.
"""

import importlib.util
import os
import socket
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvq_core.errors import KvqError
from kvq_core.studies.executors import TRIES, CellWork, Outcome, compute


def _places() -> list[str]:
    """The folders that hold this project's packages."""
    found = map(importlib.util.find_spec, ("kvq_core", "kvq_kernels"))
    return list(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin))


class _Worker:
    """What an actor is: it computes one cell after the other, in the folder that relative paths of models are from."""

    def __init__(self, folder: str) -> None:
        with suppress(OSError):  # a node without it may know the models by other names
            os.chdir(folder)

    def ready(self) -> None:
        """Answers once the actor has a place: cells are given to none that waits for one."""

    def compute(self, work: CellWork) -> Outcome:
        return compute(work)


@dataclass
class RayActors:
    """``address``: "auto" for the cluster this machine is in, or one of a cluster; ``actors``: at most so many, None:
    as many as there is room for; ``cores``: of an actor without a GPU."""

    address: str = "auto"
    actors: int | None = None
    cores: int = 1
    _waiting: deque[CellWork] = field(init=False, default_factory=deque)
    _asked: dict[Any, tuple[Any, CellWork | None]] = field(init=False, default_factory=dict)  # of a result; None: ready
    _deaths: dict[str, int] = field(init=False, default_factory=dict)  # of actors, by the cell they were at
    _unborn: int = field(init=False, default=0)  # actors in a row that died before they were ready
    _unfit: str = field(init=False, default="none of its actors started.")  # why one could compute nothing at all

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        """Raises KvqError where there is no Ray, no cluster at the address, or no actor that can compute."""
        ray, self._waiting = _ray(), deque(works)
        if any(work.store.startswith("memory:") for work in self._waiting):
            raise KvqError("A store in memory is this process's alone; set KVQ_STORE to one that actors reach, too.")
        with self._connected(ray):
            yield from self._computed(ray)

    def _computed(self, ray: Any) -> Iterator[Outcome]:
        kind, room = self._kind(ray)
        idle: list[Any] = []
        for _ in range(min(self.actors or room, len(self._waiting))):
            self._hire(kind)
        try:
            while self._waiting or any(work for _, work in self._asked.values()):
                while idle and self._waiting:
                    self._give(idle.pop())
                if not self._asked:
                    raise KvqError(f"No actor of the cluster can compute: {self._unfit}")
                done, _ = ray.wait([*self._asked], num_returns=1)
                actor, work = self._asked.pop(done[0])
                try:
                    outcome = ray.get(done[0])
                except ray.exceptions.RayActorError:
                    if failed := self._lost(kind, work):
                        yield failed
                    continue
                self._unborn = 0
                if work is not None and outcome.unfit is not None:  # others may have the model's files
                    self._unfit = outcome.unfit
                    self._waiting.appendleft(work)
                    ray.kill(actor)
                    continue
                idle.append(actor)
                if work is not None:
                    yield outcome
        finally:
            for actor in [*idle, *(actor for actor, _ in self._asked.values())]:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)
            self._asked.clear()

    def _kind(self, ray: Any) -> tuple[Any, int]:
        """What actors are made of, and how many there is room for."""
        resources = ray.cluster_resources()
        gpus = resources.get("GPU", 0)
        needs: dict[str, Any] = {"num_gpus": 1, "num_cpus": 1} if gpus else {"num_cpus": self.cores}
        room = int(gpus or resources.get("CPU", 1) // self.cores)
        return ray.remote(max_restarts=0, **needs)(_Worker), max(1, room)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """With this checkout on the workers' path, for nodes that share its disk. No longer than there is work: Ray
        tells of lost actors on stdout while it is connected, and once more when it lets go."""
        if ray.is_initialized():
            return (yield)
        paths = [*_places(), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings = {name: value for name, value in os.environ.items() if name.startswith(("KVQ_", "HF_", "AWS_"))}
        settings["PYTHONPATH"] = os.pathsep.join(paths)
        host, _, port = self.address.rpartition(":")
        try:
            if host and port.isdigit() and "://" not in host:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), 10).close()
            ray.init(address=self.address, runtime_env={"env_vars": settings}, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:200].rstrip(". ")
            raise KvqError(f"No Ray cluster at {self.address}: {said}. Start one with `ray start --head`.") from None
        try:
            yield
        finally:
            ray.shutdown()

    def _hire(self, kind: Any) -> None:
        actor = kind.remote(str(Path.cwd()))
        self._asked[actor.ready.remote()] = actor, None

    def _give(self, actor: Any) -> None:
        work = self._waiting.popleft()
        self._asked[actor.compute.remote(work)] = actor, work

    def _lost(self, kind: Any, work: CellWork | None) -> Outcome | None:
        """Replace an actor that died, and have its cell done again; what came of it where that happened too often."""
        self._unborn += work is None
        if self._unborn < TRIES:
            self._hire(kind)
        if work is None:
            return None
        deaths = self._deaths[work.cell.id] = self._deaths.get(work.cell.id, 0) + 1
        if deaths < TRIES:
            self._waiting.append(work)
            return None
        return Outcome(work.cell.id, error=f"its actor died {TRIES} times; memory may be short.")


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise KvqError("--ray needs Ray: pip install -r requirements-studies.txt") from None
    return ray
