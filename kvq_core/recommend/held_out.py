"""Checks whether a policy holds on prompts that it has not seen, beside what is simpler: uniform lanes of every format
that engines ship, as it is and with each transform.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from kvq_core.analysis.deploy import of_rules
from kvq_core.errors import SpecError
from kvq_core.machine.progress import Progress
from kvq_core.methods import LayerKind, Method, ModelShape
from kvq_core.models import LoadedModel
from kvq_core.pipeline.lanes import rule_record
from kvq_core.recommend.engine_flags import engine_formats
from kvq_core.recommend.engine_limits import engine_title, flags, solve, version_of
from kvq_core.recommend.layer_plans import TOKENS, Candidate, LayerPlan
from kvq_core.recommend.sensitivity import (
    Sensitivity,
    followed_answer,
    identity,
    lane_losses,
    losses_of_some,
)
from kvq_core.recommend.solver import Costs, SolvedPolicy, uniform
from kvq_core.sizing.count import CacheBytes, cache_bytes
from kvq_core.spec import Lane
from kvq_core.spec.part import SpecPart
from kvq_core.studies.prompts import StudyPrompt

FORMATS = 10  # that are measured, those of the most bytes that fit
# words for each transform of a format, and what a rule says of it
TRANSFORMS: dict[str, dict[str, Any]] = {
    "": {},
    ", keys centred": {"center": "mean"},
    ", rotated": {"rotate": "hadamard"},
}


@dataclass(frozen=True)
class DeployedLane:
    """``nbytes`` of TOKENS tokens, means of centred keys included; ``title``: the format and its transform."""

    lane: Lane
    nbytes: int
    title: str

    @property
    def titled(self) -> Lane:
        """The lane under its title."""
        return self.lane.model_copy(update={"label": self.title})


def deployed_lanes(
    shape: ModelShape, budget: int, engine: str | None, but: Sequence[Candidate] = ()
) -> list[DeployedLane]:
    """Of at most ``budget`` bytes, labelled by their numbers; of an engine that is named only what its flags can say.
    ``but``: formats that are candidates, which are left out as they are."""
    every = [each for each in engine_formats() if each.why_not(shape) is None and not _windowed(each.method)]
    sizes = {each: _taken(Lane.model_validate(each.data), shape) for each in every}
    own = sorted((each for each in every if sizes[each] <= budget), key=lambda each: -sizes[each])[:FORMATS]
    plain = {each.method for each in but}
    found: list[DeployedLane] = []
    for candidate in own:
        for words, transform in TRANSFORMS.items():
            lane = _lane(candidate, transform, f"offered {len(found)}")
            known = not transform and candidate.method in plain
            if lane is None or known or lane.why_not(shape) or (nbytes := _taken(lane, shape)) > budget:
                continue
            if engine is None or flags_of(lane, engine, shape.kinds) is not None:
                found.append(DeployedLane(lane, round(nbytes), f"{candidate.name}{words}"))
    return found


def flags_of(lane: Lane, engine: str, layers: Sequence[LayerKind]) -> str | None:
    """The command of an engine by its name; None where it cannot have the lane."""
    ways, _ = of_rules([rule_record(rule) for rule in lane.every_rule], layers)
    return next((way.how for way in ways if way.tool == engine), None)


def _windowed(method: Method) -> bool:
    """Whether some tokens stay in full precision, as on short prompts all of them would, at bytes of longer ones."""
    return any(window.packed(TOKENS) < TOKENS for window in method.windows())


def _taken(lane: Lane, shape: ModelShape) -> float:
    """Bytes of TOKENS tokens; none are enough of a lane whose bytes are not known."""
    found = cache_bytes(lane, shape, TOKENS, TOKENS)
    return found.tensors if isinstance(found, CacheBytes) else inf


def _lane(candidate: Candidate, transform: dict[str, Any], label: str) -> Lane | None:
    """None where the method refuses the transform."""
    try:
        return Lane.model_validate({**candidate.data, **transform, "label": label})
    except (SpecError, ValueError):
        return None


def measured_of(
    losses: Sequence[dict[str, float]], some: Sequence[DeployedLane]
) -> Iterator[tuple[DeployedLane, float]]:
    """Those that ran on every prompt, with their mean loss in nats."""
    for each in some:
        own = [found[each.lane.label] for found in losses if each.lane.label in found]
        if len(own) == len(losses):
            yield each, sum(own) / len(own)


ENDS = 2  # first and last layers that stay fp16 in the plainest policy there is
WIN = 2  # times the policy's loss that the best uniform lane has to lose at least, for the policy to be the answer
UNIFORM = 12  # uniform lanes that are measured, those of least predicted loss


class MeasuredLane(SpecPart):
    """A lane and what it came to: ``bytes`` of 1,024 tokens, nats predicted by adding up, None of lanes that are of no
    candidate, and measured."""

    lane: dict[str, Any]
    bytes: int
    predicted: float | None
    measured: float


class MeasuredPolicy(SpecPart):
    """The answer for a budget of ``budget`` bytes. ``lane``, ``bytes``, ``predicted`` and ``measured`` are those of the
    policy where it ``beats`` the best ``uniform`` lane of no more bytes, else of that lane; ``policy`` has the policy's
    in both cases; the uniform lane is of any format that engines ship, as it is or transformed. ``ends``: the best
    format with first and last layers in fp16, of no more bytes where one fits. ``flags``: of the engine; None where no
    engine was named, or it has no such lane."""

    id: str
    engine: str | None
    version: str | None
    budget: int
    prompts: int
    lane: dict[str, Any]
    bytes: int
    predicted: float | None
    measured: float
    beats: bool
    policy: MeasuredLane
    uniform: MeasuredLane
    ends: MeasuredLane
    flags: str | None


@dataclass(frozen=True)
class VerifiedOffer:
    """What is run on the prompts: the policy, uniform lanes, and the ends apart."""

    policy: SolvedPolicy
    uniform: tuple[SolvedPolicy, ...]
    ends: tuple[SolvedPolicy, ...]

    @classmethod
    def of(cls, costs: Costs, budget: int, engine: str | None, candidates: Sequence[Candidate]) -> "VerifiedOffer":
        """Raises SpecError where nothing fits the budget."""
        policy = solve(costs, budget, engine, candidates)
        whole = uniform(costs, budget)[:UNIFORM]
        if not whole:
            raise SpecError(f"No uniform lane takes {budget:,} bytes or fewer, so there is nothing to compare with.")
        apart = [
            SolvedPolicy.of(LayerPlan.uniform(costs.layers, name, name).with_ends(ENDS), costs)
            for name in costs.names[:-1]
        ]
        fitting = [each for each in apart if each.nbytes <= budget]
        return cls(policy, tuple(whole), tuple(fitting or [min(apart, key=lambda each: each.nbytes)]))

    @property
    def every(self) -> list[SolvedPolicy]:
        """Each plan once, the policy first."""
        return list({each.plan: each for each in (self.policy, *self.uniform, *self.ends)}.values())


def verify(
    model: LoadedModel, scores: Sensitivity, bits: float, engine: str | None, prompts: Sequence[StudyPrompt]
) -> Iterator[Progress | MeasuredPolicy]:
    """The policy of so many bits an element, verified by a run on prompts; it comes last.

    Raises SpecError where the prompts were among those that were scored, or nothing fits.
    """
    seen = [prompt.id or str(n) for n, prompt in enumerate(prompts, 1) if identity(prompt) in scores.klds]
    if seen:
        raise SpecError(f"Prompts {', '.join(seen[:3])} were scored; a policy is checked on prompts it has not seen.")
    candidates = [Candidate.parse(name) for name in scores.formats]
    costs = scores.costs(model.shape)
    offer = VerifiedOffer.of(costs, costs.budget(bits), engine, candidates)
    lanes = [each.plan.lane(candidates, str(n)) for n, each in enumerate(offer.every)]
    others = deployed_lanes(model.shape, costs.budget(bits), engine_title(engine) if engine else None, candidates)
    rows, beside = [], []
    for done, prompt in enumerate(prompts, 1):
        follow = followed_answer(model, prompt)
        rows.append(lane_losses(model, prompt, lanes, follow))
        if others:
            beside.append(losses_of_some(model, prompt, [each.lane for each in others], follow))
        yield Progress("Verifying", done, len(prompts), "prompts")
    means = dict(zip((each.plan for each in offer.every), np.mean(rows, 0).tolist(), strict=True))
    shipped = [
        MeasuredLane(lane=_data(each.lane), bytes=each.nbytes, predicted=None, measured=loss)
        for each, loss in measured_of(beside, others)
    ]
    yield verification(scores.id, engine, costs.budget(bits), len(prompts), offer, means, candidates, shipped)


def verification(
    id: str,
    engine: str | None,
    budget: int,
    prompts: int,
    offer: VerifiedOffer,
    means: dict[LayerPlan, float],
    candidates: Sequence[Candidate],
    shipped: Sequence[MeasuredLane] = (),
) -> MeasuredPolicy:
    """The answer for an offer whose plans lost ``means`` on so many prompts, in nats; ``shipped``: other uniform lanes
    of no more bytes."""

    def least(found: Sequence[SolvedPolicy]) -> SolvedPolicy:
        return min(found, key=lambda each: means[each.plan])

    def told(solved: SolvedPolicy) -> MeasuredLane:
        lane = _data(solved.plan.lane(candidates))
        return MeasuredLane(lane=lane, bytes=solved.nbytes, predicted=solved.predicted, measured=means[solved.plan])

    own = least(offer.uniform)
    uniform = min([told(own), *shipped], key=lambda each: each.measured)
    beats = WIN * means[offer.policy.plan] <= uniform.measured
    answer = told(offer.policy) if beats else uniform
    layers = [LayerKind(kind="full")] * len(offer.policy.plan.keys)  # of other models no layer is scored
    return MeasuredPolicy(
        **answer.model_dump(),
        id=id,
        engine=engine_title(engine) if engine else None,
        version=version_of(engine) if engine else None,
        budget=budget,
        prompts=prompts,
        beats=beats,
        policy=told(offer.policy),
        uniform=uniform,
        ends=told(least(offer.ends)),
        flags=_flags(engine, offer.policy.plan if beats else own.plan, candidates)
        if answer is not uniform or uniform not in shipped
        else _shipped_flags(engine, answer, layers),
    )


def _flags(engine: str | None, plan: LayerPlan, candidates: Sequence[Candidate]) -> str | None:
    """None for a lane that the engine cannot have, such as a uniform one whose keys and values differ."""
    if engine is None or (engine == "vllm" and plan.keys != plan.values):
        return None
    try:
        return flags(engine, plan, candidates)
    except (KeyError, SpecError):
        return None


def _shipped_flags(engine: str | None, answer: MeasuredLane, layers: Sequence[LayerKind]) -> str | None:
    return None if engine is None else flags_of(Lane.model_validate(answer.lane), engine_title(engine), layers)


def _data(lane: Lane) -> dict[str, Any]:
    return {
        name: value for name, value in lane.model_dump(mode="json", exclude_defaults=True).items() if name != "label"
    }
