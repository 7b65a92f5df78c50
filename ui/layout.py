"""The page: panels in their places, and what a finished or linked run sets going. Nothing is drawn here."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from ui.api.endpoints import create_api
from ui.decide.place import create_decide
from ui.decide.work import Decisions
from ui.export.answer import UNANSWERED, answer_html
from ui.figures.base import canvas
from ui.form.draft_panel import VISIT_JS, create_draft, restore_form, wire_draft
from ui.form.filling import NEXT_FOR_A_LINK, form_of, form_outputs, from_preset, linked_form, looked_at, open_page
from ui.form.lanes_panel import LanesPanel, create_lanes, wire_bundle, wire_flags
from ui.form.setup_panel import Setup, create_setup, wire_presets
from ui.form.waiting import mark_filled
from ui.html.along import along_html
from ui.html.cards import finished_cards
from ui.html.copying import FOLLOW_JS
from ui.html.scripts import PAGE_JS
from ui.html.status import notice
from ui.panels.act import ACTING, ActPanel, create_act, wire_act
from ui.panels.answers import AnswerCards, all_lanes, create_answers, stage_html, wire_table
from ui.panels.claims import create_claims
from ui.panels.differs import create_differs, wire_differs
from ui.panels.first_sight import place_home
from ui.panels.header import OTHERS, chip, create_header, markup
from ui.panels.history import History, create_history, create_shared, list_history, remember, wire_history
from ui.panels.inspection import LOOKING, LookPanel, create_look, wire_look
from ui.panels.instruments import Instruments, create_asked, create_instruments, show_instruments
from ui.panels.launch import RUN, TO_ANSWERS, LaunchPanel, create_launch, wire_estimate, wire_run
from ui.panels.learn import Learn, at_step, create_learn, place, show_step, show_step_of_run, step_number, wire_learn
from ui.panels.measure import MEASURING, create_measure
from ui.panels.open_file import create_open_file
from ui.panels.scorecard import Scorecard, create_scorecard, show_scorecard
from ui.panels.share import SharePanel, create_share, show_share, wire_share
from ui.panels.training import TRAINING, Trainer, create_training, wire_training
from ui.panels.versus import Beside, create_versus, wire_versus
from ui.panels.welcome import home, welcome
from ui.server.gradio_arguments import Blocks
from ui.service.access import added_here, key_for
from ui.service.services import QUIET, SWIFT, Services
from ui.study.place import create_study, wire_visit
from ui.study.work import Studies
from ui.verify.place import create_verify
from ui.views.selectors import create_selectors
from ui.views.tabs import (
    DRAWING,
    OnPage,
    Views,
    create_views,
    draw_open,
    drawing_inputs,
    drawing_outputs,
    fit,
    fit_outputs,
    wire_views,
)
from ui.views.verdicts import wire_suggestions

NO_RUN: dict[str, Any] = {"run": None}
MAX_QUEUE = 2000  # events of all pages that wait for a handler; runs have a line of their own, see service/admission
ASKED = {"run", "vs", "c", "preset", *OTHERS}  # of an address; without any of them a run that ships is shown
NO_EXAMPLES = "The stored examples are missing from presets/runs; `make examples` computes them again."


@dataclass
class Page:
    """Every panel, and the run that is shown."""

    run: gr.State
    header: gr.HTML
    setup: Setup
    look: LookPanel
    lanes: LanesPanel
    trainer: Trainer
    launch: LaunchPanel
    draft: gr.Textbox
    differs: tuple[gr.HTML, gr.Textbox]
    instruments: Instruments
    act: ActPanel
    past: History
    status: gr.HTML
    answer: gr.HTML
    cards: AnswerCards
    share: SharePanel
    beside: Beside
    score: Scorecard
    learn: Learn
    along: gr.HTML
    views: Views
    plotly: gr.Plot


def build_ui(services: Services) -> gr.Blocks:
    """The page of a server."""
    with Blocks(title="KVQ Explorer", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        studies, decisions = Studies(services), Decisions(services)
        create_api(services, studies, decisions)  # before all others: of handlers of one name the first keeps it
        page = _arrange(services)
        study = create_study(studies, page.lanes.lanes, page.past.kept)
        places = study, create_decide(decisions, studies.results, study.mine), create_verify(services)
        place_home(page, services)
        wire_presets(page.setup, from_preset, form_outputs(page.setup, page.lanes))
        wire_flags(page.lanes, page.setup["model"], page.setup.rest)
        wire_bundle(page.lanes, page.setup.fields, page.setup.rest)
        wire_draft(page.draft, page.setup, page.lanes)
        wire_look(page.look, page.setup, page.lanes, page.launch.estimate, services)
        wire_training(page.trainer, page.setup, page.lanes, services)
        wire_estimate(page.launch, page.setup, page.lanes, services)
        parts = (page.launch, page.setup, page.lanes, page.cards, page.status, page.run, _gone(page))
        wire_run(*parts, page.views.on_page, services)
        wire_views(page.views, page.run, services)
        wire_table(page.cards, page.run)
        wire_learn(page.learn, page.run, page.views.on_page, services)
        wire_differs(page.differs, page.setup, page.lanes, page.run, page.launch.ticket, services)
        wire_history(page.past)
        wire_act(page.act, page.views, page.run, services)
        wire_suggestions(page.views.suggest, page.lanes, page.run, services)
        _wire_shown(page, services)
        _wire_visit(blocks, page, places, services)
    return blocks.queue(max_size=MAX_QUEUE, api_open=False, status_update_rate=1)


def _arrange(services: Services) -> Page:
    shown = gr.State(NO_RUN)
    header = create_header("")
    with gr.Row(elem_id="page"):
        with gr.Column(elem_id="left", min_width=0):
            asked, differs = create_asked(), create_differs()
            setup, look = create_setup(create_look)
            lanes, trainer, launch = create_lanes(), create_training(), create_launch()
            draft = create_draft()
            instruments, (selectors, act) = create_instruments(asked, lambda: (create_selectors(), create_act()))
            past = create_history()
            create_open_file()
            create_shared(services)
        with gr.Column(elem_id="right", min_width=0):
            gr.HTML(UNANSWERED, elem_id="unanswered")
            status = gr.HTML("", elem_id="status")
            with gr.Column(elem_classes=["card"], elem_id="sharing"):
                share = create_share()
            with gr.Column(elem_classes=["card"], elem_id="beside"):
                beside = create_versus()
            answer = gr.HTML("", elem_id="answer")
            cards = create_answers()
            # Never seen: an empty figure in it makes the browser load Plotly (4.6 MB) while the form or cards are read.
            plotly = gr.Plot(visible="hidden", show_label=False, container=False, elem_id="plotly")
            with gr.Column(elem_id="results"):
                learn, along = create_learn(), gr.HTML("", elem_id="along")
                views, score = create_views(selectors), create_scorecard()
            gr.HTML(welcome(), elem_id="welcome")
            create_measure(shown, services)
            create_claims()
    lower = (status, answer, cards, share, beside, score, learn, along, views, plotly)
    upper = (shown, header, setup, look, lanes, trainer, launch, draft, differs, instruments, act, past)
    return Page(*upper, *lower)


def _gone(page: Page) -> dict[Any, Any]:
    """What goes from the page when a run begins, with its updates: it is of the run before."""
    parts = (page.share.link, page.share.private, page.share.more, page.beside.more)
    return {**dict.fromkeys(parts, gr.update(visible=False)), page.header: markup("")}


def _wire_shown(page: Page, services: Services) -> None:
    """Show a run: one that has just finished, or one a link names."""

    def show(request: gr.Request, shown: dict[str, Any], opened: str, on_page: OnPage, *values: Any) -> list[Any]:
        if not shown.get("run"):
            return [gr.skip()] * len(outputs)
        on_page.shown = shown
        try:
            record, arrays = services.records.whole(shown)
            drawn = services.records.drawn(shown)
        except KvqError as error:
            return [
                gr.skip(),
                notice("The run cannot be shown", str(error), NEXT_FOR_A_LINK),
                *[gr.skip()] * (len(outputs) - 2),
            ]
        there = [gr.skip()] * (1 + len(page.instruments.outputs)) if shown.get("home") else None
        found = [
            markup(chip(record), over=True),
            gr.skip(),
            stage_html(over=True),
            *(there or [answer_html(record, arrays, shown), *show_instruments(record, arrays, shown)]),
            *show_share(record, shown, request, services),
            all_lanes(record, arrays, shown),
            finished_cards(*drawn),
            along_html(*drawn),
            *show_scorecard(record, arrays, services),
            *show_step_of_run(shown, on_page.step),
            *fit(page.views, *drawn, shown, on_page, opened, values[len(page.views.selection) :]),
        ]
        # Run was pressed while this one was drawn, whether a run of this page, the one that an address or an empty page
        # opens, or a step of the tour: its results would stand over the next one's answers.
        ticket = None if shown.get("ticket", "link") == "link" else shown["ticket"]
        late = not services.jobs.is_newest(request.session_hash or "", shown.get("after", ticket))
        return [gr.skip()] * len(outputs) if late else found

    def keep(shown: dict[str, Any], kept: Any, find: str) -> list[Any]:
        linked, own = shown.get("ticket") == "link", shown.get("own", ())
        if not shown.get("run") or (linked and not own):
            return [gr.skip()] * 3
        record = services.records.get(shown["run"])[0]
        beside = {run: key for run in own if (key := key_for(services, run))}
        kept = remember(kept, record, "" if linked else key_for(services, record.id), beside, shown.get("without", ()))
        return [kept, *list_history(kept, find)]

    outputs = [
        page.header,
        page.status,
        page.cards.stage,
        page.answer,
        *page.instruments.outputs,
        *page.share.outputs,
        page.cards.table,
        page.cards.cards,
        page.along,
        *page.score.outputs,
        *page.learn.outputs,
        *fit_outputs(page.views),
    ]
    inputs = drawing_inputs(page.views, page.run)
    drawn = page.run.change(show, inputs, outputs, **QUIET, concurrency_limit=4)
    opened = drawn.then(draw_open(page.views, services), inputs, drawing_outputs(page.views), **DRAWING)
    opened.then(lambda: canvas(10), None, page.plotly, **SWIFT)
    page.run.change(keep, [page.run, page.past.kept, page.past.find], [page.past.kept, *page.past.outputs], **SWIFT)

    wire_share(page.share, page.run, page.past.kept, services)
    wire_versus(page.beside, page.run, page.past.kept, page.views.selection, services)
    for box in (page.share.link, page.beside.results):
        box.change(None, box, None, js=FOLLOW_JS, **SWIFT)


def _wire_visit(blocks: gr.Blocks, page: Page, places: Any, services: Services) -> None:
    """What happens when the page is opened, when Run is pressed for the first time, and when it is closed."""

    def visited(kept: Any, request: gr.Request) -> tuple[dict[str, Any] | None, str, list[Any], list[Any]]:
        shown, message, form = open_page(request, services, kept)
        learn = [gr.skip()] * (1 + len(page.learn.outputs))
        if "learn" in request.query_params:
            step = step_number(request.query_params["learn"])
            shown, learn = place(step), [at_step(step), *show_step(step)]
            message = "" if shown else notice("The tour has no runs to show", NO_EXAMPLES)
            form = form_of(services.records.get(shown["run"])[0].spec) if shown else form
        elif not ASKED & set(request.query_params) and (found := home()) is not None:
            return (
                found | looked_at(dict(request.query_params)),
                "",
                learn,
                form_of(services.records.get(found["run"])[0].spec),
            )
        return shown, message, learn, form

    def bring(kept: Any, on_page: OnPage, request: gr.Request) -> Any:
        shown = visited(kept, request)[0]
        on_page.step = None if shown is None else shown.get("step")
        own = added_here(services, shown["run"], kept) if shown else []
        return {**shown, "own": own} if shown and own else shown or gr.skip()

    def arrive(kept: Any, draft: str, request: gr.Request) -> list[Any]:
        shown, message, learn, form = visited(kept, request)
        form = restore_form(draft) or linked_form(dict(request.query_params)) or form
        stage = stage_html(None) if shown is None and not OTHERS & set(request.query_params) else gr.skip()
        return [message, stage, *learn, *list_history(kept), *form]

    def leave(request: gr.Request) -> None:
        for job in (RUN, TRAINING, MEASURING, LOOKING, ACTING):
            services.jobs.leave(job.session(request))
        for each in filter(None, places):
            each.forget(request)

    outputs = [
        page.status,
        page.cards.stage,
        page.learn.at,
        *page.learn.outputs,
        *page.past.outputs,
        *form_outputs(page.setup, page.lanes),
    ]
    # The run by itself: what shows it is asked for at once, not after the browser has filled the whole form.
    brought = blocks.load(bring, [page.past.kept, page.views.on_page], page.run, **SWIFT)
    brought.then(lambda shown: gr.skip() if shown.get("run") else canvas(10), page.run, page.plotly, **SWIFT)
    arrived = blocks.load(arrive, [page.past.kept, page.draft], outputs, js=VISIT_JS, **SWIFT)
    mark_filled(arrived, "left")
    mark_filled(wire_visit(places[0], arrived, page.past.kept), "study-left")
    mark_filled(places[1].wire_visit(arrived), "decide-left")
    if places[2] is not None:
        places[2].wire_visit(arrived)
    blocks.load(None, None, None, js=PAGE_JS)
    blocks.unload(leave)
    page.launch.run.click(None, None, None, js=TO_ANSWERS, **SWIFT)
