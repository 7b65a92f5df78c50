"""What a decision shows on the page: the answer, its figure, what it rests on, and its files."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.recommend.decision import Decision
from kvq_core.recommend.html import as_html
from kvq_core.recommend.markdown import as_markdown
from kvq_core.settings import settings
from ui.decide.answer import answer_html, lanes_html, untested_html, with_links, worst_html
from ui.decide.beside import beside_html
from ui.decide.cell import CellPart, create_cell
from ui.decide.evidence import fits_html, layers_html, policy_html
from ui.figures.decision import decision_front, policy_fronts
from ui.html.copying import COPY_JS, copy_box
from ui.service.address import page_address
from ui.service.services import Services
from ui.study.access import Results
from ui.study.files import download_updates
from ui.views.view import Drawing, Slot, ViewPage, create_page, or_absent

Made = Callable[[Decision, str], str]  # of a decision and the page's address, for links


def _report(make: Callable[..., str]) -> Made:
    return lambda decision, page: make(
        with_links(decision.advice, settings().public), decision.grounds, page, decision.id
    )


FILES: dict[str, tuple[str, Made]] = {
    "Report (HTML)": ("report.html", _report(as_html)),
    "Report (Markdown)": ("report.md", _report(as_markdown)),
    "Decision (JSON)": ("decision.json", lambda decision, page: decision.canonical),
}


def name_of(decision: Decision, page: str, ending: str) -> str:
    """Says all that decides the contents: what a visitor's request says of the page's address is for that address
    alone."""
    return f"decision-{decision.id}-{hashlib.sha256(page.encode()).hexdigest()}-{ending}"


NOTE = "Mean over prompts with its 95 % interval; dotted: the front. Hollow: it cannot be the answer, a hover says why."
NO_FIGURE = "No lane has a loss above 0 to draw."
FRONTS = "Solid: a released version loads such policies. Dashed: only an open pull request reads the map."
PRIVATE = "Only this browser can open this decision and its study. Share them, and the link opens for everybody."
ROWS = (
    (Slot("decide-front", "KLD against bytes", NOTE, 380),),
    ["decide-lanes"],
    ["decide-worst", "decide-untested"],
)
LAYERS = (["decide-layers-map"],)
BELOW = (["decide-policy"], (Slot("decide-fronts", "Policies by budget", FRONTS, 380),), ["decide-fits"])


@dataclass
class ResultPart:
    """``shown`` names the decision: {"decision", "own"}."""

    shown: gr.State
    link: gr.HTML
    private: gr.Row
    share: gr.Button
    answer: gr.HTML
    first: ViewPage
    layers: ViewPage
    below: ViewPage
    evidence: gr.Column
    cell: CellPart
    files: list[gr.DownloadButton]

    @property
    def outputs(self) -> list[Any]:
        """Outputs of ``draw``."""
        pages = (self.first.place, self.layers.place, self.below.place)
        return [self.answer, *pages, self.evidence, *self.files, self.cell.words]


def create_result() -> ResultPart:
    answer = gr.HTML("", js_on_load=COPY_JS, elem_id="decide-answer")
    with gr.Column(elem_classes=["card"], elem_id="decide-sharing"):
        link = gr.HTML("", js_on_load=COPY_JS, elem_id="decide-link")
        with gr.Row(visible=False, elem_id="decide-private") as private:
            gr.HTML(f'<p class="muted">{PRIVATE}</p>')
            share = gr.Button("Share this decision", size="sm", elem_id="decide-share")
    with gr.Column(visible=False, elem_id="decide-evidence") as evidence:
        gr.HTML('<h2 class="sr-only">What it rests on</h2>')
        with gr.Row(elem_id="decide-downloads"):
            files = [gr.DownloadButton(name, size="sm", min_width=90) for name in FILES]
        with gr.Column(elem_classes=["card"]):
            first = create_page(*ROWS)
        with gr.Column(elem_classes=["card"]):
            layers = create_page(*LAYERS)
            cell = create_cell()
        with gr.Column(elem_classes=["card"]):
            below = create_page(*BELOW)
    return ResultPart(gr.State(None), link, private, share, answer, first, layers, below, evidence, cell, files)


def draw(decision: Decision, services: Services, results: Results, page: str, unkept: str = "") -> list[Any]:
    """Values of ``ResultPart.outputs``; ``page``: its address, for links in files."""
    found, grounds = decision.advice, decision.grounds
    drawn = Drawing(
        "",
        {
            "decide-front": or_absent(decision_front(found), NO_FIGURE),
            "decide-fronts": or_absent(policy_fronts(grounds), ""),
        },
        {
            "decide-lanes": lanes_html(found),
            "decide-worst": worst_html(found, settings().public),
            "decide-untested": untested_html(found),
            "decide-layers-map": layers_html(grounds),
            "decide-policy": policy_html(grounds),
            "decide-fits": fits_html(decision),
        },
    )
    pages = [ViewPage(rows, gr.HTML()).html(drawn) for rows in (ROWS, LAYERS, BELOW)]  # type: ignore[arg-type]
    shown = gr.update(visible=True)
    answer = answer_html(decision, unkept, beside_html(decision, results))
    return [answer, *pages, shown, *_files(decision, services, page), ""]


def _files(decision: Decision, services: Services, page: str) -> list[Any]:
    made = {name_of(decision, page, end): partial(_encoded, make, decision, page) for end, make in FILES.values()}
    return download_updates(services, made)


def _encoded(make: Made, decision: Decision, page: str) -> bytes:
    return make(decision, page).encode()


def link_html(id: str, request: gr.Request) -> str:
    return copy_box("Link of this decision", f"{page_address(request)}?decide={id}")
