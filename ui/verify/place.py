"""The place Verify put together: its form, a verification at work, what it found, and what a link to it opens."""

from collections.abc import AsyncGenerator, Generator, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError, SpecError, StoreError, excerpt
from kvq_core.machine.progress import Progress, yielding
from kvq_core.record.store import Store
from kvq_core.servers import verification
from kvq_core.servers.llama_cpp import CACHE_TYPES
from kvq_core.servers.verification import Report, ToVerify
from kvq_core.settings import settings
from ui.html.copying import COPY_JS, copy_box, remember_js
from ui.html.status import line, notice, place_line, sentence
from ui.panels.job_panel import JobPanel
from ui.service.address import page_address
from ui.service.jobs import Job
from ui.service.services import QUIET, SWIFT, Services, visitor
from ui.service.streams import with_empty_end
from ui.study.asked import study_of
from ui.study.form import form_of
from ui.study.prompts import create_prompts
from ui.verify.result import FILES, answer_html, files_of, tables_html

NEXT = "Check the link, or verify the server again."
VERIFY = JobPanel(
    "verify", "Verify", "Verifying", ("Cancelled", "warn", None, "Prompts that were asked are kept: Verify goes on.")
)
WELCOME = (
    '<section class="card study-welcome"><h1>Is my server\'s cache the one I asked for?</h1><p>Flags are skipped '
    "silently, scales stay at 1.0, two builds differ. The server is asked token by token, beside a server of the same "
    "file with a full-precision cache.</p><ol><li><b>Servers</b> Two addresses; or one, and the model run here.</li>"
    "<li><b>Prompts</b> Five or more, so that the verdict has an interval.</li><li><b>Verdict</b> As expected, worse, "
    "a no-op, or cannot tell, and how many more prompts would.</li></ol></section>"
)
KEYS = (
    f'<p class="muted">Keys are read from {verification.KEYS[0]} and {verification.KEYS[1]} in this page\'s '
    "environment. Nobody else should ask the two servers meanwhile.</p>"
)


@dataclass
class VerifyPlace:
    """``fields``: of prompts, then addresses and numbers; ``shown``: the report that is shown."""

    services: Services
    fields: list[Any]
    status: gr.HTML
    start: gr.Button
    cancel: gr.Button
    shown: gr.State

    def forget(self, request: gr.Request) -> None:
        """The page is closed: its verification stops."""
        self.services.jobs.leave(VERIFY.session(request))

    def wire_visit(self, arrived: Any) -> None:
        """Open what the address names."""

        def arrive(request: gr.Request) -> list[Any]:
            if not (id := request.query_params.get("verify")):
                return [gr.skip(), gr.skip()]
            try:
                return ["", verification.kept(self.services.store, id)]
            except KvqError as error:
                return [notice("The verification cannot be opened", str(error), NEXT), gr.skip()]

        arrived.then(arrive, None, [self.status, self.shown], **SWIFT)


def create_verify(services: Services) -> VerifyPlace | None:
    """None on a public instance, which asks no servers."""
    if settings().public:
        return None
    with gr.Row(elem_id="verify"):
        with gr.Column(elem_id="verify-left", min_width=0):
            fields, start, cancel = _create_form()
        with gr.Column(elem_id="verify-right", min_width=0):
            status = gr.HTML("", elem_id="verify-status")
            with gr.Column(elem_classes=["card"], elem_id="verify-sharing"):
                link = gr.HTML("", js_on_load=COPY_JS, elem_id="verify-link")
            answer = gr.HTML("", elem_id="verify-answer")
            with gr.Column(visible=False, elem_classes=["card"], elem_id="verify-tables") as below:
                tables = gr.HTML("")
                with gr.Row(elem_id="verify-downloads"):
                    files = [gr.DownloadButton(name, size="sm", min_width=90) for name in FILES]
            gr.HTML(WELCOME, elem_id="verify-welcome")
    place = VerifyPlace(services, fields, status, start, cancel, gr.State(None))
    _wire_start(place)

    def show(report: Report | None, request: gr.Request) -> list[Any]:
        if not report:
            return [gr.skip()] * (4 + len(files))
        box = copy_box("Link of this verification", f"{page_address(request)}?verify={report['id']}")
        made = files_of(report, services)
        return [box, answer_html(report), tables_html(report), gr.update(visible=True), *made]

    place.shown.change(show, place.shown, [link, answer, tables, below, *files], **QUIET)
    link.change(None, link, None, js=remember_js("verify"), **SWIFT)
    return place


def _create_form() -> tuple[list[Any], gr.Button, gr.Button]:
    with gr.Column(elem_classes=["card"], elem_id="verify-servers"):
        gr.HTML(f"<h2>Servers</h2>{KEYS}")
        server = gr.Textbox(label="Server", placeholder="http://127.0.0.1:8081", interactive=True)
        against = gr.Textbox(label="With a full-precision cache", placeholder="http://127.0.0.1:8080", interactive=True)
        model = gr.Textbox(
            label="Model", info="To predict with, or the baseline where no second server is given", interactive=True
        )
        form = gr.Dropdown(
            list(CACHE_TYPES), value=None, label="Format asked for", allow_custom_value=True, interactive=True
        )
    prompts = create_prompts("verify")
    with gr.Column(elem_classes=["card", "starts"], elem_id="verify-start-card"):
        with gr.Row():
            tokens = gr.Number(64, label="Tokens", precision=0, min_width=70, interactive=True)
            top = gr.Number(20, label="Top", precision=0, min_width=70, interactive=True)
            tolerance = gr.Textbox(label="Tolerance", placeholder="nats", min_width=70, interactive=True)
        start = gr.Button(VERIFY.start, variant="primary", elem_id="verify-start")
        cancel = gr.Button("Cancel", visible=False, elem_id="verify-cancel")
    return [*prompts.fields, server, against, model, form, tokens, top, tolerance], start, cancel


def _wire_start(place: VerifyPlace) -> None:
    async def work(request: gr.Request, *values: Any) -> AsyncGenerator[list[Any]]:
        going = stream(values, VERIFY.session(request), visitor(request), place.services)
        async for update in with_empty_end(going):
            yield update

    outputs = [place.status, place.start, place.cancel]
    place.start.click(work, place.fields, [*outputs, place.shown], **SWIFT)
    place.cancel.click(VERIFY.on_cancel(place.services), None, outputs, **SWIFT)


def request_of(values: tuple[Any, ...]) -> ToVerify:
    """Of the form's fields in their order; what a browser sends may be anything. Raises KvqError."""
    *prompts, server, against, model, form, tokens, top, tolerance = values
    if not (address := str(server or "").strip()):
        raise SpecError("There is no server yet: give its address, such as http://127.0.0.1:8081.")
    given = {"tokens": tokens, "top": top}
    if wrong := next((name for name, each in given.items() if not isinstance(each, int | float) or each % 1), None):
        raise SpecError(f"{wrong}: {given[wrong]!r} is not allowed; give a whole number.")
    held = form_of((*prompts, (), "deploy", 1))  # a study's form; of the study its prompts are taken
    texts = [str(each or "").strip() or None for each in (against, model, form, tolerance)]
    try:
        most = None if texts[3] is None else float(texts[3])
    except ValueError:
        raise SpecError(f"tolerance {excerpt(texts[3])} is not allowed; give nats from 0.") from None
    read = study_of(held, []).spec.prompts.read()[0]
    return ToVerify(address, texts[0], read, int(tokens), int(top), texts[2], texts[1], most)


async def stream(values: tuple[Any, ...], session: str, visitor: str, services: Services) -> AsyncGenerator[list[Any]]:
    """Updates of status, Verify, Cancel and the report that is shown."""
    said: list[str] = []
    try:
        request = request_of(values)
        job = services.enter(partial(verifying, request, services.store, said), session, visitor)
    except Exception as error:
        yield [VERIFY.refusal(error), *VERIFY.idle(), gr.skip()]
        return
    services.jobs.watch(job.ticket)  # this page follows it
    yield [place_line(*astuple(services.line.place(job.ticket))), *VERIFY.busy(), gr.skip()]
    found: list[Report] = []

    def show(news: list[Any]) -> Iterator[list[Any]]:
        found.extend(event for event in news if isinstance(event, dict))
        told = [event for event in news if isinstance(event, Progress)]
        if told:
            yield [_progress(told[-1], said), *VERIFY.busy(), gr.skip()]

    async for update in VERIFY.updates(job, services, 1, show):
        yield update
    if not job.replaced:
        yield [_end(job, found), *VERIFY.idle(), found[-1] if found else gr.skip()]


def verifying(request: ToVerify, store: Store, said: list[str]) -> Generator[Progress | Report | None]:
    """How far it is, then the report, kept where the store takes it; ``said`` gets what has no end to be far from."""

    def told(tell: Any, now: Progress) -> None:
        if not now.total:
            said.append(now.doing)
        tell(now)

    report = yield from yielding(lambda tell: verification.verify(request, partial(told, tell)), "verify")
    try:
        verification.keep(store, report)
    except StoreError as error:
        report["notes"].append(f"{error} Its link will not open it again; the files below hold all of it.")
    yield report


def _progress(now: Progress, said: list[str]) -> str:
    if not now.total:
        return line(now.doing, detail=" ".join(said[:-1]))
    return line(sentence(now), done=now.part, detail=" ".join(said))


def _end(job: Job, found: list[Report]) -> str:
    if found:
        return line("Verified", "done")
    error = VERIFY.failure(job)
    return (
        VERIFY.cancelled_line()
        if error is None
        else notice("The server cannot be verified", error, "Verify goes on after the prompts that were asked.")
    )
