"""A prompt of a study as a full comparison: what the study found of it, and the run with captures and texts."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.record.events import Finished
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.result import StudyResult
from ui.figures.prompt_map import prompt_names, worst_first
from ui.html.escape import safe, shorten
from ui.html.numbers import significant
from ui.html.status import event_line, line, notice, place_line
from ui.panels.history import remember
from ui.panels.job_panel import JobPanel
from ui.service.access import key_for
from ui.service.services import Services, visitor

OPENING = JobPanel(
    "opening", "Open as a full comparison", "Computing", ("Cancelled", "warn", None, "Nothing was kept of it."), 1
)


@dataclass
class CellPanel:
    """``pick`` is written by a click in the map; ``go`` is where the browser goes when the run is there."""

    prompt: gr.Dropdown
    words: gr.HTML
    open: gr.Button
    cancel: gr.Button
    status: gr.HTML
    pick: gr.Textbox
    go: gr.Textbox


def create_cell() -> CellPanel:
    with gr.Column(elem_id="study-cell"):
        with gr.Row(elem_id="study-cell-row"):
            prompt = gr.Dropdown([], label="Prompt, the worst first", elem_id="study-prompt", interactive=True)
            button = gr.Button(OPENING.start, size="sm", elem_id="study-open")
            cancel = gr.Button("Cancel", size="sm", visible=False, elem_id="study-open-cancel")
        words = gr.HTML("", elem_id="study-cell-words")
        status = gr.HTML("", elem_id="study-cell-status")
        pick = gr.Textbox(visible="hidden", elem_id="study-pick", show_label=False)
        go = gr.Textbox(visible="hidden", elem_id="study-go", show_label=False)
    return CellPanel(prompt, words, button, cancel, status, pick, go)


def choices(result: StudyResult, model: str) -> Any:
    """The prompts of a model as a picker has them."""
    found = worst_first(result, model)
    named = list(zip(prompt_names(result, found, 90), found, strict=True))
    return gr.update(choices=named, value=next(iter(found), None))


def cell_html(result: StudyResult, model: str, prompt: str) -> str:
    """What was asked, and how far each lane is from the reference there."""
    asked = next((each for each in result.plan.prompts if each.id == prompt), None)
    rows = result.table[(result.table["model"] == model) & (result.table["prompt"] == prompt)]
    if asked is None or not len(rows):
        return ""
    lanes = "".join(
        f'<li><span class="dot lane-{row.at}"></span>{safe(row.lane)} <b>{significant(row.kld_mean)}</b></li>'
        for row in rows.itertuples()
    )
    return f'<blockquote>{safe(shorten(words_of(asked), 320))}</blockquote><ul class="cell-lanes">{lanes}</ul>'


def words_of(prompt: StudyPrompt) -> str:
    """The prompt, or the last message of its conversation."""
    if prompt.messages:
        return str(prompt.messages[-1].content or "")
    return prompt.prompt


async def open_cell(
    result: StudyResult, model: str, prompt: str, kept: Any, request: gr.Request, services: Services
) -> AsyncGenerator[list[Any]]:
    """Updates of status, picker, both buttons, the browser's history and where to go: the run is computed in the line
    of all runs where it is not in the store."""
    try:
        spec = result.plan.cell(str(prompt), model).full()
        job = services.submit(spec, OPENING.session(request), visitor(request))
    except KvqError as error:
        yield [notice("This cannot be opened", str(error)), *OPENING.idle(), gr.skip(), gr.skip()]
        return
    services.jobs.watch(job.ticket)
    place = services.line.place(job.ticket)
    yield [place_line(place.ahead, place.seconds), *OPENING.busy(), gr.skip(), gr.skip()]
    found: list[Finished] = []

    def show(news: list[Any]) -> Iterator[list[Any]]:
        found.extend(event for event in news if isinstance(event, Finished))
        if (said := event_line(news[-1])) is not None:
            yield [said, *OPENING.busy(), gr.skip(), gr.skip()]

    async for update in OPENING.updates(job, services, 2, show):
        yield update
    if job.replaced:
        return
    if found:
        record = found[-1].record
        services.records.put(record, found[-1].arrays)
        mine = remember(kept, record, key_for(services, record.id))
        yield [line("The run is there", "done"), *OPENING.idle(), mine, f"?run={record.id}"]
        return
    failure = OPENING.failure(job)
    said = OPENING.cancelled_line() if failure is None else notice("This cannot be opened", failure)
    yield [said, *OPENING.idle(), gr.skip(), gr.skip()]
