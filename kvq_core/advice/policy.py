"""A policy of layers for a study whose lanes will not do: scored on every other prompt of it, run on those between."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from kvq_core.advice.asked import Ask
from kvq_core.advice.choice import Option
from kvq_core.advice.grounds import Compared, PolicyGrounds
from kvq_core.advice.options import Place
from kvq_core.advice.turns import Turns
from kvq_core.analysis.verdict import TIERS
from kvq_core.decision.plans import Candidate, LayerPlan
from kvq_core.decision.scores import Sensitivity
from kvq_core.decision.sensitivity import Scored, measured
from kvq_core.decision.solver import Costs, Solved
from kvq_core.decision.spaces import SPACES, flags, solve, words_of
from kvq_core.decision.verify import ENDS, WIN
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel, load, outline
from kvq_core.spec import MAX_LANES, TENSORS, Lane
from kvq_core.store.store import Store
from kvq_core.studies.cells import Progress, plan
from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.prompts import Prompt
from kvq_core.studies.result import StudyResult
from kvq_core.studies.sources import Source
from kvq_core.studies.study import run_plan

if TYPE_CHECKING:
    import pandas as pd

LABEL = "policy"
ENDS_LABEL = "first and last two fp16"
CANDIDATES = 3  # formats that layers may be stored in, of those that lose least
STEP = 0.25  # bits an element between the budgets that are tried


@dataclass(frozen=True)
class Scoring:
    """How much scoring of layers may take: lanes ``at_once``, and ``passes`` of so many lanes over a prompt; None: any
    number."""

    at_once: int = MAX_LANES
    passes: int | None = None

    def needed(self, formats: int, layers: int) -> int:
        """Passes for one prompt."""
        return -(-formats * len(TENSORS) * layers // self.at_once)


@dataclass(frozen=True)
class Policy:
    """A lane of layers in different formats and the plainest one beside it, ``ends``; ``rows`` of both on the prompts
    that were not scored; ``flags`` of the engine; ``predicted``: nats by label, of lanes of the candidates alone."""

    lane: Lane
    ends: Lane
    rows: "pd.DataFrame"
    flags: str | None
    scores: Sensitivity
    candidates: tuple[Candidate, ...]
    predicted: dict[str, float] = field(default_factory=dict)

    def beside(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """A study's rows and its own, of the prompts that it was run on."""
        import pandas as pd

        own = self.rows[self.rows["lane"] == self.lane.label]
        return pd.concat([rows[rows["prompt"].isin(own["prompt"])], own], ignore_index=True)

    def judged(self, options: Sequence[Option], rows: "pd.DataFrame") -> list[Option]:
        """The options, its own with its flags, and refused where a uniform lane of no more bytes is nearly as good."""
        losses = rows.groupby("lane")["kld_mean"].mean()
        own = next(option for option in options if option.label == self.lane.label)
        best = _rival(own, options, losses)
        near = best is not None and losses[best.label] < WIN * losses[own.label]
        why = f"it loses over 1/{WIN} of what {best.label} does, which takes no more" if best and near else None
        done = replace(own, flags=self.flags, refused=why, policy=True)
        return [done if option is own else option for option in options]

    def grounds(self, options: Sequence[Option], rows: "pd.DataFrame", place: Place) -> PolicyGrounds:
        """It beside the best of the study's lanes of no more bytes, and beside the plainest policy."""
        losses = rows.groupby("lane")["kld_mean"].mean()
        own = next(option for option in options if option.label == self.lane.label)
        best, ends = _rival(own, options, losses), place.option(self.ends)
        losses[ends.label] = self.rows.loc[self.rows["lane"] == ends.label, "kld_mean"].mean()
        shown = [("policy", own), *([("one format", best)] if best is not None else []), ("ends", ends)]
        return PolicyGrounds(
            lanes=tuple(
                Compared(
                    what=what,
                    label=option.label,
                    lane=dict(option.lane),
                    bytes=option.nbytes,
                    predicted=self.predicted.get(option.label),
                    measured=float(losses[option.label]),
                )
                for what, option in shown
            ),
            beats=best is None or bool(WIN * losses[own.label] <= losses[best.label]),
            scored=len(self.scores.whole),
            unseen=int(rows["prompt"].nunique()),
            flags=self.flags,
        )


@dataclass(frozen=True)
class Without:
    """Why there is no policy; the ``scores`` and their ``candidates`` where layers were scored all the same."""

    why: str
    scores: Sensitivity | None = None
    candidates: tuple[Candidate, ...] = ()


def _rival(own: Option, options: Sequence[Option], losses: "pd.Series") -> Option | None:
    """The uniform lane of no more bytes that loses least; None where there is none."""
    others = [o for o in options if o.label != own.label and o.nbytes <= own.nbytes and o.label in losses]
    return min(others, key=lambda option: losses[option.label], default=None)


def policy_of(
    result: StudyResult,
    name: str,
    ask: Ask,
    store: Store,
    turns: Turns,
    progress: Progress,
    scoring: Scoring,
) -> Policy | Without | None:
    """Why there is none where the prompts are too few, the engine's policies are not known, or none is predicted to
    hold; None where it is wanted no more.

    What is scored is kept, and goes on where it stopped. Raises KvqError as scoring and studies do.
    """
    engine = ask.engine.lower() if ask.engine else None
    prompts, lanes = result.plan.prompts, result.plan.spec.comparison.lanes
    if len(prompts) < 2 * FEWEST:
        return Without(f"it takes {2 * FEWEST} prompts, {FEWEST} to score layers and {FEWEST} to verify it")
    if engine is not None and engine not in SPACES:
        return Without(f"what {ask.engine} loads of single layers is not known")
    model = outline(name, result.plan.spec.comparison.revision)
    taken = _candidates(result.table, lanes, engine, model)
    if not taken:
        return Without("no lane of the study is one format that single layers can have")
    candidates = [candidate for candidate, _ in taken]
    needed = scoring.needed(len(candidates), model.shape.layers)
    most = len(prompts) if scoring.passes is None else scoring.passes // needed
    if most < 1:
        return Without(f"scoring layers takes {needed} passes for each prompt, more than this instance allows")
    scores = _scored(model, prompts[::2][:most], candidates, turns, progress, scoring)
    return None if scores is None else _verified(result, model, ask, store, turns, progress, scores, taken)


def _verified(
    result: StudyResult,
    model: LoadedModel,
    ask: Ask,
    store: Store,
    turns: Turns,
    progress: Progress,
    scores: Sensitivity,
    taken: Sequence[tuple[Candidate, Lane]],
) -> Policy | Without | None:
    """The policy for these scores, run on the prompts between those that were scored."""
    engine = ask.engine.lower() if ask.engine else None
    candidates, costs = [candidate for candidate, _ in taken], scores.costs(model.shape)
    limit = ask.tolerance.kld if np.isfinite(ask.tolerance.kld) else TIERS[0].kld
    solved = _smallest(costs, limit, engine, candidates)
    if solved is None:
        return Without("none is predicted to hold", scores, tuple(candidates))
    formats = [lane for _, lane in taken]
    lane = _read_as(solved.plan.lane(candidates, LABEL), formats)
    plain = _plainest(costs, solved.nbytes)
    ends = _read_as(plain.plan.lane(candidates, ENDS_LABEL), formats)
    comparison = result.plan.spec.comparison.model_copy(update={"lanes": (lane, ends)})
    prompts = Source(rows=result.plan.prompts[1::2])
    spec = result.plan.spec.model_copy(
        update={"models": (model.id,), "comparison": comparison, "prompts": prompts},
    )
    rows = run_plan(plan(spec, progress), store, executor=turns, progress=progress).table
    if not turns.wanted:
        return None
    predicted = {LABEL: solved.predicted, ENDS_LABEL: plain.predicted}
    for candidate, each in taken:
        predicted[each.label] = costs.predicted(LayerPlan.uniform(costs.layers, candidate.name, candidate.name))
    said = flags(engine, solved.plan, candidates) if engine else None
    return Policy(lane, ends, rows, said, scores, tuple(candidates), predicted)


def _plainest(costs: Costs, budget: int) -> Solved:
    """One format with the first and last layers in fp16: the one that is predicted to lose least of those that take no
    more than the policy, else the smallest."""
    every = [Solved.of(LayerPlan.uniform(costs.layers, n, n).with_ends(ENDS), costs) for n in costs.names[:-1]]
    fitting = [each for each in every if each.nbytes <= budget]
    return min(fitting, key=lambda each: each.predicted) if fitting else min(every, key=lambda each: each.nbytes)


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
    model: LoadedModel,
    prompts: Sequence[Prompt],
    candidates: Sequence[Candidate],
    turns: Turns,
    progress: Progress,
    scoring: Scoring,
) -> Sensitivity | None:
    """None where they are wanted no more."""

    def passes() -> Iterator[Scored | Sensitivity]:
        yield from measured(load(model.id, model.revision), prompts, candidates, scoring.at_once)

    for event in turns.each(passes()):
        if isinstance(event, Sensitivity):
            return event
        progress("Scoring layers", event.done, event.total)
    return None


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
