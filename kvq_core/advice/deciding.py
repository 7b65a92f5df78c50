"""From a plan of a study to a decision, stage by stage: the model is looked at, the study run, layers tried."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvq_core.advice.answering import NOT_LOOKED, StudyQuestion
from kvq_core.advice.ask import engine_of
from kvq_core.advice.decision import Decision, DecisionRequest
from kvq_core.advice.policy import ScoringBudget
from kvq_core.advice.trying import PolicyTrial
from kvq_core.advice.turns import Here, SharedExecutor
from kvq_core.errors import KvqError
from kvq_core.inspection import Inspection
from kvq_core.inspection.look import InspectionProgress, looking
from kvq_core.models import LoadedModel, outline
from kvq_core.presets import bundle_lanes
from kvq_core.record.store import Store
from kvq_core.studies.cells import CellPlan, Progress
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.spec import StudySpec, parse_study
from kvq_core.studies.study import run_plan

NEW_TOKENS = 48  # of each prompt's answer
# the bundle of an engine's formats; of all engines where none is named, or it has no bundle of its own
BUNDLES = {
    "vLLM": "deploy-vllm",
    "SGLang": "deploy-sglang",
    "llama.cpp": "deploy-llama-cpp",
    "ExLlamaV3": "deploy-exllamav3",
    "transformers": "deploy-transformers",
}


def silent(doing: str, done: int, total: int) -> None:
    """Tells nobody."""


def study_for(model: str, prompts: Sequence[StudyPrompt], engine: str | None) -> StudySpec:
    """The study that an answer for an engine rests on. Raises KvqError where the model or the engine is not known."""
    told = outline(model)
    windows = {"sliding": True} if told.shape.windowed else {}  # engines store them so, too
    return parse_study(
        {
            "model": model,
            "prompts": {"rows": [prompt.model_dump(mode="json", exclude_defaults=True) for prompt in prompts]},
            "lanes": [{**lane, **windows} for lane in bundle_lanes(BUNDLES.get(engine_of(engine) or "", "deploy"))],
            "max_new_tokens": NEW_TOKENS,
            "floors": "storage",
            **({} if _has_chat(told) else {"chat": False}),
        }
    )


def _has_chat(model: LoadedModel) -> bool:
    return bool(getattr(model.tokenizer, "chat_template", None))


@dataclass
class DecisionMaker:
    """A decision on the model ``name`` of a study that is planned. ``looks``: whether the model may be looked at;
    ``layers``: whether a policy of layers is tried where the model has layers at risk, or no lane will do."""

    plan: CellPlan
    name: str
    asked: DecisionRequest
    store: Store
    weights: Sequence[Path] = ()
    turns: SharedExecutor = field(default_factory=Here)
    progress: Progress = silent
    looks: bool = True
    layers: bool = True
    scoring: ScoringBudget = field(default_factory=ScoringBudget)

    def decisions(self) -> Iterator[Decision]:
        """The study's answer, then the one with a policy of layers where that was called for. What is computed is kept,
        and goes on where it stopped; stopped, it answers from the prompts that are done.

        Raises KvqError as studies and scoring do.
        """
        looked, unlooked = self._looked() if self.looks else (None, NOT_LOOKED)
        result = run_plan(self.plan, self.store, executor=self.turns, progress=self.progress)
        going = StudyQuestion(result, self.name, self.asked, self.weights, looked, unlooked)
        first = going.decision()
        yield first
        called = first.advice.kind != "few" and (going.at_risk or first.advice.label is None)
        if not (self.layers and called and self.turns.wanted):
            return
        model = outline(self.name, self.plan.spec.comparison.revision)
        trying = PolicyTrial(result, model, going.ask, self.store, self.turns, self.progress, self.scoring)
        if (found := trying.found()) is not None:
            yield going.decision(found)

    def _looked(self) -> tuple[Inspection | None, str]:
        """What inspection finds, or why it cannot look: of a short context, where advice can still be had."""

        def at_once() -> Iterator[Inspection]:
            for event in looking(self.name, self.plan.spec.comparison.revision, remedies=False):
                if isinstance(event, InspectionProgress):
                    self.progress(event.doing, event.done, event.total)
                else:
                    yield event

        try:
            return next(iter(self.turns.each(at_once())), None), NOT_LOOKED
        except KvqError as error:
            return None, str(error)
