"""What policies cost for every budget: free, and inside what each engine loads, from one set of scores."""

from collections.abc import Iterator, Sequence

import numpy as np

from kvq_core.decision.layer_plans import Candidate
from kvq_core.decision.solver import Costs, SolvedPolicy
from kvq_core.decision.spaces import MODELOPT, SPACES, engine_title, solve, version_of, words_of
from kvq_core.errors import SpecError
from kvq_core.spec.part import SpecPart

BUDGETS = 14  # between the smallest policy and fp16
_FREE = "any engine"


class FrontPoint(SpecPart):
    """A policy: ``bits`` of an element, ``bytes`` of TOKENS tokens, the loss that adding up predicts, in nats."""

    bits: float
    bytes: int
    predicted: float


class PolicyFront(SpecPart):
    """The least predicted loss by budget, losses falling. ``engine`` None: every layer may have any format, which no
    engine need load; ``version``: what was read of the engine; ``in_review``: only an open pull request reads such a
    map."""

    engine: str | None
    version: str | None
    in_review: bool
    points: tuple[FrontPoint, ...]

    @property
    def title(self) -> str:
        return _FREE if self.engine is None else self.engine


def fronts(costs: Costs, candidates: Sequence[Candidate]) -> tuple[PolicyFront, ...]:
    """The free front first, then those of the engines that have one of the candidates."""
    found = [_front(costs, candidates, None)]
    for engine in (*SPACES, MODELOPT):
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
        in_review=engine == MODELOPT,
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
