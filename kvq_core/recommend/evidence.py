"""A study's rows as evidence: by prompt and lane how far each is from what is tolerated; which lane is the answer, and
in how many resamples of the prompts it still is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from kvq_core.analysis.choice import RECOMMENDED_FROM
from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.analysis.verdict import P99_FROM, most_flips
from kvq_core.errors import SpecError
from kvq_core.recommend.constraints import Tolerance
from kvq_core.studies.intervals import FEWEST, mean_interval, share_interval
from kvq_core.studies.pairs import PairedDifference, needed_prompts

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


RESAMPLES = 2000
SAME = 0.02  # lanes whose bytes differ by no more are alike in size; of these the one that loses least is the answer


@dataclass(frozen=True)
class Option:
    """A lane as it would be deployed. ``nbytes``: of its cache for all sequences, None where they are not known;
    ``reserved``: whether these are what the engine sets aside, else what the tensors take; ``shared``: of codebooks and
    the like, once beside them; ``host_copy``: in the host's memory; ``counted``: what of it follows from random numbers
    or from a formula; ``fits``: None where no room was given, or the weights are not known; ``flags``: the command of
    the engine named, of the first that has it where none is; ``refused``: why the engine named cannot have it, or that
    its bytes are not known; ``unread``: that it read its prompts otherwise than its engine does, which leaves it
    without flags. ``policy``: whether layers differ in it."""

    label: str
    lane: dict[str, object]
    nbytes: int | None
    reserved: bool = False
    shared: int = 0
    host_copy: int = 0
    counted: tuple[str, ...] = ()
    fits: bool | None = None
    flags: str | None = None
    refused: str | None = None
    unread: str | None = None
    policy: bool = False

    @property
    def size(self) -> float:
        """Its bytes to compare by: one whose are not known is larger than all."""
        return inf if self.nbytes is None else self.nbytes


@dataclass(frozen=True)
class AdvisedChoice:
    """``best``: the answer, None where no lane will do; ``agreement``: the share of resamples of the prompts with the
    same answer, None of too few prompts; ``rival``: what most of the others say, None where they say that none will do,
    or there are no others; ``second``: the answer without the best; ``depends``: the lane of which it is open whether
    it holds, None where that decides nothing: which of two lanes alike in size loses less is open then, or nothing is;
    ``more``: prompts beside those there are that would tell, None where no number that anybody asks would."""

    best: str | None
    agreement: float | None
    rival: str | None
    second: str | None
    depends: str | None
    more: int | None

    @property
    def sure(self) -> bool:
        return self.agreement is not None and self.agreement >= CONFIDENCE


def choose_option(
    found: Evidence, options: Sequence[Option], pair: Callable[[str, str], PairedDifference]
) -> AdvisedChoice:
    """The smallest lane that fits, that the engine has and that holds on the prompts; of lanes alike in size the one
    that loses least. ``agreement`` counts how often prompts drawn with replacement give the same; ``pair``: how the
    study compares two lanes."""
    usable, sizes = _had(found, options)
    count = len(found.prompts)
    (best,) = _best(found, np.full((1, count), 1 / count), usable, sizes)
    others = usable.copy()
    others[best] &= best < 0
    (second,) = _best(found, np.full((1, count), 1 / count), others, sizes)
    if not found.enough:
        return AdvisedChoice(_name(found, best), None, None, _name(found, second), None, None)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    drawn = _best(found, draws / count, usable, sizes)
    agreement = float((drawn == best).mean())
    rest = drawn[drawn != best]
    names, times = np.unique(rest, return_counts=True)
    rival = int(names[times.argmax()]) if len(rest) else -1
    depends, more = (None, None) if agreement >= CONFIDENCE else _open(found, best, rival, sizes, pair)
    return AdvisedChoice(_name(found, best), agreement, _name(found, rival), _name(found, second), depends, more)


def best_lane(found: Evidence, options: Sequence[Option]) -> str | None:
    """The answer that ``choose_option`` gives on the prompts as they are, however few; None where no lane will do."""
    usable, sizes = _had(found, options)
    count = len(found.prompts)
    (best,) = _best(found, np.full((1, count), 1 / count), usable, sizes)
    return _name(found, best)


def _had(found: Evidence, options: Sequence[Option]) -> tuple[Array, Array]:
    """Of every lane whether it can be had at all, and its bytes."""
    by_label = {option.label: option for option in options}
    own = [by_label[lane] for lane in found.lanes]
    usable = np.array([o.fits is not False and o.refused is None and o.label not in found.failed for o in own])
    return usable, np.array([option.size for option in own])


def _best(found: Evidence, weights: Array, usable: Array, sizes: Array) -> Array:
    """(draws): the number of the lane that is the answer, -1 where none will do."""
    allowed = found.holds(weights) & usable
    bytes_ = np.where(allowed, sizes, np.inf)
    least = bytes_.min(1, keepdims=True)
    near = allowed & (bytes_ <= least * (1 + SAME))
    loss = np.where(near, weights @ found.kld, np.inf)
    return np.where(allowed.any(1), loss.argmin(1), -1)


def _name(found: Evidence, at: int) -> str | None:
    return None if at < 0 else found.lanes[at]


def _open(
    found: Evidence, best: int, rival: int, sizes: Array, pair: Callable[[str, str], PairedDifference]
) -> tuple[str | None, int | None]:
    """``depends`` and ``more`` of the choice: of lanes alike in size that the study does not tell apart as many prompts
    as it asks for, else those with which a t test tells whether the first choice holds."""
    at = sorted((each for each in (best, rival) if each >= 0), key=lambda each: sizes[each])
    first = found.lanes[at[0]]
    if len(at) == 2 and sizes[at[1]] - sizes[at[0]] <= SAME * sizes[at[0]]:
        told = pair(*(found.lanes[each] for each in at))
        if not told.apart:
            return None, None if told.needed is None else max(1, told.needed - told.prompts)
        first = told.a if told.difference < 0 else told.b
    what = found.tightest(first)
    spread = float(what.std(ddof=1))
    needed = needed_prompts(float(what.mean()) / spread, 1) if spread > 0 else None
    return first, None if needed is None else max(1, needed - len(what))
