"""The named endpoints: comparing, estimating, and reading what there is, for gradio_client, plain HTTP and MCP.

Types of parameters and results make the schemas that clients are shown, docstrings the descriptions of MCP tools. A
comparison goes through the same line, limits and ``compare`` as the page's; closing the connection cancels it.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast, get_args

import gradio as gr

from kvq_core import presets as experiments
from kvq_core.methods.describe import describe_methods
from kvq_core.models import available_models, with_model
from kvq_core.pipeline.examples import packaged_store
from kvq_core.presets import parse_placed
from kvq_core.record import sharing
from kvq_core.record.fields import Record
from kvq_core.record.files import ARRAYS, Summary, record_json, serialize
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, parse_lane
from ui.api.claims import claims_of
from ui.api.decisions import decision_endpoints
from ui.api.refusals import demand
from ui.api.schemas import (
    ClaimInfo,
    Experiment,
    Forecast,
    LaneSpec,
    MethodInfo,
    PresetInfo,
    RunInfo,
    RunProgress,
    RunRecord,
    Spec,
)
from ui.api.sessions import RUN_PACE_S, client_session, paced
from ui.api.stream import added_progress, run_progress
from ui.api.studies import study_endpoints
from ui.decide.work import Decisions
from ui.service.address import link
from ui.service.admission import check_plain, checked_cache_at
from ui.service.one_line import one_line
from ui.service.services import Services
from ui.study.work import Studies


def create_api(services: Services, studies: Studies, decisions: Decisions) -> None:
    """Add the endpoints to the page that is being built. Everything else about the page stays private."""
    computing = (*_computing(services), *_estimating(services))
    own = (*computing, *_listing(), *_claims(), *_reading(services), *_sharing(services))
    for endpoint in (*own, *study_endpoints(studies), *decision_endpoints(studies, decisions)):
        most = None if inspect.isasyncgenfunction(endpoint) else 4
        gr.api(_yielded(endpoint), api_name=endpoint.__name__, concurrency_limit=most)


def _computing(services: Services) -> tuple[Callable[..., Any], ...]:
    async def compare(spec: Spec, request: gr.Request) -> AsyncGenerator[RunProgress]:
        """Run one prompt through a language model under its full-precision KV cache and under up to 64 quantized
        caches in the same pass, and report what each cache changes: the text, the next-token distributions, attention,
        and the bytes stored. Progress arrives while it runs; the last item holds the result with the id of the run.

        Args:
            spec: The comparison. Required: prompt, and lanes, a list of {"label", "method", "knobs"}, or of {"label",
                "rules"} for several methods in one cache; the tool methods lists methods and knobs, the tool preset
                gives complete examples. Optional: model, max_new_tokens,
                system, continuation, temperature, seed and more; what is left out has its default.
        """
        with client_session(request, services.jobs.forget) as session:
            asked = await asyncio.to_thread(_read, spec)
            async for update in paced(run_progress(services, asked, session, request), RUN_PACE_S):
                yield update

    async def add_lane(run: str, lane: LaneSpec, request: gr.Request, key: str = "") -> AsyncGenerator[RunProgress]:
        """Add one more quantized cache to a stored run: the reference's answer is followed again under it, and nothing
        else of the run is computed. Progress arrives while it runs; the last item holds the result, a run of its own
        with an id of its own, whose record names the run it was added to.

        Args:
            run: The id of the stored run, 16 hexadecimal characters.
            lane: The lane, as in the lanes of a comparison: {"label", "method", "knobs"}, or {"label", "rules"}.
            key: The key that came with the run's result; needed on a public instance while the run is not shared.
        """
        with client_session(request, services.jobs.forget) as session:
            parent = (await asyncio.to_thread(_opened, services, run, key))[0]
            check_plain(lane)
            asked = await asyncio.to_thread(parse_lane, lane, "lane")
            async for update in paced(added_progress(services, parent, asked, session, request), RUN_PACE_S):
                yield update

    return compare, add_lane


def _estimating(services: Services) -> tuple[Callable[..., Any], ...]:
    def estimate(spec: Spec) -> Forecast:
        """Tell what a comparison would take before it is run: prompt tokens, seconds, bytes of memory, which lanes
        would quantize nothing because the text fits in their full-precision windows, and whether this instance would
        refuse it.

        Args:
            spec: The comparison, as for compare.
        """
        with one_line():
            comparison = with_model(_read(spec))
            quote = services.admission.quote(comparison)
            found = quote.estimate
            lanes = [vars(lane) for lane in found.lanes]
            notes = [*found.notes, *([quote.remark] if quote.remark else [])]
            return Forecast(
                model=comparison.model,
                prompt_tokens=found.prompt_tokens,
                context=found.context,
                seconds=found.cost.seconds,
                bytes=found.bytes,
                refusal=quote.refusal,
                notes=notes,
                lanes=lanes,
            )

    return (estimate,)


def _read(data: Any) -> ComparisonSpec:
    """Raises KvqError."""
    check_plain(data)
    return parse_placed(data, checked_cache_at)


def _listing() -> tuple[Callable[..., Any], ...]:
    def methods() -> list[MethodInfo]:
        """List the KV-cache quantization methods with their papers and with every knob: default, range and meaning."""
        return json.loads(json.dumps(describe_methods()))

    def models() -> list[str]:
        """List the ids of the models this instance offers; the first is taken where a comparison names none."""
        return [choice.id for choice in available_models()]

    def presets() -> list[PresetInfo]:
        """List the ready experiments: the question each asks and its lanes. The tool preset gives one in full."""
        return [
            PresetInfo(name=p.name, title=p.title, question=p.question, lanes=[lane.label for lane in p.spec.lanes])
            for p in experiments.presets().values()
        ]

    def preset(name: str) -> Experiment:
        """Get a ready experiment in full, with the comparison as compare takes it.

        Args:
            name: Its name, such as "first-look"; the tool presets lists them.
        """
        with one_line():
            demand(str, name=name)
            found = experiments.preset(name)
            spec = with_model(found.spec)
            return cast(Experiment, {**found.model_dump(mode="json"), "spec": spec.model_dump(mode="json")})

    return methods, models, presets, preset


def _claims() -> tuple[Callable[..., Any], ...]:
    def claims(paper: str = "", model: str = "") -> list[ClaimInfo]:
        """List what the papers claim of their methods and whether it holds on a model, with the numbers; beside it the
        verdict on each model that was measured, and whether it flips with the model.

        Args:
            paper: Only this paper's claims, for instance "SQuat"; empty: those of all papers.
            model: The model's id; empty: the bundled model.
        """
        with one_line():
            demand(str, paper=paper, model=model)
            return claims_of(paper, model or DEFAULT_MODEL)

    return (claims,)


def _reading(services: Services) -> tuple[Callable[..., Any], ...]:
    def runs(request: gr.Request) -> list[RunInfo]:
        """List the stored runs that are everybody's to see, newest first; the tool run gives one in full."""
        with one_line():
            found = {run.id: run for run in (*sharing.listed_runs(services.store), *packaged_store().list())}
            return [_summary(run, request) for run in found.values()]

    def run(run: str, key: str = "") -> RunRecord:
        """Get the whole record of a stored run: its comparison, the texts token by token, and every metric of every
        lane. Nothing is computed.

        Args:
            run: The id of the run, 16 hexadecimal characters; the last part of its link.
            key: The key that came with the run's result; needed on a public instance while the run is not shared.
        """
        with one_line():
            return json.loads(record_json(_opened(services, run, key)[0]))

    def arrays(run: str, key: str = "") -> gr.FileData:
        """Download the arrays of a stored run, which are too large for its record, as one .safetensors file: spectra,
        score deltas, errors of every layer and head.

        Args:
            run: The id of the run, 16 hexadecimal characters.
            key: As for run.
        """
        with one_line():
            content, _ = serialize(*_opened(services, run, key))
            name = f"{run}-{ARRAYS}"
            found = gr.FileData(path=services.file(name, content[ARRAYS]), orig_name=name)
            return cast(gr.FileData, found.model_dump())  # plain, as Gradio wants what it declares as a file

    return runs, run, arrays


def _sharing(services: Services) -> tuple[Callable[..., Any], ...]:
    def share(run: str, request: gr.Request, key: str = "", listed: bool = False) -> str:
        """Let everybody who has its link open a stored run, and return the link. On a private instance every run is
        open already.

        Args:
            run: The id of the run, 16 hexadecimal characters.
            key: The key that came with the run's result; on a public instance only who has it can share the run.
            listed: Put it on the list of runs as well; false takes it off.
        """
        with one_line():
            demand(bool, listed=listed)
            _opened(services, run, key)
            if not services.records.ships(run):
                sharing.demand_maker(services.store, run, key)
                services.store.share(run, listed)
            return link(run, request)

    return (share,)


def _opened(services: Services, run: str, key: str) -> tuple[Record, dict[str, Any]]:
    """A run that ships with the app, or one that the holder of the key may open. Raises KvqError."""
    demand(str, key=key)
    if not services.records.ships(run):
        sharing.demand_open(services.store, run, key)
    return services.records.get(run)


def _yielded(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Gradio takes the schema of a result from the return type: of a stream, that is the type of what it yields."""
    signature = inspect.signature(endpoint)
    if inspect.isasyncgenfunction(endpoint):
        told: Any = endpoint
        told.__signature__ = signature.replace(return_annotation=get_args(signature.return_annotation)[0])
    return endpoint


def _summary(found: Summary, request: gr.Request) -> RunInfo:
    return RunInfo(
        run=found.id,
        created=found.created,
        model=found.model_title,
        prompt=found.prompt,
        lanes=list(found.lanes),
        link=link(found.id, request),
    )
