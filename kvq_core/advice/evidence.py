"""A study's rows as what the advice is computed from: by prompt and lane how far each is from what is tolerated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvq_core.advice.ask import Tolerance
from kvq_core.analysis.choice import RECOMMENDED_FROM
from kvq_core.analysis.verdict import P99_FROM, most_flips
from kvq_core.errors import SpecError
from kvq_core.studies.intervals import FEWEST, mean_interval, share_interval

if TYPE_CHECKING:
    import pandas as pd

TAIL = 0.01  # of the positions lie above the 99th percentile
TASK_LOSS = 0.05  # of the right answers of one kind of task, which no lane may surely lose whatever the tolerance
Array = np.ndarray


@dataclass(frozen=True)
class Evidence:
    """Of the ``prompts`` that every lane has: ``kld`` (prompts, lanes) in nats, and for each thing that is tolerated a
    ``margin`` (prompts, lanes), whose sum over prompts is at most 0 where the lane holds. ``failed``: why a lane cannot
    be recommended whatever its mean: it failed on a prompt, or surely loses one group of prompts or tasks."""

    lanes: tuple[str, ...]
    prompts: tuple[str, ...]
    kld: Array
    margins: dict[str, Array]
    failed: dict[str, str]

    def at(self, lane: str) -> int:
        return self.lanes.index(lane)

    @property
    def enough(self) -> bool:
        """Whether there are as many prompts as intervals need."""
        return len(self.prompts) >= FEWEST

    @property
    def recommends(self) -> bool:
        """Whether there are as many prompts as it takes to say what to use."""
        return len(self.prompts) >= RECOMMENDED_FROM

    def holds(self, weights: Array) -> Array:
        """(draws, lanes): whether each lane holds on prompts that are counted ``weights`` (draws, prompts) times."""
        return np.all([weights @ margin <= 1e-12 for margin in self.margins.values()], axis=0)

    @property
    def holding(self) -> frozenset[str]:
        """The lanes that hold on the prompts as they are, each counted once."""
        (held,) = self.holds(np.full((1, len(self.prompts)), 1 / max(1, len(self.prompts))))
        return frozenset(lane for lane, good in zip(self.lanes, held, strict=True) if good)

    def tightest(self, lane: str) -> Array:
        """(prompts): of its margins the one that is the least sure to be on its side."""
        own = [margin[:, self.at(lane)] for margin in self.margins.values()]
        return min(own, key=lambda margin: abs(margin.mean()) / (margin.std() or 1e-12))


def evidence(table: "pd.DataFrame", lanes: Sequence[str], tolerance: Tolerance) -> Evidence:
    """Of one model's rows. Raises SpecError where tasks are asked for and the study has none, or no lane is done."""
    done = table.dropna(subset=["kld_mean"])
    broken = {str(lane) for lane in table.loc[table["kld_mean"].isna(), "lane"]}
    kept = [lane for lane in lanes if lane not in broken]
    if not kept or not len(done):
        raise SpecError("No lane of this study has figures of all prompts; run the study to its end first.")
    wide = done[done["lane"].isin(kept)].set_index(["prompt", "lane"])
    kld = wide["kld_mean"].unstack()[kept].dropna()

    def by_prompt(column: "pd.Series") -> Array:
        return column.unstack().loc[kld.index, kept].to_numpy(float)

    failed = {lane: "it failed on a prompt" for lane in lanes if lane in broken}
    failed |= {lane: why for lane in kept if (why := _loses(done[done["lane"] == lane], tolerance))}
    found = {name: by_prompt(column) for name, column in _margins(wide, tolerance).items()}
    return Evidence(tuple(kept), tuple(map(str, kld.index)), kld.to_numpy(float), found, failed)


def _margins(rows: "pd.DataFrame", tolerance: Tolerance) -> "dict[str, pd.Series]":
    """Raises SpecError where there are no tasks to lose."""
    if tolerance.task is not None:
        counted = rows["reference_correct"].eq(True)
        if not counted.any():
            raise SpecError("tolerance: this study has no task that the model gets right; give a tier or a mean KLD.")
        lost = counted & ~rows["correct"].eq(True)
        return {"tasks": lost.astype(float) - tolerance.task * counted}
    found = {"mean KLD": rows["kld_mean"] - tolerance.kld}
    if (bound := tolerance.tier) is None:
        return found
    apart = (rows["flips"] - rows["near_tie_flips"]).clip(lower=0)
    scored = rows["scored"].groupby("lane").transform("sum")
    found["flips"] = apart - scored.map(lambda count: most_flips(bound, count) / count) * rows["scored"]
    if (scored >= P99_FROM).all():
        above = rows["kld"].map(lambda tokens: float((np.asarray(tokens, float) > bound.p99).sum()))
        found["99th percentile"] = above - TAIL * rows["scored"]
    if np.isfinite(bound.repeats):
        found["own text"] = rows["repeats"].eq(True) - bound.repeats
    return found


def _loses(rows: "pd.DataFrame", tolerance: Tolerance) -> str | None:
    """Why a lane fails one group of prompts, or the tasks of one; None where no interval says so."""
    for group, own in rows.groupby("group", sort=False):
        named = f"group {group}" if group else "the tasks"
        if why := _fails_tasks(own, named, TASK_LOSS if tolerance.task is None else tolerance.task):
            return why
        found = mean_interval(own["kld_mean"].to_numpy()) if group and tolerance.task is None else None
        if found is not None and found.low is not None and found.low > tolerance.kld:
            return f"in {named} its mean KLD is {found.value:.2g} nats, {found.low:.2g} at least"
    return None


def _fails_tasks(rows: "pd.DataFrame", named: str, loss: float) -> str | None:
    counted = rows[rows["reference_correct"].eq(True)]
    right = share_interval(int(counted["correct"].eq(True).sum()), len(counted))
    if right is None or right.high is None or right.high >= 1 - loss:
        return None
    return (
        f"in {named} it gets {right.value:.0%} of the {len(counted)} tasks right that the model does, "
        f"{right.high:.0%} at most"
    )
