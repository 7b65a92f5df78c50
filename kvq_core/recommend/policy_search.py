"""Searches a layer policy for a study whose lanes will not do: scored on every other prompt of it, run on those
between; in turns at the machine, which a server gives out and a command takes all.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from kvq_core.analysis.verdict import TIERS
from kvq_core.errors import SpecError
from kvq_core.machine.progress import Progress, Report
from kvq_core.models import LoadedModel, load
from kvq_core.recommend.constraints import Ask
from kvq_core.recommend.engine_limits import SPACES, flags, solve
from kvq_core.recommend.fronts import candidates_of, plain_formats
from kvq_core.recommend.held_out import ENDS, DeployedLane, deployed_lanes
from kvq_core.recommend.layer_plans import NOT_ALIKE, Candidate, LayerPlan
from kvq_core.recommend.policies import LayerPolicy, ScoringBudget, Without
from kvq_core.recommend.sensitivity import Sensitivity, score_layers
from kvq_core.recommend.solver import Costs, SolvedPolicy
from kvq_core.record.store import Store
from kvq_core.spec import Lane
from kvq_core.studies.cells import plan
from kvq_core.studies.executors import CellWork, InProcess, Outcome, Processes
from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.result import StudyResult
from kvq_core.studies.sources import PromptSource
from kvq_core.studies.study import run_plan

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class SharedExecutor(Protocol):
    """An executor of studies' cells that also has other work done."""

    @property
    def wanted(self) -> bool:
        """Whether what is computed is still waited for."""

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        """As an executor of studies."""

    def each(self, work: Iterator[T]) -> Iterator[T]:
        """Every step of some work in a turn of its own; ends early where it is wanted no more."""


@dataclass
class Here:
    """The whole machine, until all is done; cells of studies on so many ``workers``."""

    workers: int = 1
    wanted = True

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        yield from (InProcess() if self.workers == 1 else Processes(self.workers)).run(works)

    def each(self, work: Iterator[T]) -> Iterator[T]:
        yield from work


LABEL = "policy"
ENDS_LABEL = "first and last two fp16"
STEP = 0.25  # bits an element between the budgets that are tried
SPARE = (1.0, 1.5, 3.0)  # times below the tolerance that policies are predicted to lose: predictions may be too low


@dataclass(frozen=True)
class PolicyTrial:
    """A policy for ``model`` on a study's prompts: what is scored and run is kept, and goes on where it stopped."""

    result: StudyResult
    model: LoadedModel
    ask: Ask
    store: Store
    turns: SharedExecutor
    progress: Report
    scoring: ScoringBudget

    def found(self) -> LayerPolicy | Without | None:
        """Why there is none where the prompts are too few, the engine's policies are not known, or none is predicted
        to hold; None where it is wanted no more. Raises KvqError as scoring and studies do."""
        prompts, shape = self.result.plan.prompts, self.model.shape
        if not shape.uniform:
            return Without(NOT_ALIKE)
        if len(prompts) < 2 * FEWEST:
            return Without(f"it takes {2 * FEWEST} prompts, {FEWEST} to score layers and {FEWEST} to verify it")
        if self._engine is not None and self._engine not in SPACES:
            return Without(f"what {self.ask.engine} loads of single layers is not known")
        taken = candidates_of(self._losses, self._lanes, self._engine, shape, self._limit)
        if not taken:
            return Without("no lane of the study is one format that single layers can have")
        needed = self.scoring.needed(len(taken), shape.layers)
        most = len(prompts) if self.scoring.passes is None else self.scoring.passes // needed
        if most < 1:
            return Without(f"scoring layers takes {needed} passes for each prompt, more than this instance allows")
        scores = self._scored([candidate for candidate, _ in taken], most)
        return None if scores is None else self._verified(scores, taken)

    @property
    def _engine(self) -> str | None:
        """As the command names it."""
        return self.ask.engine.lower() if self.ask.engine else None

    @property
    def _limit(self) -> float:
        """Mean KLD in nats that is tolerated; of a tolerance of tasks the nearest tier's."""
        return self.ask.tolerance.kld if np.isfinite(self.ask.tolerance.kld) else TIERS[0].kld

    @property
    def _lanes(self) -> tuple[Lane, ...]:
        return self.result.plan.spec.comparison.lanes

    @property
    def _losses(self) -> "pd.Series":
        """Mean KLD in nats by label."""
        table = self.result.table
        return table[table["model"] == self.model.title].groupby("lane")["kld_mean"].mean()

    def _scored(self, candidates: Sequence[Candidate], most: int) -> Sensitivity | None:
        """None where they are wanted no more."""

        def passes() -> Iterator[Progress | Sensitivity]:
            prompts = self.result.plan.prompts[::2][:most]
            yield from score_layers(load(self.model.id, self.model.revision), prompts, candidates, self.scoring.at_once)

        for event in self.turns.each(passes()):
            if isinstance(event, Sensitivity):
                return event
            self.progress(event)
        return None

    def _verified(self, scores: Sensitivity, taken: Sequence[tuple[Candidate, Lane]]) -> LayerPolicy | Without | None:
        """The policy for these scores, run on the prompts between those that were scored."""
        candidates, costs = tuple(candidate for candidate, _ in taken), scores.costs(self.model.shape)
        found = (smallest(costs, self._limit / spare, self._engine, candidates) for spare in SPARE)
        tried = list({each.plan: each for each in found if each is not None}.values())
        if not tried:
            return Without("none is predicted to hold", scores, candidates)
        plain = plainest(costs, tried[-1].nbytes)
        there = [each for each, _ in plain_formats(self._lanes)]
        room = max(0, self.scoring.at_once - len(tried) - 1)  # what a run may hold here
        others = deployed_lanes(self.model.shape, tried[-1].nbytes, self.ask.engine, there)[:room]
        own = [each.plan.lane(candidates, f"{LABEL} {at}") for at, each in enumerate(tried)]
        every = [*own, plain.plan.lane(candidates, ENDS_LABEL), *(each.titled for each in others)]
        lanes = [read_as(lane, [each for _, each in taken]) for lane in every]
        rows = self._run(lanes)
        if rows is None:
            return None
        at = self._chosen(rows, tried)
        chosen, ends, titled = tried[at], lanes[len(tried)], lanes[len(tried) + 1 :]
        predicted = {LABEL: chosen.predicted, ENDS_LABEL: plain.predicted}
        for candidate, lane in taken:
            predicted[lane.label] = costs.predicted(LayerPlan.uniform(costs.layers, candidate.name, candidate.name))
        return LayerPolicy(
            lane=lanes[at].model_copy(update={"label": LABEL}),
            ends=ends,
            offered=front_of(titled, rows, others),
            rows=rows.assign(lane=rows["lane"].replace(f"{LABEL} {at}", LABEL)),
            flags=flags(self._engine, chosen.plan, candidates) if self._engine else None,
            scores=scores,
            candidates=candidates,
            predicted=predicted,
        )

    def _run(self, lanes: Sequence[Lane]) -> "pd.DataFrame | None":
        """Rows of these lanes on the prompts that were not scored; None where they are wanted no more."""
        spec = self.result.plan.spec
        own = {
            "models": (self.model.id,),
            "comparison": spec.comparison.model_copy(update={"lanes": tuple(lanes)}),
            "prompts": PromptSource(rows=self.result.plan.prompts[1::2]),
        }
        planned = plan(spec.model_copy(update=own), self.progress)
        done = run_plan(planned, self.store, executor=self.turns, progress=self.progress)
        return done.table if self.turns.wanted else None

    def _chosen(self, rows: "pd.DataFrame", tried: Sequence[SolvedPolicy]) -> int:
        """Of policies of rising bytes the first that holds as it was measured, else the one that loses least."""
        means = rows.groupby("lane")["kld_mean"].mean()
        losses = [float(means.get(f"{LABEL} {at}", np.inf)) for at in range(len(tried))]
        return next((at for at, loss in enumerate(losses) if loss <= self._limit), int(np.argmin(losses)))


def smallest(costs: Costs, limit: float, engine: str | None, candidates: Sequence[Candidate]) -> SolvedPolicy | None:
    """The policy of the fewest bits that is predicted to lose at most ``limit`` nats."""
    least = costs.nbytes.min(-1).sum() / costs.budget(16.0) * 16
    for bits in np.arange(least, 16.0, STEP):
        try:
            found = solve(costs, costs.budget(float(bits)) + 1, engine, candidates)
        except SpecError:
            continue
        if found.predicted <= limit:
            return found
    return None


def plainest(costs: Costs, budget: int) -> SolvedPolicy:
    """One format with the first and last layers in fp16: the one that is predicted to lose least of those that take no
    more than the policy, else the smallest."""
    every = [SolvedPolicy.of(LayerPlan.uniform(costs.layers, n, n).with_ends(ENDS), costs) for n in costs.names[:-1]]
    fitting = [each for each in every if each.nbytes <= budget]
    return min(fitting, key=lambda each: each.predicted) if fitting else min(every, key=lambda each: each.nbytes)


def front_of(lanes: Sequence[Lane], rows: "pd.DataFrame", beside: Sequence[DeployedLane]) -> tuple[Lane, ...]:
    """The lanes that ran on every prompt and that none of the others beats in bytes and loss."""
    means = rows.groupby("lane")["kld_mean"].agg(lambda klds: klds.mean(skipna=False)).dropna()
    each_of = zip(lanes, beside, strict=True)
    known = [(lane, (each.nbytes, means[lane.label])) for lane, each in each_of if lane.label in means]
    return tuple(lane for lane, told in known if not any(_beats(other, told) for _, other in known))


def _beats(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """In bytes and loss."""
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def read_as(lane: Lane, others: Sequence[Lane]) -> Lane:
    """A lane whose prompt is read as those of its formats are, where they agree."""
    ways = {str(other.prefill): other.prefill for other in others}
    if len(ways) != 1:
        return lane
    told = lane.model_dump(mode="json", exclude_defaults=True)
    return Lane.model_validate({**told, "prefill": next(iter(ways.values()))})
