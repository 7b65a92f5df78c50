"""The line under the model: what a look at it found before any run and what fits, and the look as it goes."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.inspection.fits import fit_here
from kvq_core.inspection.look import kept_inspection
from kvq_core.inspection.report import Inspection
from kvq_core.machine.progress import Progress
from kvq_core.settings import settings
from kvq_core.spec import parse_lane
from ui.form.lanes import append_lane
from ui.form.lanes_panel import LanesPanel, redraw_lanes
from ui.form.setup_panel import Setup
from ui.html.inspection import look_html
from ui.html.status import notice, place_line, progress_line
from ui.panels.job_panel import JobPanel
from ui.panels.mend import MendPanel, create_mend, offer_html, wire_mend
from ui.service.jobs import Job
from ui.service.services import LANES, QUIET, SWIFT, Services, visitor
from ui.service.streams import with_empty_end

LOOKING = JobPanel(
    "looking",
    "Look at this model",
    "Looking",
    ("Look cancelled", "warn", None, "Nothing was kept of it."),
)


@dataclass
class LookPanel:
    """``look`` is out of sight: js/page.js presses it for the button in the words. ``chosen`` is written by it: the
    number of the remedy whose lane is to be added."""

    words: gr.HTML
    status: gr.HTML
    look: gr.Button
    cancel: gr.Button
    chosen: gr.Textbox
    shown: gr.State  # which look the words are of
    found: gr.State  # the last look of this page: model and revision asked for, and the inspection
    mend: MendPanel

    @property
    def outputs(self) -> list[Any]:
        return [self.status, self.look, self.cancel, self.found]


def create_look() -> LookPanel:
    with gr.Column(elem_id="look"):
        words = gr.HTML("", elem_id="look-words")
        status = gr.HTML("", elem_id="look-status")
        look = gr.Button(LOOKING.start, size="sm", elem_id="look-run")
        cancel = gr.Button("Cancel the look", size="sm", visible=False, elem_id="look-cancel")
        chosen = gr.Textbox(visible="hidden", elem_id="remedy", show_label=False)
        mend = create_mend()
    return LookPanel(words, status, look, cancel, chosen, gr.State(None), gr.State(None), mend)


def wire_look(panel: LookPanel, setup: Setup, lanes: LanesPanel, estimate: gr.HTML, services: Services) -> None:
    """What is kept of the form's model is shown whenever it changes, and once it is loaded, after which the
    ``estimate`` changes; the button looks, in the line of the runs."""
    form = [setup["model"], setup.rest]

    def show(model: str, rest: dict[str, Any], shown: str | None) -> list[Any]:
        asked = str(model or "").strip(), rest.get("revision")
        found = kept_inspection(*asked)
        told = _told(asked, found)
        if told == shown:
            return [gr.skip()] * 3
        return ["", _html(found, asked), told]

    async def work(model: str, rest: dict[str, Any], request: gr.Request) -> AsyncGenerator[list[Any]]:
        asked = str(model or "").strip(), rest.get("revision")
        async for update in with_empty_end(stream(*asked, LOOKING.session(request), visitor(request), services)):
            yield update

    def add(raw: str, model: str, rest: dict[str, Any], form: list[dict[str, Any]]) -> list[Any]:
        found = kept_inspection(str(model or "").strip(), rest.get("revision"))
        number = (raw or "").partition(" ")[0]
        if found is None or not (number.isascii() and number.isdigit() and int(number) < len(found.remedies)):
            return [gr.skip()] * len(lanes.outputs)
        return redraw_lanes(append_lane(form, parse_lane(found.remedies[int(number)].lane)), None)

    shown = [panel.status, panel.words, panel.shown]
    changed = [setup["model"].change, estimate.change]
    gr.on(changed, show, [*form, panel.shown], shown, **QUIET, trigger_mode="always_last", concurrency_limit=2)
    looked = panel.look.click(work, form, panel.outputs, **SWIFT)
    looked.then(show_found, [panel.found, *form], [panel.words, panel.shown], **SWIFT)
    panel.cancel.click(LOOKING.on_cancel(services), None, [panel.status, panel.look, panel.cancel], **SWIFT)
    wire_mend(panel.mend, setup["model"], services)
    panel.chosen.change(add, [panel.chosen, *form, lanes.lanes], lanes.outputs, **LANES)


def show_found(found: tuple[tuple[str, str | None], Inspection] | None, model: str, rest: dict[str, Any]) -> list[Any]:
    """What a look found, unless the form has another model by now."""
    asked = str(model or "").strip(), rest.get("revision")
    if found is None or found[0] != asked:
        return [gr.skip()] * 2
    return [_html(found[1], asked), _told(asked, found[1])]


def _html(found: Inspection | None, asked: tuple[str, str | None]) -> str:
    return look_html(found, fit_here(*asked), _can_look(found), offer_html(found, asked[0]))


async def stream(
    model: str, revision: str | None, session: str, visitor: str, services: Services
) -> AsyncGenerator[list[Any]]:
    """Updates of status, button, Cancel and what was found while a model is looked at."""
    try:
        job = services.enter(partial(services.look, model, revision), session, visitor)
    except KvqError as error:
        yield [notice("The model cannot be looked at", str(error)), *LOOKING.idle(), gr.skip()]
        return
    services.jobs.watch(job.ticket)  # this page follows it
    yield [place_line(*astuple(services.line.place(job.ticket))), *LOOKING.busy(), gr.skip()]
    found: list[Inspection] = []

    def show(news: list[Any]) -> Iterator[list[Any]]:
        found.extend(event for event in news if isinstance(event, Inspection))
        if isinstance(news[-1], Progress):
            yield [progress_line(news[-1]), *LOOKING.busy(), gr.skip()]

    async for update in LOOKING.updates(job, services, 1, show):
        yield update
    if not job.replaced:
        yield _end(job, found, (model, revision))


def _told(asked: tuple[str, str | None], found: Inspection | None) -> str:
    """Which look the words are of."""
    return f"{asked} {found and found.model_hash}"


def _can_look(found: Inspection | None) -> bool:
    return not settings().zero_gpu and (found is None or not found.remedies)


def _end(job: Job, found: list[Inspection], asked: tuple[str, str | None]) -> list[Any]:
    """How it ended."""
    if found:
        return ["", *LOOKING.idle(), (asked, found[-1])]
    error = LOOKING.failure(job)
    said = LOOKING.cancelled_line() if error is None else notice("The model cannot be looked at", error)
    return [said, *LOOKING.idle(), gr.skip()]
