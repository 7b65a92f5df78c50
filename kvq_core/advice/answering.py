"""A study and what is asked of it: the answer, and what it rests on."""

from collections.abc import Sequence
from pathlib import Path

from kvq_core.advice.answer import Study
from kvq_core.advice.decision import Decision, DecisionRequest
from kvq_core.advice.grounds import Grounds, LaneFit, signs_of
from kvq_core.advice.options import FP16, FitPlace, model_shape, own_weights, weights_files
from kvq_core.advice.placing import PlacedAdvice, in_place
from kvq_core.advice.policy import LayerPolicy, Without
from kvq_core.decision.fronts import fronts
from kvq_core.errors import SpecError, excerpt
from kvq_core.inspection import Inspection
from kvq_core.inspection.look import stored_inspection
from kvq_core.models import outline
from kvq_core.spec import Lane
from kvq_core.studies.result import StudyResult

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
