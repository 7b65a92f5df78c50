"""A decision: what was asked, the recommendation from a study and what it rests on, kept in the store under a hash of
all that; and which file of the weights leaves room for a lane that will do.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvq_core.complaints import first_line
from kvq_core.errors import SpecError, StoreError, excerpt
from kvq_core.inspection import Inspection
from kvq_core.inspection.look import stored_inspection
from kvq_core.models import outline
from kvq_core.recommend.answer import Study, advice_of
from kvq_core.recommend.constraints import CONTEXT, Advice, Ask, Tolerance, engine_of
from kvq_core.recommend.evidence import Option, evidence
from kvq_core.recommend.fronts import fronts
from kvq_core.recommend.options import FP16, FitPlace, model_shape, own_weights, weights_files
from kvq_core.recommend.policies import Grounds, LaneFit, LayerPolicy, Without, signs_of
from kvq_core.record.beside import is_id, read_beside, write_beside
from kvq_core.record.store import Store
from kvq_core.sizing.fit import memory_of
from kvq_core.spec import Lane, canonical_json
from kvq_core.spec.part import SpecPart
from kvq_core.studies.result import StudyResult

VERSION = 1  # raised whenever what is kept changes its form
_NAME = "decisions/{}.json"


class DecisionRequest(SpecPart):
    """What was asked, in the words it was given in: at most one of ``memory``, ``cache`` and ``bits``."""

    memory: str | None = None
    cache: str | None = None
    bits: float | None = None
    context: int = CONTEXT
    batch: int = 1
    tolerance: str = "close"
    engine: str | None = None
    batched_tokens: int | None = None

    @classmethod
    def of(cls, **given: Any) -> "DecisionRequest":
        """Raises SpecError for a value of another kind, and for what cannot be asked."""
        told = {name: value for name, value in given.items() if value not in (None, "")}
        try:
            asked = cls.model_validate({**told, "tolerance": str(told.get("tolerance", "close"))})
        except ValidationError as error:
            raise SpecError(first_line(error, cls)) from None
        asked.ask()
        return asked

    def ask(self) -> Ask:
        """Read. Raises SpecError for what cannot be."""
        return Ask(
            tolerance=Tolerance.parse(self.tolerance),
            context=self.context,
            batch=self.batch,
            memory=memory_of(self.memory) if self.memory else None,
            cache=memory_of(self.cache) if self.cache else None,
            bits=self.bits,
            engine=engine_of(self.engine),
            batched_tokens=self.batched_tokens,
        )


class Decision(SpecPart):
    """``asked`` of a study and what came of it."""

    version: int = VERSION
    asked: DecisionRequest
    advice: Advice
    grounds: Grounds

    @property
    def id(self) -> str:
        """Of all it says: another answer has another id."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:16]

    @property
    def canonical(self) -> str:
        return canonical_json(self.model_dump(mode="json"))


def keep_decision(decision: Decision, store: Store) -> str:
    """Its id, under which it is there from now on. Raises StoreError where the store takes nothing more."""
    write_beside(store, _NAME.format(decision.id), decision.canonical.encode())
    return decision.id


def stored_decision(id: str, store: Store) -> Decision:
    """Raises StoreError where there is none of that id."""
    data = read_beside(store, _NAME.format(id)) if is_id(id) else None
    try:
        held: Any = None if data is None else json.loads(data)
        if isinstance(held, dict) and held.get("version") == VERSION:
            return Decision.model_validate(held)
    except (ValueError, ValidationError):
        pass
    raise StoreError(f"Decision {excerpt(id[:40])} is not in this store. Check the link, or decide again.")


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


NOT_LOOKED = "python -m kvq_core inspect tells of layers at risk."


class StudyQuestion:
    """``looked``: what inspection found, else what is kept of it; ``unlooked``: why it did not look."""

    def __init__(
        self,
        result: StudyResult,
        name: str,
        asked: DecisionRequest,
        weights: Sequence[Path] = (),
        looked: Inspection | None = None,
        unlooked: str = NOT_LOOKED,
    ):
        self.result, self.name, self.asked, self.unlooked = result, name, asked, unlooked
        self.ask = asked.ask()
        self.model = outline(name, result.plan.spec.comparison.revision)
        self.looked = looked or stored_inspection(self.model)
        self.shape, self.own = model_shape(self.model), own_weights(self.model, name)
        self.files = weights_files(weights) or [self.own]

    @property
    def at_risk(self) -> bool:
        """Whether inspection names layers."""
        return self.looked is not None and bool(self.looked.at_risk_layers)

    def decision(self, tried: LayerPolicy | Without | None = None) -> Decision:
        """``tried``: the policy of layers, or why there is none, where one was called for. Raises SpecError where the
        study has no run of the model yet."""
        policy = tried if isinstance(tried, LayerPolicy) else None
        title = next(cell.title for cell in self.result.plan.cells if cell.model == self.name)
        rows = self.result.table[self.result.table["model"] == title]
        if not len(rows):
            why = next(iter(self.result.failed.values()), "run it first.")
            raise SpecError(f"Study {self.result.id} has no run of {title} yet: {why}")
        longest = int((rows["prompt_tokens"] + rows["scored"].fillna(0)).max())
        study = Study(
            id=self.result.id,
            model=self.name,
            table=rows if policy is None else policy.beside(rows),
            options=(),
            fp16=FitPlace(self.shape, self.own, self.ask, self.model.ref).option(FP16),
            weights=self.own,
            longest=longest,
            own_context=self.shape.context or None,
            windows=any(kind.kind == "sliding" for kind in self.shape.kinds),
            warnings=tuple(self._warnings(tried.why if isinstance(tried, Without) else "")),
            pairs=[pair for pair in self.result.pairs if pair.model == title],
        )
        places = [FitPlace(self.shape, each, self.ask, self.model.ref) for each in self.files]
        lanes = self.result.plan.spec.comparison.lanes
        placed = in_place(study, lanes if policy is None else [*lanes, *policy.lanes], places, policy)
        return Decision(asked=self.asked, advice=placed.advice, grounds=self._grounds(study, lanes, placed, tried))

    def _grounds(
        self, study: Study, lanes: Sequence[Lane], placed: PlacedAdvice, tried: LayerPolicy | Without | None
    ) -> Grounds:
        scores = None if tried is None else tried.scores
        policy = tried if isinstance(tried, LayerPolicy) else None
        return Grounds(
            scores_id=scores and scores.id,
            scored=0 if scores is None else len(scores.whole),
            scores=() if scores is None else tuple(scores.scores()),
            signs=() if self.looked is None else signs_of(self.looked),
            inspected=self.looked and self.looked.sentence,
            fronts=() if scores is None or tried is None else fronts(scores.costs(self.model.shape), tried.candidates),
            policy=None if policy is None else policy.grounds(placed.options, study.table, placed.place),
            fits=tuple(self._fits(lanes, placed)),
            own_context=self.shape.context or None,
        )

    def _fits(self, lanes: Sequence[Lane], placed: PlacedAdvice) -> list[LaneFit]:
        """Of fp16, the front and the lanes that the answer names."""
        found = placed.advice
        named = {each.label for each in found.front if each.front} | {found.label, found.runner_up}
        shown = [FP16, *(lane for lane in lanes if lane.label in named and lane.label != FP16.label)]
        return [LaneFit(label=lane.label, contexts=placed.place.contexts(lane)) for lane in shown]

    def _warnings(self, without: str) -> list[str]:
        own = self.shape.context or None
        beyond = own is not None and self.ask.context > own
        said = [f"{self.ask.context:,} tokens are more than the model's own context of {own:,}."] if beyond else []
        if self.looked is None:
            said.append(f"The model was not inspected: {self.unlooked}")
        elif self.at_risk:
            said.append(self.looked.sentence)
        return [*said, f"There is no policy of layers: {without}."] if without else said


def one_model(result: StudyResult, given: str | None) -> str:
    """The id of the model that is advised on. Raises SpecError for one that the study has not, or several."""
    names = {cell.model: cell.title for cell in result.plan.cells}
    known = ", ".join(names)
    if given is not None:
        if name := next((name for name, title in names.items() if given in (name, title)), None):
            return name
        raise SpecError(f"Study {result.id} is of {known}, not of {excerpt(given)}; run one of that model.")
    if len(names) > 1:
        raise SpecError(f"Study {result.id} has several models; name one of {known}.")
    return next(iter(names))
