"""A policy of layers for a study whose lanes will not do: scored on every other prompt of it, run on those between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvq_core.advice.asked import Ask
from kvq_core.advice.choice import Option
from kvq_core.analysis.verdict import TIERS
from kvq_core.decision.plans import Candidate
from kvq_core.decision.scores import Sensitivity
from kvq_core.decision.sensitivity import measured
from kvq_core.decision.solver import Costs, Solved
from kvq_core.decision.spaces import SPACES, flags, solve, words_of
from kvq_core.decision.verify import WIN
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel, load
from kvq_core.spec import Lane
from kvq_core.store.store import Store
from kvq_core.studies.cells import Progress, plan
from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.result import StudyResult
from kvq_core.studies.sources import Source
from kvq_core.studies.study import run_plan

if TYPE_CHECKING:
    import pandas as pd

LABEL = "policy"
CANDIDATES = 3  # formats that layers may be stored in, of those that lose least
STEP = 0.25  # bits an element between the budgets that are tried


@dataclass(frozen=True)
class Policy:
    """A lane of layers in different formats, its rows on the prompts that were not scored, and its flags."""

    lane: Lane
    rows: "pd.DataFrame"
    flags: str | None

    def beside(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """A study's rows and its own, of the prompts that it was run on."""
        import pandas as pd

        return pd.concat([rows[rows["prompt"].isin(self.rows["prompt"])], self.rows], ignore_index=True)

    def judged(self, options: Sequence[Option], rows: "pd.DataFrame") -> list[Option]:
        """The options, its own with its flags, and refused where a uniform lane of no more bytes is nearly as good."""
        losses = rows.groupby("lane")["kld_mean"].mean()
        own = next(option for option in options if option.label == self.lane.label)
        others = [o for o in options if o is not own and o.nbytes <= own.nbytes and o.label in losses]
        best = min(others, key=lambda option: losses[option.label], default=None)
        near = best is not None and losses[best.label] < WIN * losses[own.label]
        why = f"it loses over 1/{WIN} of what {best.label} does, which takes no more" if best and near else None
        done = replace(own, flags=self.flags, refused=why, policy=True)
        return [done if option is own else option for option in options]


def policy_of(result: StudyResult, name: str, ask: Ask, store: Store, progress: Progress) -> Policy | None:
    """None where the prompts are too few, or the engine's policies are not known, or none is predicted to hold.

    What is scored is kept, and goes on where it stopped. Raises KvqError as scoring and studies do.
    """
    engine = ask.engine.lower() if ask.engine else None
    prompts, lanes = result.plan.prompts, result.plan.spec.comparison.lanes
    if len(prompts) < 2 * FEWEST or (engine is not None and engine not in SPACES):
        return None
    model = load(name, result.plan.spec.comparison.revision)
    taken = _candidates(result.table, lanes, engine, model)
    if not taken:
        return None
    candidates = [candidate for candidate, _ in taken]
    scores = _scored(model, prompts[::2], candidates, progress)
    limit = ask.tolerance.kld if np.isfinite(ask.tolerance.kld) else TIERS[0].kld
    solved = _smallest(scores.costs(model.shape), limit, engine, candidates)
    if solved is None:
        return None
    lane = _read_as(solved.plan.lane(candidates, LABEL), [lane for _, lane in taken])
    comparison = result.plan.spec.comparison.model_copy(update={"lanes": (lane,)})
    spec = result.plan.spec.model_copy(update={"comparison": comparison, "prompts": Source(rows=prompts[1::2])})
    rows = run_plan(plan(spec, progress), store, progress=progress).table
    return Policy(lane, rows, flags(engine, solved.plan, candidates) if engine else None)


def _candidates(
    table: "pd.DataFrame", lanes: Sequence[Lane], engine: str | None, model: LoadedModel
) -> list[tuple[Candidate, Lane]]:
    """Lanes of one rule in a format that single layers can have, those that lose least first, and no two alike."""
    losses = table.groupby("lane")["kld_mean"].mean()
    found: dict[object, tuple[Candidate, Lane]] = {}
    for lane in sorted(lanes, key=lambda each: losses.get(each.label, np.inf)):
        rule = lane.every_rule[0]
        candidate = Candidate.of(rule.build())
        plain = len(lane.every_rule) == 1 and rule.tensors == "both" and rule.layers == "all" and rule.tokens == "all"
        if not plain or candidate.why_not(model.shape) or lane.label not in losses:
            continue
        if engine is None or len(words_of(engine, [candidate])) > 1:
            found.setdefault(candidate.method, (candidate, lane))
    return list(found.values())[:CANDIDATES]


def _scored(
    model: LoadedModel, prompts: Sequence[object], candidates: Sequence[Candidate], progress: Progress
) -> Sensitivity:
    for event in measured(model, prompts, candidates):  # type: ignore[arg-type]
        if isinstance(event, Sensitivity):
            return event
        progress("Scoring layers", event.done, event.total)
    raise AssertionError("scoring ends with the scores")


def _smallest(costs: Costs, limit: float, engine: str | None, candidates: Sequence[Candidate]) -> Solved | None:
    """The policy of the fewest bits that is predicted to hold."""
    least = costs.nbytes.min(-1).sum() / costs.budget(16.0) * 16
    for bits in np.arange(least, 16.0, STEP):
        try:
            found = solve(costs, costs.budget(float(bits)) + 1, engine, candidates)
        except SpecError:
            continue
        if found.predicted <= limit:
            return found
    return None


def _read_as(lane: Lane, others: Sequence[Lane]) -> Lane:
    """A lane whose prompt is read as those of its formats are, where they agree."""
    ways = {str(other.prefill): other.prefill for other in others}
    if len(ways) != 1:
        return lane
    told = lane.model_dump(mode="json", exclude_defaults=True)
    return Lane.model_validate({**told, "prefill": next(iter(ways.values()))})
