"""The advice under a memory: which file of the weights leaves room for a lane that will do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvq_core.advice.answer import Study, advice_of
from kvq_core.advice.choice import Option
from kvq_core.advice.evidence import evidence
from kvq_core.advice.options import FP16, FitPlace
from kvq_core.advice.policy import LayerPolicy
from kvq_core.advice.report import Advice
from kvq_core.spec import Lane


@dataclass(frozen=True)
class PlacedAdvice:
    """The advice, and the place and the options that it is of."""

    advice: Advice
    place: FitPlace
    options: Sequence[Option]


def in_place(
    study: Study, lanes: Sequence[Lane], places: Sequence[FitPlace], policy: LayerPolicy | None = None
) -> PlacedAdvice:
    """The advice with the first weights with which a lane will do, else with the last. Raises SpecError as
    ``advice_of`` does, and where there is no place."""
    for place in places:
        options = [place.option(lane) for lane in lanes]
        if policy is not None:
            options = policy.judged(options, study.table)
        fp16 = replace(place.option(FP16), refused=None)
        here = replace(study, options=options, fp16=fp16, weights=place.weights)
        found = advice_of(replace(here, nearest_context=_nearest(here, lanes, place)), place.ask)
        if found.lane is not None or found.kind == "few" or place is places[-1]:
            return PlacedAdvice(found, place, options)
    raise AssertionError("there is a place at least")


def _nearest(study: Study, lanes: Sequence[Lane], place: FitPlace) -> int | None:
    """The longest context at which a lane fits that holds; None where none does, or no memory is to be fitted."""
    if place.ask.memory is None and place.ask.cache is None:
        return None
    found = evidence(study.table, [lane.label for lane in lanes], place.ask.tolerance)
    refused = {option.label for option in study.options if option.refused is not None}
    good = found.holding - set(found.failed) - refused
    return max((place.longest(lane) for lane in lanes if lane.label in good), default=0) or None
