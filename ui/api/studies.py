"""Studies for programs: the same plan, estimate, limits, line and store as the page's."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.spec import ComparisonSpec
from kvq_core.studies.result import StudyResult
from kvq_core.studies.rows import parquet
from kvq_core.studies.spec import OF_A_PROMPT, StudySpec, parse_study
from ui.api.refusals import demand, demand_prompts
from ui.api.schemas import typed_dict
from ui.api.sessions import LONG_PACE_S, client_session, paced
from ui.service.address import page_address
from ui.service.admission import check_plain
from ui.service.line import LinePlace
from ui.service.one_line import one_line
from ui.service.services import visitor
from ui.study.access import demand_open, key_for, share
from ui.study.files import name_of
from ui.study.quote import StudyQuote, admit, quote
from ui.study.watching import follow
from ui.study.work import Studies, StudyState, StudyWork

if TYPE_CHECKING:
    Study: TypeAlias = dict[str, Any]
else:
    _OWN = {"models": list[str], "prompts": dict[str, Any], "bundle": str}
    Study = typed_dict("Study", ComparisonSpec, without=("model", "revision", *OF_A_PROMPT), own=_OWN)


class StudyForecast(TypedDict):
    """What a study would take: ``sentence`` is what the command's --dry-run prints. ``seconds`` is null until a run of
    the model was timed here; ``refusal`` says why this instance would not start it."""

    study: str
    cells: int
    todo: int
    left_out: int
    seconds: float | None
    bytes: int
    sentence: str
    refusal: str | None


class StudyLane(TypedDict):
    """A lane of a model so far: mean KLD over prompts in nats with its 95 % interval, null below 5 prompts."""

    label: str
    model: str
    prompts: int
    kld_mean: float | None
    kld_low: float | None
    kld_high: float | None


class StudyProgress(TypedDict):
    """How far a study is, in cells. The last update has the stage "finished" and ``result``, all figures as
    ``python -m kvq_core study --json`` prints them. ``key`` opens the study on a public instance until it is shared."""

    study: str
    key: str
    link: str
    stage: Literal["waiting", "computing", "finished"]
    done: int
    failed: int
    total: int
    seconds_left: float | None
    lanes: list[StudyLane]
    result: dict[str, Any] | None


def study_endpoints(studies: Studies) -> tuple[Callable[..., Any], ...]:
    return (*_computing(studies), *_reading(studies), *_sharing(studies))


def _computing(studies: Studies) -> tuple[Callable[..., Any], ...]:
    services = studies.services

    async def study(spec: Study, request: gr.Request) -> AsyncGenerator[StudyProgress]:
        """Run many prompts through the same lanes and report each lane's mean KLD over prompts with its interval,
        what cannot be told apart, groups and tasks. Cells that are stored are not computed; a study that was cancelled
        goes on from what is done. Progress arrives while it runs.

        Args:
            spec: The study. Required: prompts, an object with one of texts (a list), rows (a list of {"prompt" or
                "messages", "last", "id", "group", "answer", "verifier", ...}) and suite (a name, with n and seed);
                lanes as for compare, or bundle. Optional: models and all other fields of a comparison.
        """
        with client_session(request, studies.forget) as session:
            found = await asyncio.to_thread(lambda: admit(_read(spec), services.store))
            going = studies.begin(found.plan, session, visitor(request), found.cost)
            async for update in paced(_told(going, studies, request), LONG_PACE_S):
                yield update

    def estimate_study(spec: Study) -> StudyForecast:
        """Tell what a study would take before it is run: cells, those that are not stored yet, seconds, bytes, and
        whether this instance would refuse it.

        Args:
            spec: The study, as for study.
        """
        with one_line():
            return _forecast(quote(_read(spec), services.store))

    return study, estimate_study


def _reading(studies: Studies) -> tuple[Callable[..., Any], ...]:
    def study_result(study: str, key: str = "") -> dict[str, Any]:
        """Get all figures of a study that was begun here, of the cells that are done: lanes, groups, tasks, recall,
        positions, pairs of lanes, notes. Nothing is computed.

        Args:
            study: The id of the study, 16 hexadecimal characters.
            key: The key that came with its progress; needed on a public instance while the study is not shared.
        """
        with one_line():
            return _opened(studies, study, key).summary()

    def study_rows(study: str, key: str = "") -> gr.FileData:
        """Download a study's table as a Parquet file: a row is model x prompt x lane, with the KLD of every scored
        token.

        Args:
            study: The id of the study, 16 hexadecimal characters.
            key: As for study_result.
        """
        with one_line():
            found = _opened(studies, study, key)
            name = name_of(found, "rows.parquet")
            file = gr.FileData(path=studies.services.file(name, parquet(found.rows)), orig_name=name)
            return cast(gr.FileData, file.model_dump())  # plain, as Gradio wants what it declares as a file

    return study_result, study_rows


def _sharing(studies: Studies) -> tuple[Callable[..., Any], ...]:
    def share_study(study: str, request: gr.Request, key: str = "") -> str:
        """Let everybody who has its link open a study, and return the link. On a private instance every study is open
        already.

        Args:
            study: The id of the study, 16 hexadecimal characters.
            key: The key that came with its progress; on a public instance only who has it can share the study.
        """
        with one_line():
            _opened(studies, study, key)
            share(studies.services, study, key)
            return f"{page_address(request)}?study={study}"

    return (share_study,)


def _read(data: Any) -> StudySpec:
    """Raises KvqError, also for prompts of a file: the machine is the server's."""
    check_plain(data)
    spec = parse_study(data)
    demand_prompts(spec.prompts)
    return spec


def _forecast(found: StudyQuote) -> StudyForecast:
    told = found.estimate
    return StudyForecast(
        study=told.id,
        cells=told.cells,
        todo=told.todo,
        left_out=told.left_out,
        seconds=told.cost.seconds,
        bytes=told.cost.bytes,
        sentence=told.sentence,
        refusal=found.refusal,
    )


def _opened(studies: Studies, study: str, key: str) -> StudyResult:
    """Raises KvqError for a study that is not here, or not open to the holder of the key."""
    demand(str, study=study, key=key)
    demand_open(studies.services, study, key)
    return studies.results.read(study)


async def _told(going: StudyWork, studies: Studies, request: gr.Request) -> AsyncGenerator[StudyProgress]:
    """Raises KvqError where the study fails or is cancelled."""
    async for now in follow(going):
        yield await asyncio.to_thread(_progress, going, now, studies, request)  # intervals take a moment
    result = going.standing().result
    if going.error is not None:
        raise going.error
    if going.cancelled or result is None:
        raise KvqError("The study was cancelled; what is done is kept. Send it again to go on.")
    studies.results.put(result)
    last = _progress(going, going.standing(), studies, request)
    yield {**last, "stage": "finished", "result": await asyncio.to_thread(result.summary)}


def _progress(going: StudyWork, now: StudyState, studies: Studies, request: gr.Request) -> StudyProgress:
    waits = isinstance(now.doing, LinePlace) and now.doing.ahead > 0
    lines = [] if now.result is None else now.result.lines
    return StudyProgress(
        study=going.plan.id,
        key=key_for(studies.services, going.plan.id),
        link=f"{page_address(request)}?study={going.plan.id}",
        stage="waiting" if waits else "computing",
        done=0 if now.result is None else now.result.done,
        failed=0 if now.result is None else len(now.result.failed),
        total=len(going.plan.cells),
        seconds_left=now.left,
        lanes=[cast(StudyLane, {name: line.get(name) for name in StudyLane.__annotations__}) for line in lines],
        result=None,
    )
