"""Cells on the actors of a Ray cluster. Nothing but the command line and whoever asks for it knows this module.

An actor is a process with a GPU, where the cluster has any, else with a few cores; it keeps the model it has loaded. An
actor that is lost, with its node or by itself, is replaced, and its cell goes to another one.
"""

import os
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvq_core.errors import KvqError
from kvq_core.studies.executors import TRIES, Outcome, Work, compute

_ROOT = Path(__file__).resolve().parents[2]


class _Worker:
    """What an actor is: it computes one cell after the other."""

    def compute(self, work: Work) -> Outcome:
        return compute(work)


@dataclass
class RayActors:
    """``address``: "auto" for the cluster this machine is in, or one of a cluster; ``actors``: at most so many, None:
    as many as there is room for; ``cores``: of an actor without a GPU."""

    address: str = "auto"
    actors: int | None = None
    cores: int = 1
    _waiting: deque[Work] = field(init=False, default_factory=deque)
    _flying: dict[Any, tuple[Any, Work]] = field(init=False, default_factory=dict)  # actor and work, by its result
    _deaths: dict[str, int] = field(init=False, default_factory=dict)  # of actors, by the cell they were at
    _unfit: str = field(init=False, default="")  # why the last actor that could not compute at all could not

    def run(self, works: Iterable[Work]) -> Generator[Outcome]:
        """Raises KvqError where there is no Ray, or no cluster at the address."""
        ray = _ray()
        self._connect(ray)
        self._waiting = deque(works)
        gpus = ray.cluster_resources().get("GPU", 0)
        needs: dict[str, Any] = {"num_gpus": 1, "num_cpus": 1} if gpus else {"num_cpus": self.cores}
        kind = ray.remote(max_restarts=0, **needs)(_Worker)
        room = int(gpus or ray.cluster_resources().get("CPU", 1) // self.cores)
        most = max(1, min(self.actors or room, len(self._waiting)))
        idle = [kind.remote() for _ in range(most)]
        try:
            while self._waiting or self._flying:
                while idle and self._waiting:
                    self._give(idle.pop())
                if not self._flying:
                    raise KvqError(f"No actor of the cluster can compute: {self._unfit}")
                done, _ = ray.wait([*self._flying], num_returns=1)
                actor, work = self._flying.pop(done[0])
                try:
                    outcome = ray.get(done[0])
                except ray.exceptions.RayActorError:
                    idle.append(kind.remote())
                    if failed := self._lost(work):
                        yield failed
                    continue
                if outcome.unfit is not None:  # such as a node without the model's files: others may have them
                    self._unfit = outcome.unfit
                    self._waiting.appendleft(work)
                    ray.kill(actor)
                    continue
                idle.append(actor)
                yield outcome
        finally:
            for actor in [*idle, *(actor for actor, _ in self._flying.values())]:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)
            self._flying.clear()

    def _connect(self, ray: Any) -> None:
        """With this checkout on the workers' path, for nodes that share its disk."""
        if ray.is_initialized():
            return
        paths = [str(_ROOT), str(_ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings = {name: value for name, value in os.environ.items() if name.startswith(("KVQ_", "HF_", "AWS_"))}
        settings["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            ray.init(address=self.address, runtime_env={"env_vars": settings}, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:200]
            raise KvqError(f"No Ray cluster at {self.address}: {said}. Start one with `ray start --head`.") from None

    def _give(self, actor: Any) -> None:
        work = self._waiting.popleft()
        self._flying[actor.compute.remote(work)] = actor, work

    def _lost(self, work: Work) -> Outcome | None:
        """Let another actor do a cell whose actor died; what came of it where that happened too often."""
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
