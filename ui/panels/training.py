"""Codebooks that lanes lack: what training them takes, offered before Run, and the training as it goes."""

from collections.abc import AsyncGenerator, Generator, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.machine.progress import Progress
from kvq_core.pipeline.timings import Cost
from kvq_core.spec import parse_lane
from kvq_core.training.offer import BUDGETS, Offer, TrainingResult
from ui.form.lanes import LaneForm, to_spec
from ui.form.lanes_panel import LanesPanel
from ui.form.setup_panel import Setup
from ui.html.escape import safe
from ui.html.numbers import plural, significant, size
from ui.html.status import line, notice, place_line, progress_line
from ui.panels.job_panel import JobPanel
from ui.service.jobs import Job
from ui.service.services import QUIET, SWIFT, Services, visitor
from ui.service.streams import with_empty_end

TRAINING = JobPanel(
    "training",
    "Train",
    "Training",
    ("Training cancelled", "warn", None, "What is finished is kept; Train goes on from there."),
    inputs=1,
)
NO_TICKET: dict[str, Any] = {"id": None}
CHOICES = {"full": "{:,} tokens, as the shipped ones", "quick": "{:,} tokens: sooner done, larger errors"}


@dataclass
class Trainer:
    """``ticket`` names the training this page started last, and what it asked for."""

    area: gr.Column
    words: gr.HTML
    budget: gr.Radio
    train: gr.Button
    cancel: gr.Button
    progress: gr.HTML
    ticket: gr.State

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        """Outputs of ``offer_updates``."""
        return [self.area, self.words, self.budget, self.train, self.cancel, self.progress]


def create_training() -> Trainer:
    with gr.Column(visible=False, elem_classes=["card"], elem_id="training") as area:
        words = gr.HTML("", elem_id="training-offer")
        choices = [(CHOICES[name].format(tokens), name) for name, (tokens, _) in BUDGETS.items()]
        budget = gr.Radio(choices, value="full", label="Text to train on", elem_id="training-budget", interactive=True)
        progress = gr.HTML("", elem_id="training-progress")
        train = gr.Button("Train", variant="primary", elem_id="train")
        cancel = gr.Button("Cancel training", visible=False, elem_id="cancel-training")
    return Trainer(area, words, budget, train, cancel, progress, gr.State(NO_TICKET))


def wire_training(panel: Trainer, setup: Setup, lanes: LanesPanel, services: Services) -> None:
    """The offer follows model and lanes; Train queues for the engine as Run does, and holds it until it is over."""
    form = [setup["model"], setup.rest, lanes.lanes, panel.budget]

    def offer(model: str, rest: dict[str, Any], form_lanes: list[LaneForm], budget: str, ticket: Any) -> list[Any]:
        if services.line.flag(ticket["id"] or "") is not None:
            return [gr.skip()] * len(panel.outputs)  # the training that is on its way stays in view
        return offer_updates(_found(services, model, rest, form_lanes, budget))

    def again(model: str, rest: dict[str, Any], form_lanes: list[LaneForm], budget: str) -> list[Any]:
        found = _found(services, model, rest, form_lanes, budget)
        if found is None:  # all is there: how the training ended stays in view until the form changes
            return [gr.skip(), "", *[gr.update(visible=False)] * 3, gr.skip()]
        return [*offer_updates(found)[:-1], gr.skip()]

    def submit(
        model: str, rest: dict[str, Any], form_lanes: list[LaneForm], budget: str, request: gr.Request
    ) -> list[Any]:
        asked = TrainingRequest(model, rest, form_lanes, budget)
        try:
            job = asked.submit(services, TRAINING.session(request), visitor(request))
        except KvqError as error:
            return [gr.skip(), notice("This cannot be trained", str(error)), *TRAINING.idle()]
        return [{"id": job.ticket}, place_line(*astuple(services.line.place(job.ticket))), *TRAINING.busy()]

    async def watch(start: dict[str, Any]) -> AsyncGenerator[list[Any]]:
        async for update in with_empty_end(stream(start, services)):
            yield update

    told = [panel.progress, panel.budget, panel.train, panel.cancel]
    triggers = [setup["model"].change, lanes.lanes.change, panel.budget.input]
    gr.on(
        triggers, offer, [*form, panel.ticket], panel.outputs, **QUIET, trigger_mode="always_last", concurrency_limit=2
    )
    panel.train.click(submit, form, [panel.ticket, *told], **SWIFT)
    trained = panel.ticket.change(watch, panel.ticket, told, **SWIFT, trigger_mode="multiple")
    trained.then(again, form, panel.outputs, **SWIFT)
    panel.cancel.click(TRAINING.on_cancel(services), None, told, **SWIFT)


def _found(services: Services, model: str, rest: dict[str, Any], lanes: list[LaneForm], budget: str) -> Offer | None:
    """The offer for the form as it stands; an impossible lane, or a model that cannot be loaded, says so elsewhere."""
    possible = []
    for lane in to_spec(lanes):
        try:
            possible.append(parse_lane(lane))
        except KvqError:
            continue
    try:
        return services.offer(str(model or "").strip(), rest.get("revision"), possible, budget)
    except KvqError:
        return None


def offer_updates(found: Offer | None) -> list[Any]:
    """Updates of Trainer.outputs: the card, or none."""
    if found is None:
        return [gr.update(visible=False), "", *[gr.skip()] * 3, ""]
    refused = found.refusal is not None
    return [
        gr.update(visible=True),
        offer_html(found),
        *[gr.update(visible=not refused)] * 2,
        gr.update(visible=False),
        "",
    ]


def offer_html(found: Offer) -> str:
    """Who lacks what, what training does, how long it takes and what it writes; the commands that do the same."""
    one = len(found.lanes) == 1
    need = (
        f"{' and '.join(found.lanes)} {'reads' if one else 'read'} learned codebooks, and {found.model_title} has none "
        "like this yet."
    )
    kinds = [_described(kind, request) for request in found.requests for kind in request.kinds]
    what = (
        f"Training runs the model over {sum(found.requests[0].reads):,} tokens of the standard library's help texts "
        f"and fits {' and '.join(kinds)}: about {_about(found.seconds)}, {size(found.bytes)} on disk, once for this "
        "model. Runs wait meanwhile. It can be cancelled; what is finished is kept."
    )
    commands = "".join(f"<code>{safe(command)}</code>" for command in found.commands)
    shell = f'<details class="about"><summary>From a terminal</summary>{commands}</details>'
    end = found.refusal or what
    return f"<h2>Codebooks are missing</h2><p>{safe(need)}</p><p>{safe(end)}</p>{shell}"


def _described(kind: str, request: Any) -> str:
    bits = plural(request.bits, "bit")
    if kind == "keys":
        return f"keys ({request.levels} levels, {plural(request.stages, 'stage') if request.stages else bits})"
    return f"values ({bits})" if kind == "values" else f"rotations ({request.target})"


def _about(time: float) -> str:
    """An estimate, no more exact than it is: ``40 s``, ``6 min``."""
    return f"{round(time / 60):,} min" if time >= 90 else f"{max(10, round(time, -1)):.0f} s"


@dataclass(frozen=True)
class TrainingRequest:
    """What a page asked to train: the form as it stood."""

    model: str
    rest: dict[str, Any]
    lanes: list[LaneForm]
    budget: str

    def offer(self, services: Services) -> Offer | None:
        return _found(services, self.model, self.rest, self.lanes, self.budget)

    def submit(self, services: Services, session: str, visitor: str) -> Job:
        """Put the training in the line of the runs. Raises KvqError where this instance does not train or has no
        room."""
        found = self.offer(services)
        if found is not None and found.refusal:
            raise KvqError(found.refusal)
        return services.enter(
            partial(self._work, services), session, visitor, Cost(found.seconds if found is not None else 0.0)
        )

    def _work(self, services: Services) -> Generator[Progress | TrainingResult]:
        found = self.offer(services)  # another page, or the command, may have trained them meanwhile
        if found is not None:
            yield from services.train(found)


async def stream(start: dict[str, Any], services: Services) -> AsyncGenerator[list[Any]]:
    """Updates of a training: progress, then budget, Train and Cancel. It waits its turn in the line of the runs."""
    job = services.jobs.watch(start.get("id"))
    if job is None:  # cancelled before it was watched: the page says so already
        return
    last: list[Any] = [line("Nothing is missing any more", "done"), *TRAINING.idle()]

    def show(news: list[Any]) -> Iterator[list[Any]]:
        nonlocal last
        if isinstance(news[-1], TrainingResult):
            last = [trained_line(news[-1]), *TRAINING.idle()]
        else:
            yield [progress_line(news[-1]), *TRAINING.busy()]

    async for update in TRAINING.updates(job, services, 0, show):
        yield update
    if job.replaced:
        return
    if job.cancelled:
        last = [TRAINING.cancelled_line(), *TRAINING.idle()]
    elif (error := TRAINING.failure(job)) is not None:
        last = [notice("The training stopped", error), *TRAINING.idle()]
    yield last


def trained_line(event: TrainingResult) -> str:
    """The line for what was trained."""
    errors = (f"{book.kind} {significant(book.held_out_error[-1])}" for book in event.codebooks)
    detail = f"Squared error on text held out: {', '.join(errors)}. Run uses them now."
    return line("Codebooks trained", "done", detail=detail)
