"""What policies cost for every budget, free and inside what each engine loads, from one set of scores; and in which
formats of a study's lanes single layers are scored: a few of the front of bytes and loss.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape
from kvq_core.recommend.engine_limits import SPACES, engine_title, solve, version_of, words_of
from kvq_core.recommend.layer_plans import Candidate
from kvq_core.recommend.solver import Costs, SolvedPolicy
from kvq_core.spec import TENSORS, Lane
from kvq_core.spec.part import SpecPart

if TYPE_CHECKING:
    import pandas as pd

BUDGETS = 14  # between the smallest policy and fp16
_FREE = "any engine"


class FrontPoint(SpecPart):
    """A policy: ``bits`` of an element, ``bytes`` of TOKENS tokens, the loss that adding up predicts, in nats."""

    bits: float
    bytes: int
    predicted: float


class PolicyFront(SpecPart):
    """The least predicted loss by budget, losses falling. ``engine`` None: every layer may have any format, which no
    engine need load; ``version``: what was read of the engine."""

    engine: str | None
    version: str | None
    points: tuple[FrontPoint, ...]

    @property
    def title(self) -> str:
        return _FREE if self.engine is None else self.engine


def fronts(costs: Costs, candidates: Sequence[Candidate]) -> tuple[PolicyFront, ...]:
    """The free front first, then those of the engines that have one of the candidates."""
    found = [_front(costs, candidates, None)]
    for engine in SPACES:
        if len(words_of(engine, candidates)) > 1:
            found.append(_front(costs, candidates, engine))
    return tuple(found)


def _front(costs: Costs, candidates: Sequence[Candidate], engine: str | None) -> PolicyFront:
    points: list[FrontPoint] = []
    for solved in _solved(costs, candidates, engine):
        if not points or solved.predicted < points[-1].predicted - 1e-12:
            bits = 16 * solved.nbytes / costs.budget(16.0)
            points.append(FrontPoint(bits=bits, bytes=solved.nbytes, predicted=solved.predicted))
    return PolicyFront(
        engine=engine_title(engine) if engine else None,
        version=version_of(engine) if engine else None,
        points=tuple(points),
    )


def _solved(costs: Costs, candidates: Sequence[Candidate], engine: str | None) -> Iterator[SolvedPolicy]:
    """Policies of rising budgets; those that hold nothing of the space are passed over."""
    least, most = int(costs.nbytes.min(-1).sum()), costs.budget(16.0)
    for budget in np.geomspace(least, most, BUDGETS):
        try:
            yield solve(costs, int(np.ceil(budget)), engine, candidates)
        except SpecError:
            continue


CANDIDATES = 3  # formats that layers may be stored in
FAR = 100  # times the tolerance: formats that lose more as a whole are worth no layer's scoring


def candidates_of(
    losses: "pd.Series", lanes: Sequence[Lane], engine: str | None, shape: ModelShape, limit: float
) -> list[tuple[Candidate, Lane]]:
    """At most CANDIDATES formats with a lane of each, the smallest first.

    ``losses``: mean KLD in nats by label; ``limit``: what is tolerated. Of the formats that no other beats in bytes and
    loss, the first that holds by itself and smaller ones, whose worst layers it, or fp16, may take over: a larger one
    would do no more than it does.
    """
    front = _lanes_in_front(losses, list(_single(losses, lanes, engine, shape)), shape)
    holding = [at for at, (_, lane) in enumerate(front) if losses[lane.label] <= limit]
    last = max(holding[0] if holding else len(front) - 1, min(1, len(front) - 1))
    own = [each for each in front[: last + 1] if losses[each[1].label] <= FAR * limit] or front[last : last + 1]
    at = np.linspace(len(own) - 1, 0, min(CANDIDATES, len(own))).round().astype(int)
    return [own[each] for each in sorted(set(at.tolist()))]


def plain_formats(lanes: Sequence[Lane]) -> Iterator[tuple[Candidate, Lane]]:
    """Of lanes that store all layers, tensors and tokens in one format, that format."""
    for lane in lanes:
        rule = lane.every_rule[0]
        if len(lane.every_rule) == 1 and rule.tensors == "both" and rule.layers == "all" and rule.tokens == "all":
            yield Candidate.of(rule.build()), lane


def _single(
    losses: "pd.Series", lanes: Sequence[Lane], engine: str | None, shape: ModelShape
) -> Iterator[tuple[Candidate, Lane]]:
    """Formats that single layers can have, in the engine as the command names it; no two alike."""
    found: dict[object, tuple[Candidate, Lane]] = {}
    for candidate, lane in plain_formats(lanes):
        if candidate.why_not(shape) or lane.label not in losses:
            continue
        if engine is None or len(words_of(engine, [candidate])) > 1:
            found.setdefault(candidate.method, (candidate, lane))
    yield from found.values()


def _lanes_in_front(
    losses: "pd.Series", every: list[tuple[Candidate, Lane]], shape: ModelShape
) -> list[tuple[Candidate, Lane]]:
    """By rising bytes, each losing less than all before it."""
    front: list[tuple[Candidate, Lane]] = []
    for each in sorted(every, key=lambda one: (_bytes(one[0], shape), losses[one[1].label])):
        if not front or losses[each[1].label] < losses[front[-1][1].label]:
            front.append(each)
    return front


def _bytes(candidate: Candidate, shape: ModelShape) -> int:
    return sum(candidate.layer_bytes(tensor, shape) for tensor in TENSORS)
