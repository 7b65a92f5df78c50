"""Advice and decisions for programs: the same forecast, limits, line and store as the page's."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import gradio as gr

from kvq_core.errors import KvqError, ModelError, SpecError, excerpt
from kvq_core.inspection.fits import fit_here
from kvq_core.models import available_models
from kvq_core.recommend.decision import Decision, DecisionRequest, stored_decision
from kvq_core.recommend.recommend import advise as advised
from kvq_core.recommend.recommend import study_for
from kvq_core.sizing.fit import Fit, FitRequest, memory_of
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.studies.spec import parse_study
from ui.api.refusals import demand, demand_prompts
from ui.api.schemas import AdviceInfo, typed_dict
from ui.api.sessions import LONG_PACE_S, client_session, paced
from ui.decide.quote import DecisionQuote, admit, quote_spec, quote_study
from ui.decide.work import Decisions, DecisionWork, Stage, waits
from ui.service.address import page_address
from ui.service.admission import check_plain
from ui.service.one_line import one_line
from ui.service.services import visitor
from ui.study.access import demand_open, key_for
from ui.study.watching import follow
from ui.study.work import Studies

_OWN = {"model": str, "prompts": dict[str, Any], "study": str, "key": str, "layers": bool}

if TYPE_CHECKING:
    Question: TypeAlias = dict[str, Any]
    DecisionInfo: TypeAlias = dict[str, Any]
    FitInfo: TypeAlias = dict[str, Any]
else:
    Question = typed_dict("Question", DecisionRequest, without=(), own=_OWN)
    DecisionInfo = typed_dict("DecisionInfo", Decision, without=("version",), own={"id": str, "link": str})
    FitInfo = typed_dict("FitInfo", Fit, without=(), own={})


class DecisionForecastInfo(TypedDict):
    """What a decision would take. ``passes`` of lanes over a prompt where layers are tried one by one; seconds are null
    until such a run was timed here; ``refusal``: why this instance would not start it."""

    study: str
    runs: int
    todo: int
    seconds: float | None
    passes: int
    layer_seconds: float | None
    sentence: str
    warnings: list[str]
    refusal: str | None


class DecisionProgress(TypedDict):
    """How far a decision is: ``done`` of ``total`` parts of what it is ``doing``. ``advice`` is there as soon as the
    study has answered, before layers are tried; the last update has the stage "finished" and the whole ``decision``.
    ``key`` opens it and its study on a public instance until that is shared with share_study."""

    study: str
    key: str
    stage: Literal["waiting", "computing", "finished"]
    doing: str
    done: int
    total: int
    seconds_left: float | None
    advice: AdviceInfo | None
    decision: DecisionInfo | None


def decision_endpoints(studies: Studies, decisions: Decisions) -> tuple[Callable[..., Any], ...]:
    return (*_computing(studies, decisions), *_reading(studies), *_advising(studies), *_fitting())


def _computing(studies: Studies, decisions: Decisions) -> tuple[Callable[..., Any], ...]:
    async def decide(question: Question, request: gr.Request) -> AsyncGenerator[DecisionProgress]:
        """Decide which KV-cache format to deploy: run the formats that an engine ships on prompts (or read a study),
        recommend the smallest lane that fits and stays within a tolerance, say how sure that is over the prompts, and,
        where no lane will do or the model has layers at risk, try a policy of layers and verify it. Progress arrives
        while it runs; what was computed is kept, and the same question goes on.

        Args:
            question: What is asked. Either study, an id (with its key on a public instance, and model where it has
                several), or model and prompts, an object with texts, rows or a suite, as for study. Of the room one of
                memory, such as "24GB", for weights and cache together, cache, and bits of an element; context and batch
                in tokens and sequences; tolerance "close", "marginal", a mean KLD in nats, or "task:0.02"; engine, such
                as "vllm"; layers, false to leave layers alone.
        """
        with client_session(request, decisions.forget) as session:
            found = admit(await asyncio.to_thread(_quoted, question, studies))
            going = decisions.begin(found, session, visitor(request))
            async for update in paced(_told(going, studies, request), LONG_PACE_S):
                yield update

    def estimate_decision(question: Question) -> DecisionForecastInfo:
        """Tell what a decision would take before it is begun: runs that are not stored yet, seconds, passes for layers,
        and whether this instance would refuse it.

        Args:
            question: What is asked, as for decide.
        """
        with one_line():
            return _forecast(_quoted(question, studies))

    return decide, estimate_decision


def _reading(studies: Studies) -> tuple[Callable[..., Any], ...]:
    services = studies.services

    def decision(decision: str, request: gr.Request, key: str = "") -> DecisionInfo:
        """Get a decision that was made here: the advice and what it rests on, what each layer costs alone, policies by
        engine, what fits. Nothing is computed.

        Args:
            decision: The id of the decision, 16 hexadecimal characters.
            key: The key that came with its progress; needed on a public instance while its study is not shared.
        """
        with one_line():
            demand(str, decision=decision, key=key)
            found = stored_decision(decision, services.store)
            demand_open(services, found.advice.study, key)
            return _info(found, request)

    return (decision,)


def _advising(studies: Studies) -> tuple[Callable[..., Any], ...]:
    services = studies.services

    def advise(
        study: str,
        memory: str = "",
        context: int = 8192,
        batch: int = 1,
        tolerance: str = "close",
        engine: str = "",
        key: str = "",
        batched_tokens: int = 0,
    ) -> AdviceInfo:
        """Recommend a KV-cache format from a study that was run on this instance: the smallest lane that fits a memory
        and stays within a tolerance, how sure that is over the prompts, the engine's flags, and what was not tested.

        Args:
            study: The id of the study, 16 hexadecimal characters.
            memory: Memory that weights and cache are to fit into, such as "24GB"; empty: the smallest cache is sought.
            context: Tokens of a sequence.
            batch: Sequences at once.
            tolerance: "close", "marginal", a mean KLD in nats, or "task:" and a share of right answers lost.
            engine: The engine that flags are for, such as "vllm" or "llama.cpp"; empty: any.
            key: The key that came with the study; needed on a public instance while it is not shared.
            batched_tokens: New tokens that vLLM reads at once, its --max-num-batched-tokens; 0: as it takes by card.
        """
        with one_line():
            demand(str, study=study, memory=memory, tolerance=tolerance, engine=engine, key=key)
            demand_open(services, study, key)
            demand(int, context=context, batch=batch, batched_tokens=batched_tokens)
            asked: dict[str, Any] = {"memory": memory or None, "engine": engine or None, "tolerance": tolerance}
            asked["batched_tokens"] = batched_tokens or None
            found = advised(study=study, store=services.store, context=context, batch=batch, **asked)
            return found.model_dump(mode="json")

    return (advise,)


def _fitting() -> tuple[Callable[..., Any], ...]:
    def fits(
        model: str = "", memory: str = "", context: int = 32768, batch: int = 8, batched_tokens: int = 0
    ) -> FitInfo:
        """Tell what a model's cache takes in every format, as tensors and as engines reserve it, and the longest
        context that fits GPUs of common sizes beside the weights. From its configuration; nothing is loaded or run.

        Args:
            model: The model's id, one of the tool models; empty: the first of them.
            memory: Whether weights and cache fit it, such as "24GB"; empty: no memory is asked for.
            context: Tokens of a sequence.
            batch: Sequences at once.
            batched_tokens: New tokens that vLLM reads at once, its --max-num-batched-tokens; 0: as it takes by card.
        """
        with one_line():
            demand(str, model=model, memory=memory)
            demand(int, context=context, batch=batch, batched_tokens=batched_tokens)
            return _fits(model or available_models()[0].id, memory, context, batch, batched_tokens)

    return (fits,)


def _fits(model: str, memory: str, context: int, batch: int, batched: int) -> Any:
    offered = [choice.id for choice in available_models()]
    if model not in offered:
        raise ModelError(f"Model {excerpt(model)} is not offered here; offered are {', '.join(offered)}.")
    if min(context, batch, batched or 1) < 1:
        raise SpecError("context, batch and batched_tokens are whole numbers from 1.")
    room, at_once = memory_of(memory) if memory else None, batched or None
    asked = FitRequest(memory=room, context=context, batch=batch, batched_tokens=at_once)
    found = fit_here(model, asked=asked)
    if found is None:
        raise ModelError(f"The configuration of {excerpt(model)} is not here yet; run it once.")
    return found.model_dump(mode="json")


def _quoted(question: Any, studies: Studies) -> DecisionQuote:
    """Raises KvqError for what cannot be asked, also for prompts of a file: the machine is the server's."""
    if not isinstance(question, dict):
        raise SpecError("question: it must be an object with a study, or a model and prompts.")
    check_plain(question)
    told = dict(question)
    own = {name: told.pop(name, None) for name in _OWN}
    asked, layers = DecisionRequest.of(**told), own["layers"] is not False
    if (own["study"] is None) == (own["prompts"] is None):
        raise SpecError("question: give study, or model and prompts.")
    if own["study"] is not None:
        demand(str, study=own["study"], key=own["key"] or "", model=own["model"] or "")
        demand_open(studies.services, own["study"], own["key"] or "")
        return quote_study(studies.results.read(own["study"]), own["model"], asked, layers, studies.services)
    model = own["model"] or DEFAULT_MODEL
    source = parse_study({"model": model, "prompts": own["prompts"], "bundle": "deploy"}).prompts
    demand_prompts(source)
    return quote_spec(study_for(model, source.read()[0], asked.engine), asked, layers, studies.services)


def _forecast(found: DecisionQuote) -> DecisionForecastInfo:
    told = found.forecast
    return DecisionForecastInfo(
        study=told.study.id,
        runs=told.study.cells,
        todo=told.study.todo,
        seconds=told.study.cost.seconds,
        passes=told.passes,
        layer_seconds=told.layers.seconds,
        sentence=told.sentence,
        warnings=list(found.warnings),
        refusal=found.refusal,
    )


async def _told(going: DecisionWork, studies: Studies, request: gr.Request) -> AsyncGenerator[DecisionProgress]:
    """Raises KvqError where it fails or is cancelled."""
    async for now in follow(going):
        yield _progress(going, now, studies)
    if (last := going.decision) is None or going.cancelled or going.error is not None:
        if going.error is not None and not going.cancelled:
            raise going.error
        raise KvqError("The decision was cancelled; what is done is kept. Ask again to go on.")
    yield {**_progress(going, going.standing(), studies), "stage": "finished", "decision": _info(last, request)}


def _progress(going: DecisionWork, now: Stage, studies: Studies) -> DecisionProgress:
    study = going.question.plan.id
    return DecisionProgress(
        study=study,
        key=key_for(studies.services, study),
        stage="waiting" if waits(now) else "computing",
        doing=now.now.doing,
        done=now.now.done,
        total=now.now.total,
        seconds_left=now.now.left,
        advice=None if now.decision is None else now.decision.advice.model_dump(mode="json"),
        decision=None,
    )


def _info(found: Decision, request: gr.Request) -> Any:
    told = found.model_dump(mode="json", exclude={"version"})
    return {"id": found.id, "link": f"{page_address(request)}?decide={found.id}", **told}
