"""What a study found, on the page: the answer first, then its figures, tables, notes and files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import gradio as gr

from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.pairs import PairedDifference
from kvq_core.studies.result import StudyResult
from ui.figures.forest import forest
from ui.figures.pareto import pareto
from ui.figures.prompt_map import MOST, SLANTED, prompt_map, worst_first
from ui.figures.recall import kld_by_position, recall_maps
from ui.html.copying import COPY_JS, copy_box
from ui.html.escape import prose, safe
from ui.html.numbers import plural
from ui.html.study_tables import groups_table, lanes_table, tasks_table, tokens_table
from ui.service.address import page_address
from ui.service.services import Services
from ui.study.files import FILES, download_updates, name_of
from ui.views.view import Drawing, Slot, ViewPage, create_page, or_absent
from ui.words.study import study_words

NOT_YET = "Nothing is scored yet."
OF_GROUPS = f"Mean KLD, nats, with its 95 % interval from {FEWEST} prompts on."
OF_TOKENS = (
    "Mean KLD, nats, and flips by the reference's top probability, with the share of tokens it is of; then of braces, "
    "quotes, digits and names of tools apart."
)
IMAGES = (
    '<div class="images"><button type="button" class="plain-button" data-image="png">Images (PNG)</button>'
    '<button type="button" class="plain-button" data-image="svg">Images (SVG)</button></div>'
)
WEIGHTS_TOO = "KLD against bytes of weights and cache, the lanes of all files"
PRIVATE = "Only this browser can open this study. Share it, and its link opens for everybody who has it."
FOREST = Slot(
    "study-forest",
    "Lanes",
    "Mean over prompts with its 95 % interval; the tick behind it is the 95th percentile of prompts.",
    380,
)
PARETO = Slot("study-pareto", "KLD against bytes", "Dotted: the Pareto front.", 380)
BELOW = (["study-lanes"], (Slot("study-map", "Prompts against lanes", "", 300),))
ROWS = ((FOREST, PARETO), *BELOW)
LONG = ((PARETO,), (FOREST,), *BELOW)  # a forest of many lanes is far taller than what could stand beside it
TALL = 12  # lanes up to which they are about as tall as each other
MORE = (
    ["study-tokens"],
    ["study-groups"],
    ["study-tasks"],
    (
        Slot(
            "study-recall",
            "Recall by depth and length",
            "Right answers, of those of full precision; grey: it has none there, or nothing is done yet.",
            600,
        ),
    ),
    (Slot("study-positions", "KLD along the text", "Mean over prompts by the power of two a position lies in.", 400),),
    ["study-pairs"],
)


@dataclass
class ResultPanel:
    """``shown`` names the study: {"study", "at"}; ``model`` the one whose lanes are drawn."""

    shown: gr.State
    link: gr.HTML
    private: gr.Row
    share: gr.Button
    answer: gr.HTML
    model: gr.Radio
    figures: ViewPage
    more: ViewPage
    below: gr.Column
    files: list[gr.DownloadButton]

    @property
    def outputs(self) -> list[Any]:
        """Outputs of ``draw``."""
        return [self.answer, self.model, self.figures.place, self.more.place, self.below]


def create_result(between: Callable[[], Any]) -> tuple[ResultPanel, Any]:
    """The panel, and what ``between`` puts below the map of prompts."""
    with gr.Column(elem_classes=["card"], elem_id="study-sharing"):
        link = gr.HTML("", js_on_load=COPY_JS, elem_id="study-link")
        with gr.Row(visible=False, elem_id="study-private") as private:
            gr.HTML(f'<p class="muted">{PRIVATE}</p>')
            share = gr.Button("Share this study", size="sm", elem_id="study-share")
    answer = gr.HTML("", elem_id="study-answer")
    with gr.Column(visible=False, elem_classes=["card"], elem_id="study-results") as below:
        gr.HTML('<h2 class="sr-only">What it rests on</h2>')
        model = gr.Radio(
            [], label="Model", visible=False, interactive=True, elem_classes=["switch"], elem_id="study-model-shown"
        )
        figures = create_page(*ROWS)
        beside = between()
        more = create_page(*MORE)
        with gr.Row(elem_id="study-downloads"):
            files = [gr.DownloadButton(name, size="sm", min_width=90) for name in FILES]
            gr.HTML(IMAGES)
    return ResultPanel(gr.State(None), link, private, share, answer, model, figures, more, below, files), beside


def draw(result: StudyResult, asked: str | None) -> list[Any]:
    """Values of ``ResultPanel.outputs``; ``asked``: the model that was picked."""
    models = result.models
    model = asked if asked in models else next(iter(models), "")
    picker = gr.update(choices=models, value=model or None, visible=len(models) > 1)
    if not models:
        return [answer_html(result, model), picker, "", "", gr.update(visible=False)]
    drawn = drawing(result, model)
    lanes = sum(line["model"] == model for line in result.lines)
    rows = [create_html(rows_for(lanes), drawn), create_html(MORE, drawn)]
    return [answer_html(result, model), picker, *rows, gr.update(visible=True)]


def rows_for(lanes: int) -> Any:
    """Rows of figures and tables, as so many lanes are read best."""
    return ROWS if lanes <= TALL else LONG


def create_html(rows: Any, drawn: Drawing) -> str:
    return ViewPage(rows, None).html(drawn)  # type: ignore[arg-type]


def drawing(result: StudyResult, model: str) -> Drawing:
    """Figures and tables of one model's lanes."""
    lines = [line for line in result.lines if line["model"] == model]
    labels = [line["label"] for line in lines]
    figures = {
        "study-forest": or_absent(forest(result, model), NOT_YET),
        "study-pareto": or_absent(pareto(result, model), NOT_YET),
        "study-map": or_absent(prompt_map(result, model), NOT_YET),
        "study-recall": or_absent(recall_maps(result, model), ""),
        "study-positions": or_absent(kld_by_position(result, model), ""),
    }
    groups = groups_table([line for line in result.groups if line["model"] == model], labels)
    tasks = tasks_table([line for line in result.tasks if line["model"] == model], labels)
    html = {
        "study-lanes": lanes_table(lines),
        "study-tokens": _titled("Kinds of tokens", OF_TOKENS, tokens_table(lines, labels)),
        "study-groups": _titled("Groups of prompts", OF_GROUPS, groups),
        "study-tasks": _titled("Tasks", "Right answers, of those that full precision gets right.", tasks),
        "study-pairs": _pairs(result, model),
    }
    prompts = len(worst_first(result, model))
    more = f", of {prompts:,} the {MOST} worst" if prompts > MOST else ""
    order = "" if len(labels) <= SLANTED else "; lanes in the order of the table, each named by a hover"
    titles = {"study-pareto": WEIGHTS_TOO} if result.one_reference else {}
    titles |= {"study-map": f"Prompts against lanes, the worst first{more}{order}; click a row to open it"}
    return Drawing("", figures, html, titles)


def _titled(title: str, note: str, inside: str) -> str:
    return inside and f'<h3 class="figure-title">{safe(title)}</h3><p class="muted">{safe(note)}</p>{inside}'


def _pairs(result: StudyResult, model: str) -> str:
    """What can be said of every two lanes, of every two of different files, and what flips with the model."""
    pairs, across = (
        _told([pair for pair in result.pairs if pair.model == model]),
        _told(result.across, " of different files"),
    )
    flips = result.flips
    flipped = "".join(
        f"<li>{safe(flip.a)} is closer than {safe(flip.b)} on {safe(flip.a_closer)}, and the other way round on "
        f"{safe(flip.b_closer)}.</li>"
        for flip in flips
    )
    told = f'<h3 class="figure-title">Flips with the model</h3><ul>{flipped}</ul>' if flipped else ""
    return f"{told}{pairs}{across}"


def _told(found: Sequence[PairedDifference], of: str = "") -> str:
    """Sentences of pairs, folded; those that cannot be told apart first."""
    pairs = sorted((pair for pair in found if pair.p is not None), key=lambda pair: pair.apart)
    if not pairs:
        return ""
    items = "".join(f"<li>{prose(pair.sentence)}</li>" for pair in pairs)
    alike = sum(not pair.apart for pair in pairs)
    summary = f"{plural(len(pairs), 'pair')} of lanes{of}, {alike} of them not told apart"
    return f'<details class="about"><summary>{safe(summary)}</summary><ul class="pairs">{items}</ul></details>'


def answer_html(result: StudyResult, model: str) -> str:
    """The answer in a sentence with its reasons; what a reader must know before the figures."""
    words = study_words(result, model)
    counts = result.cells
    spec = result.plan.spec
    lanes = plural(len(spec.comparison.lanes), "lane")
    facts = [f"study {result.id}", plural(len(result.plan.prompts), "prompt"), lanes, model]
    facts.append(f"{counts['done']} of {plural(counts['total'], 'cell')} done")
    reasons = "".join(f"<p>{prose(reason)}</p>" for reason in words.reasons)
    failed = [f"{plural(len(result.failed), 'cell')} failed. {why}" for why in list(result.failed.values())[:1]]
    notes = "".join(f'<p class="warning">{prose(note)}</p>' for note in [*result.notes, *failed])
    of = f"{result.id}&amp;model={safe(quote(model))}"
    return (
        f'<section class="study-answer card"><p class="muted">{safe(" · ".join(filter(None, facts)))}</p>'
        f"<h1>{prose(words.sentence)}</h1>{reasons}{notes}"
        f'<p><a href="?decide&amp;of={of}">Decide from this study</a></p></section>'
    )


def live_html(result: StudyResult) -> str:
    """The lanes as they stand while the study goes on, a table a model."""
    blank = [{"label": lane.label, "kld_mean": None, "failed": 0} for lane in result.plan.spec.comparison.lanes]
    tables = {model: [line for line in result.lines if line["model"] == model] for model in result.models}
    return "".join(lanes_table(lines, model) for model, lines in (tables or {"": blank}).items())


def link_html(id: str, request: gr.Request) -> str:
    return copy_box("Link of this study", f"{page_address(request)}?study={id}")


def files_of(result: StudyResult, services: Services) -> list[Any]:
    """Updates of the download buttons."""
    return download_updates(services, {name_of(result, end): partial(make, result) for end, make in FILES.values()})
