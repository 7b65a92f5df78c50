"""From a study, or from a model and prompts, to the decision and its advice."""

from collections.abc import Sequence
from pathlib import Path

from kvq_core.advice.answering import StudyQuestion, one_model
from kvq_core.advice.deciding import DecisionMaker, silent, study_for
from kvq_core.advice.decision import Decision, DecisionRequest
from kvq_core.advice.report import Advice
from kvq_core.advice.turns import Here
from kvq_core.errors import SpecError, StoreError
from kvq_core.record.store import Store, open_store
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.studies.cells import Progress, plan
from kvq_core.studies.estimate import workers_here
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.result import StudyResult
from kvq_core.studies.stored_plan import kept_plan
from kvq_core.studies.study import stored_study


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
    progress: Progress | None = None,
    workers: int | None = 1,
) -> Advice:
    """Which lane to deploy. ``study``: one that was run, or its id; else the engine's formats are run on ``prompts``
    (and, where the model has layers at risk or no lane will do, a policy of layers), which goes on where it stopped.

    ``memory``, of weights and cache together, or ``cache``, of the cache alone, such as ``24GB``; or ``bits`` of an
    element. ``tolerance``: a tier, a mean KLD in nats, or ``task:`` and a share. ``weights``: files to choose from
    under a memory. ``workers``: processes that run prompts; None: one a core, as many as memory allows. Raises
    SpecError for what cannot be, and what a study raises.
    """
    asked = DecisionRequest.of(
        memory=memory, cache=cache, bits=bits, context=context, batch=batch, tolerance=tolerance, engine=engine
    )
    return decide(
        asked,
        study=study,
        model=model,
        prompts=prompts,
        weights=weights,
        store=store,
        progress=progress,
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
    progress: Progress | None = None,
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
    told = progress or silent
    planned = plan(study_for(model or DEFAULT_MODEL, prompts, asked.engine), told)
    turns = Here(workers_here(planned, place) if workers is None else workers)
    going = DecisionMaker(planned, planned.cells[0].model, asked, place, weights, turns, told)
    *_, last = going.decisions()
    return last


def stored(study: str, store: Store) -> StudyResult:
    """Raises StoreError where the study is not there, or its runs have other ids by now."""
    found = stored_study(plan(kept_plan(study, store).spec), store)
    if found.id != study:
        raise StoreError(f"Study {study} was run with another version or other weights; run it again.")
    return found
