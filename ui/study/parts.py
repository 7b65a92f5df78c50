"""The parts of the place Study: its form, the study at work, what it found."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.studies.example import packaged_ids
from kvq_core.studies.result import StudyResult
from ui.service.lists import tell_tabs
from ui.service.services import SWIFT
from ui.study.access import KEPT, mine_html, take_over
from ui.study.cell import OPENING, CellPanel, create_cell
from ui.study.form import FormPanel, create_form, wire_form
from ui.study.results import ResultPanel, create_result
from ui.study.watching import STUDY
from ui.study.work import Studies

NO_TICKET: dict[str, Any] = {"id": None}
WELCOME = (
    '<section class="card study-welcome"><h1>One prompt is one sample</h1><p>A study asks many prompts through the '
    "same lanes and says of each figure what the prompts leave open: an interval, what cannot be told apart, and how "
    "many prompts would tell.</p><ol><li><b>Prompts</b> Paste them, choose a file, or take tasks with an answer.</li>"
    "<li><b>Lanes</b> Those of Compare, or a bundle.</li><li><b>Start</b> Cells take turns with other visitors' runs. "
    "What is done is kept: a study that is cancelled goes on.</li></ol>{examples}</section>"
)
EXAMPLE = (
    '<div class="examples"><a class="example" href="?study={id}"><b>Look at one first: eight caches, two models</b>'
    "<small>The reference table's prompts through formats of 2 to 8 bits; which are safe, and what flips with the model"
    "</small></a></div>"
)


@dataclass
class StudyPlace:
    """``mine``: this browser's studies; ``ticket`` names the study that the page began last."""

    studies: Studies
    form: FormPanel
    compare_lanes: gr.State
    status: gr.HTML
    go_on: gr.Button
    live: gr.HTML
    welcome: gr.HTML
    result: ResultPanel
    cell: CellPanel
    mine: gr.BrowserState
    listing: gr.HTML
    ticket: gr.State

    def found(self, shown: dict[str, Any] | None) -> StudyResult | None:
        """The study that is shown; None where there is none, or it is gone."""
        try:
            return self.studies.results.get(shown["study"]) if shown else None
        except KvqError:
            return None

    def forget(self, request: gr.Request) -> None:
        """The page is closed: its study stops, and so does a cell that was to be opened."""
        self.studies.forget(STUDY.session(request))
        self.studies.services.jobs.forget(OPENING.session(request))


def welcome_html() -> str:
    """What an empty place says, with the study that ships to look at."""
    return WELCOME.format(examples="".join(EXAMPLE.format(id=id) for id in packaged_ids()))


def arrange_study(studies: Studies, compare_lanes: gr.State) -> StudyPlace:
    """``compare_lanes``: those of the form of Compare, which a study can take."""
    with gr.Row(elem_id="study"):
        with gr.Column(elem_id="study-left", min_width=0):
            form = create_form()
            mine = gr.BrowserState([], storage_key="kvq-explorer-studies", secret="kvq-explorer")
            with gr.Column(elem_classes=["card"], elem_id="study-mine"):
                gr.HTML("<h2>Your studies</h2>")
                listing = gr.HTML(mine_html([]), elem_id="studies")
                told = gr.Textbox(visible="hidden", elem_id="study-told", show_label=False)
        with gr.Column(elem_id="study-right", min_width=0):
            status = gr.HTML("", elem_id="study-status")
            go_on = gr.Button("Go on", visible=False, elem_id="study-go-on", size="sm")
            live = gr.HTML("", elem_id="study-live")
            result, cell = create_result(create_cell)
            welcome = gr.HTML(welcome_html(), elem_id="study-welcome")
    wire_form(form, compare_lanes, studies.services.store, result.shown.change)
    wire_tabs(mine, listing, told)
    return StudyPlace(
        studies,
        form,
        compare_lanes,
        status,
        go_on,
        live,
        welcome,
        result,
        cell,
        mine,
        listing,
        gr.State(NO_TICKET),
    )


def wire_tabs(mine: gr.BrowserState, listing: gr.HTML, told: gr.Textbox) -> None:
    """What is begun in one tab is in the list of the others."""

    def follow_tab(raw: str, kept: Any) -> list[Any]:
        kept = take_over(kept, raw)
        return [kept, mine_html(kept)]

    told.change(follow_tab, [told, mine], [mine, listing], **SWIFT)
    mine.change(None, mine, None, js=tell_tabs("studies", KEPT), **SWIFT)
