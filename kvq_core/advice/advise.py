"""From a study, or from a model and prompts, to the advice."""

from collections.abc import Sequence
from pathlib import Path

from kvq_core.advice.answer import Study
from kvq_core.advice.asked import CONTEXT, Ask, Tolerance, engine_of
from kvq_core.advice.options import FP16, Place, model_shape, own_weights, weights_files
from kvq_core.advice.placing import in_place
from kvq_core.advice.policy import Policy, policy_of
from kvq_core.advice.report import Advice
from kvq_core.errors import KvqError, SpecError, StoreError, excerpt
from kvq_core.inspection import Inspection, inspect_model
from kvq_core.inspection.look import stored_inspection
from kvq_core.models import LoadedModel, outline
from kvq_core.sizing.fit import memory_of
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.store.store import Store, open_store
from kvq_core.studies.cells import Progress, plan
from kvq_core.studies.prompts import Prompt
from kvq_core.studies.result import StudyResult
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import run_plan, stored_study, study_spec

NEW_TOKENS = 48  # of each prompt's answer
# the bundle of an engine's formats; of all engines where none is named, or it has no bundle of its own
BUNDLES = {
    "vLLM": "deploy-vllm",
    "SGLang": "deploy-sglang",
    "llama.cpp": "deploy-llama-cpp",
    "ExLlamaV3": "deploy-exllamav3",
}


def advise(
    *,
    study: str | StudyResult | None = None,
    model: str | None = None,
    prompts: Sequence[Prompt] | None = None,
    memory: str | None = None,
    cache: str | None = None,
    bits: float | None = None,
    context: int = CONTEXT,
    batch: int = 1,
    tolerance: str | float = "close",
    engine: str | None = None,
    weights: Sequence[Path] = (),
    store: Store | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Which lane to deploy. ``study``: one that was run, or its id; else the engine's formats are run on ``prompts``
    (and, where the model has layers at risk or no lane will do, a policy of layers), which goes on where it stopped.

    ``memory``, of weights and cache together, or ``cache``, of the cache alone, such as ``24GB``; or ``bits`` of an
    element. ``tolerance``: a tier, a mean KLD in nats, or ``task:`` and a share. ``weights``: files to choose from
    under a memory. Raises SpecError for what cannot be, and what a study raises.
    """
    asked = Ask(
        tolerance=Tolerance.parse(tolerance),
        context=context,
        batch=batch,
        memory=memory_of(memory) if memory else None,
        cache=memory_of(cache) if cache else None,
        bits=bits,
        engine=engine_of(engine),
    )
    if (study is None) == (prompts is None):
        raise SpecError("Give a study that was run, or a model and prompts to run one.")
    if weights and asked.memory is None:
        raise SpecError("weights are chosen under a memory; give memory.")
    place = open_store() if store is None else store
    if prompts is None:
        result = _stored(study, place) if isinstance(study, str) else study
        assert result is not None
        return _Going(result, _one_model(result, model), asked, weights).advice()
    return _from_prompts(model or DEFAULT_MODEL, prompts, asked, weights, place, progress or _silent)


def _stored(id: str, store: Store) -> StudyResult:
    """Raises StoreError where the study is not there, or its runs have other ids by now."""
    found = stored_study(plan(study_spec(id, store)), store)
    if found.id != id:
        raise StoreError(f"Study {id} was run with another version or other weights; run it again.")
    return found


def _one_model(result: StudyResult, given: str | None) -> str:
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


def _silent(doing: str, done: int, total: int) -> None:
    """Tells nobody."""


def _from_prompts(
    model: str, prompts: Sequence[Prompt], ask: Ask, weights: Sequence[Path], store: Store, progress: Progress
) -> Advice:
    """Inspection, the study of what the engine ships, and a policy of layers where these call for one."""
    looked, unlooked = _looked_at(model, progress)
    rows = [prompt.model_dump(mode="json", exclude_defaults=True) for prompt in prompts]
    spec = parse_study(
        {
            "model": model,
            "prompts": {"rows": rows},
            "bundle": BUNDLES.get(ask.engine or "", "deploy"),
            "max_new_tokens": NEW_TOKENS,
            "floors": "storage",
            **({} if _has_chat(outline(model)) else {"chat": False}),
        }
    )
    result = run_plan(plan(spec, progress), store, progress=progress)
    going = _Going(result, _one_model(result, None), ask, weights, looked, unlooked)
    found = going.advice()
    at_risk = looked is not None and bool(looked.at_risk_layers)
    if found.kind == "few" or not (at_risk or found.kind == "none"):
        return found
    better = policy_of(result, going.name, ask, store, progress)
    return found if better is None else going.advice(better)


def _has_chat(model: LoadedModel) -> bool:
    return bool(getattr(model.tokenizer, "chat_template", None))


def _looked_at(model: str, progress: Progress) -> tuple[Inspection | None, str]:
    """What inspection finds, or why it cannot look: of a short context, where advice can still be had."""
    try:
        return inspect_model(model, remedies=False, progress=progress), ""
    except KvqError as error:
        return None, str(error)


class _Going:
    """A study and what is asked of it."""

    def __init__(
        self,
        result: StudyResult,
        name: str,
        ask: Ask,
        weights: Sequence[Path],
        looked: Inspection | None = None,
        unlooked: str = "python -m kvq_core inspect tells of layers at risk.",
    ):
        self.result, self.name, self.ask, self.unlooked = result, name, ask, unlooked
        self.model = outline(name, result.plan.spec.comparison.revision)
        self.looked = looked or stored_inspection(self.model)
        self.shape, self.own = model_shape(self.model), own_weights(self.model, name)
        self.files = weights_files(weights) or [self.own]

    def advice(self, policy: Policy | None = None) -> Advice:
        """Raises SpecError where the study has no run of the model yet."""
        title = next(cell.title for cell in self.result.plan.cells if cell.model == self.name)
        rows = self.result.table[self.result.table["model"] == title]
        if not len(rows):
            why = next(iter(self.result.failed.values()), "run it first.")
            raise SpecError(f"Study {self.result.id} has no run of {title} yet: {why}")
        lanes = self.result.plan.spec.comparison.lanes
        longest = int((rows["prompt_tokens"] + rows["scored"].fillna(0)).max())
        study = Study(
            id=self.result.id,
            model=self.name,
            table=rows if policy is None else policy.beside(rows),
            options=(),
            fp16=Place(self.shape, self.own, self.ask).option(FP16),
            weights=self.own,
            longest=longest,
            own_context=self.shape.context,
            warnings=tuple(self._warnings()),
        )
        places = [Place(self.shape, each, self.ask) for each in self.files]
        return in_place(study, lanes if policy is None else [*lanes, policy.lane], places, policy)

    def _warnings(self) -> list[str]:
        own = self.shape.context
        beyond = own is not None and self.ask.context > own
        said = [f"{self.ask.context:,} tokens are more than the model's own context of {own:,}."] if beyond else []
        if self.looked is None:
            return [*said, f"The model was not inspected: {self.unlooked}"]
        return [*said, self.looked.sentence] if self.looked.at_risk_layers else said
