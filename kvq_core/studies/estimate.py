"""What a study will take, before it is started."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from kvq_core.machine.memory import free_bytes
from kvq_core.models import outline
from kvq_core.pipeline.estimate import estimate_on
from kvq_core.pipeline.timings import Cost
from kvq_core.record.beside import present_in
from kvq_core.record.store import Store, open_store
from kvq_core.studies.cells import Cell, CellPlan
from kvq_core.studies.rows import read_rows

SHARE = 0.8  # of the free memory that workers may take
_LOOKED_AT = 40  # cells of a model; the others are as they are


@dataclass(frozen=True)
class StudyEstimate:
    """``todo``: cells that the store knows nothing of; ``cost``: of them all on these workers of this machine, weights
    included."""

    id: str
    cells: int
    todo: int
    left_out: int
    workers: int
    cost: Cost

    def as_dict(self) -> dict[str, Any]:
        held = {name: value for name, value in vars(self).items() if name != "cost"}
        return {**held, "seconds": self.cost.seconds, "bytes": self.cost.bytes}

    @property
    def sentence(self) -> str:
        out = f", {self.left_out} prompt{'s' * (self.left_out != 1)} left out" if self.left_out else ""
        if not self.todo:
            return f"study {self.id}: {self.cells} cells, all of them there{out}."
        return (
            f"study {self.id}: {self.cells} cells, {self.todo} of them to compute{out}; on {self.workers} "
            f"worker{'s' * (self.workers != 1)} {self.cost.time} and {self.cost.bytes / 1e9:.2f} GB of memory."
        )


def estimate(
    planned: CellPlan, shard: tuple[int, int] | None = None, workers: int = 1, store: Store | None = None
) -> StudyEstimate:
    """Of what is left to do; ``store`` None: the one that KVQ_STORE names.

    Raises KvqError where a model or the store cannot be had.
    """
    own = planned.cells if shard is None else planned.shard(*shard)
    place = store or open_store()
    there, summed = present_in(place, (cell.id for cell in own)), read_rows(place, planned.id)
    without = (cell for cell in own if cell.id not in there and (cell.id, cell.prompt.id) not in summed)
    todo = list({cell.id: cell for cell in without}.values())
    seconds, most = 0.0, 0
    known = True
    for model in planned.models:
        cells = sorted((cell for cell in todo if cell.model == model), key=lambda cell: cell.tokens)
        if cells:
            each, peak = _of_model(cells)
            known &= each is not None
            seconds, most = seconds + (each or 0.0) * len(cells), max(most, peak)
    took = seconds / workers if known else None
    return StudyEstimate(planned.id, len(own), len(todo), len(planned.left_out), workers, Cost(took, most * workers))


def workers_here(planned: CellPlan, store: Store | None = None) -> int:
    """Processes that compute what is left of a study soonest: one a core, as many as memory and cells allow. One where
    a GPU is, which they would share, and where the store is this process's alone."""
    place = store or open_store()
    if torch.cuda.is_available() or place.scheme == "memory":
        return 1
    told = estimate(planned, store=place)
    fitting = int(SHARE * free_bytes() // max(1, told.cost.bytes))
    return max(1, min(torch.get_num_threads(), told.todo, fitting))


def _of_model(cells: list[Cell]) -> tuple[float | None, int]:
    """Mean seconds of a cell, and the largest peak in bytes."""
    model = outline(cells[0].model, cells[0].spec.revision)
    looked = [*cells[:: max(1, len(cells) // _LOOKED_AT)], cells[-1]]
    found = [estimate_on(model, cell.spec) for cell in looked]
    seconds = [each.cost.seconds for each in found if each.cost.seconds is not None]
    return fmean(seconds) if seconds else None, max(each.bytes for each in found)
