"""From a study, or from a model and prompts, to the decision, stage by stage: the model is inspected, the study run,
policies tried; and what that will take, before it is started.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvq_core.errors import KvqError, SpecError, StoreError
from kvq_core.inspection import Inspection
from kvq_core.inspection.look import looking
from kvq_core.machine.progress import Progress, Report, calling, unreported
from kvq_core.models import LoadedModel, outline
from kvq_core.pipeline.estimate import estimate_on
from kvq_core.pipeline.timings import UNKNOWN_COST, Cost
from kvq_core.presets import bundle_lanes
from kvq_core.recommend.constraints import Advice, engine_of
from kvq_core.recommend.decision import NOT_LOOKED, Decision, DecisionRequest, StudyQuestion, one_model
from kvq_core.recommend.fronts import CANDIDATES
from kvq_core.recommend.policies import ScoringBudget
from kvq_core.recommend.policy_search import Here, PolicyTrial, SharedExecutor
from kvq_core.recommend.sensitivity import POSITIONS
from kvq_core.record.store import Store, open_store
from kvq_core.spec import DEFAULT_MODEL, Capture
from kvq_core.studies.cells import CellPlan, plan
from kvq_core.studies.estimate import StudyEstimate, estimate, workers_here
from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.result import StudyResult
from kvq_core.studies.spec import StudySpec, parse_study
from kvq_core.studies.stored_plan import kept_plan
from kvq_core.studies.study import run_plan, stored_study


@dataclass(frozen=True)
class DecisionForecast:
    """``study``: of its runs. ``passes`` of lanes over a prompt that scoring layers takes where it is called for, 0
    where there are too few prompts or they may not be scored; ``layers``: what these take."""

    study: StudyEstimate
    passes: int = 0
    layers: Cost = UNKNOWN_COST

    @property
    def sentence(self) -> str:
        told = self.study
        runs = (
            f"{told.todo} of {told.cells} runs are to be computed" if told.todo else f"All {told.cells} runs are there"
        )
        took = "" if not told.todo else f", {told.cost.time}, {told.cost.bytes / 1e9:.2f} GB of memory"
        layers = (
            f" Layers, where they are tried: {self.passes} passes, {self.layers.time}."
            if self.passes
            else f" Layers are not tried: that takes {2 * FEWEST} prompts."
            if told.cells < 2 * FEWEST
            else ""
        )
        return f"{runs}{took}.{layers}"


def forecast(planned: CellPlan, store: Store, scoring: ScoringBudget | None) -> DecisionForecast:
    """``scoring`` None: layers are not tried. Raises KvqError where a model or the store cannot be had."""
    told = estimate(planned, store=store)
    scored = planned.prompts[::2]
    if scoring is None or len(planned.prompts) < 2 * FEWEST or not planned.cells:
        return DecisionForecast(told)
    needed = scoring.needed(CANDIDATES, outline(planned.cells[0].model).shape.layers)
    count = len(scored) if scoring.passes is None else min(len(scored), scoring.passes // needed)
    each, passes = _pass_cost(planned, scoring.at_once), needed * count
    seconds = None if each.seconds is None else each.seconds * passes
    return DecisionForecast(told, passes, Cost(seconds, each.bytes))


def _pass_cost(planned: CellPlan, lanes: int) -> Cost:
    """Of a pass of so many lanes, in formats of the study's, over a prompt of middle length, which is read in full
    precision."""
    cell = sorted(planned.cells, key=lambda each: each.tokens)[len(planned.cells) // 2]
    own = cell.spec.lanes
    like = tuple(own[at % len(own)].model_copy(update={"label": f"{at}", "prefill": "full"}) for at in range(lanes))
    new = {"max_new_tokens": POSITIONS, "capture": Capture(detail="off"), "free_text": False}
    return estimate_on(outline(cell.model), cell.spec.model_copy(update={**new, "lanes": like})).cost


NEW_TOKENS = 48  # of each prompt's answer
# the bundle of an engine's formats; of all engines where none is named, or it has no bundle of its own
BUNDLES = {
    "vLLM": "deploy-vllm",
    "SGLang": "deploy-sglang",
    "llama.cpp": "deploy-llama-cpp",
    "ExLlamaV3": "deploy-exllamav3",
    "transformers": "deploy-transformers",
}


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
    progress: Report = unreported
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
                if isinstance(event, Progress):
                    self.progress(event)
                else:
                    yield event

        try:
            return next(iter(self.turns.each(at_once())), None), NOT_LOOKED
        except KvqError as error:
            return None, str(error)


def advise(
    *,
    study: str | StudyResult | None = None,
    model: str | None = None,
    prompts: Sequence[StudyPrompt] | None = None,
    memory: str | None = None,
    cache: str | None = None,
    bits: float | None = None,
    context: int = 8_192,
    batch: int = 1,
    tolerance: str | float = "close",
    engine: str | None = None,
    weights: Sequence[Path] = (),
    store: Store | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    workers: int | None = 1,
    batched_tokens: int | None = None,
) -> Advice:
    """Which lane to deploy. ``study``: one that was run, or its id; else the engine's formats are run on ``prompts``
    (and, where the model has layers at risk or no lane will do, a policy of layers), which goes on where it stopped.

    ``memory``, of weights and cache together, or ``cache``, of the cache alone, such as ``24GB``; or ``bits`` of an
    element. ``tolerance``: a tier, a mean KLD in nats, or ``task:`` and a share. ``weights``: files to choose from
    under a memory. ``workers``: processes that run prompts; None: one a core, as many as memory allows.
    ``batched_tokens``: new tokens that vLLM reads at once; None: as it takes by card. Raises SpecError for what cannot
    be, and what a study raises.
    """
    room = {"memory": memory, "cache": cache, "bits": bits, "context": context, "batch": batch}
    asked = DecisionRequest.of(**room, tolerance=tolerance, engine=engine, batched_tokens=batched_tokens)
    return decide(
        asked,
        study=study,
        model=model,
        prompts=prompts,
        weights=weights,
        store=store,
        progress=calling(progress),
        workers=workers,
    ).advice


def decide(
    asked: DecisionRequest,
    *,
    study: str | StudyResult | None = None,
    model: str | None = None,
    prompts: Sequence[StudyPrompt] | None = None,
    weights: Sequence[Path] = (),
    store: Store | None = None,
    progress: Report = unreported,
    workers: int | None = 1,
) -> Decision:
    """``advise`` with all that the advice rests on."""
    ask = asked.ask()
    if (study is None) == (prompts is None):
        raise SpecError("Give a study that was run, or a model and prompts to run one.")
    if weights and ask.memory is None:
        raise SpecError("weights are chosen under a memory; give memory.")
    place = open_store() if store is None else store
    if prompts is None:
        result = stored(study, place) if isinstance(study, str) else study
        assert result is not None
        return StudyQuestion(result, one_model(result, model), asked, weights).decision()
    planned = plan(study_for(model or DEFAULT_MODEL, prompts, asked.engine), progress)
    turns = Here(workers_here(planned, place) if workers is None else workers)
    going = DecisionMaker(planned, planned.cells[0].model, asked, place, weights, turns, progress)
    *_, last = going.decisions()
    return last


def stored(study: str, store: Store) -> StudyResult:
    """Raises StoreError where the study is not there, or its runs have other ids by now."""
    found = stored_study(plan(kept_plan(study, store).spec), store)
    if found.id != study:
        raise StoreError(f"Study {study} was run with another version or other weights; run it again.")
    return found
