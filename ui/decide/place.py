"""The place Decide put together: its form, a decision at work, what it found, and what a link to it opens."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.recommend.decision import Decision, DecisionRequest, stored_decision
from ui.decide.asked import ANY, BITS, CACHE, LEAST, MEMORY, STUDY, DecideForm
from ui.decide.cell import cell_html, picked_score
from ui.decide.form import DecidePanel, choices, create_form, fits_of, form_of, wire_form
from ui.decide.quote import admit, quote_form
from ui.decide.result import ResultPart, create_result, draw, link_html
from ui.decide.watching import DECIDE, updates
from ui.decide.work import Decisions
from ui.html.copying import remember_js
from ui.html.status import line, notice
from ui.service.address import page_address
from ui.service.services import QUIET, SWIFT, visitor
from ui.service.streams import with_empty_end
from ui.study.access import Results, demand_open, is_private, key_for, my_key, remember, share

NEXT = "Check the link, or ask the three questions again."
NO_TICKET: dict[str, Any] = {"number": None}
WELCOME = (
    '<section class="card study-welcome"><h1>Three questions, one answer</h1><p>Which cache format to deploy for your '
    "model, your prompts and your memory, what you lose by it, and the flags to type; with all that it rests on.</p>"
    "<ol><li><b>Evidence</b> The formats that the engine ships are run on your prompts, or a study is read.</li><li>"
    "<b>Answer</b> The smallest lane that fits and loses no more than you allow. Sure means that prompts drawn anew "
    "say the same.</li><li><b>Layers</b> Where no lane will do, each layer is tried alone, and a policy of layers is "
    "verified.</li></ol></section>"
)


@dataclass
class DecidePlace:
    """``mine``: this browser's studies, which hold their keys; ``begun``: the form as it was begun last."""

    decisions: Decisions
    results: Results
    form: DecidePanel
    fitting: gr.HTML
    status: gr.HTML
    go_on: gr.Button
    welcome: gr.HTML
    result: ResultPart
    mine: gr.BrowserState
    ticket: gr.State
    begun: gr.State

    def forget(self, request: gr.Request) -> None:
        """The page is closed: its decision stops."""
        self.decisions.forget(DECIDE.session(request))

    def wire_visit(self, arrived: Any) -> Any:
        """Open what the address names, once the form of Compare has ``arrived``: the event that does."""
        return _wire_visit(self, arrived)


def create_decide(decisions: Decisions, results: Results, mine: gr.BrowserState) -> DecidePlace:
    with gr.Row(elem_id="decide"):
        with gr.Column(elem_id="decide-left", min_width=0):
            form = create_form()
        with gr.Column(elem_id="decide-right", min_width=0):
            status = gr.HTML("", elem_id="decide-status")
            go_on = gr.Button("Go on", visible=False, elem_id="decide-go-on", size="sm")
            result = create_result()
            welcome = gr.HTML(WELCOME, elem_id="decide-welcome")
            fitting = gr.HTML("", elem_id="decide-fitting")
    wire_form(form, fitting, mine, results, result.shown.change)
    place = DecidePlace(
        decisions, results, form, fitting, status, go_on, welcome, result, mine, gr.State(NO_TICKET), gr.State(None)
    )
    _wire_start(place)
    _wire_result(place)
    return place


def _wire_start(place: DecidePlace) -> None:
    form = place.form

    def press(request: gr.Request, *values: Any) -> list[Any]:
        *fields, mine = values
        return begin(form_of(fields), mine, request)

    def again(begun: DecideForm | None, mine: Any, request: gr.Request) -> list[Any]:
        return begin(begun, mine, request) if begun is not None else [gr.skip()] * len(outputs)

    def begin(held: DecideForm, mine: Any, request: gr.Request) -> list[Any]:
        try:
            question = admit(quote_form(held, my_key(mine, held.study.strip()), place.results))
            going = place.decisions.begin(question, DECIDE.session(request), visitor(request))
        except Exception as error:
            return [DECIDE.refusal(error), *[gr.skip()] * (len(outputs) - 1)]
        started = line("Starting", done=0.0)
        return ["", {"number": going.number}, held, started, *DECIDE.busy(), gr.update(visible=False), ""]

    async def watch(started: dict[str, Any], request: gr.Request) -> AsyncGenerator[list[Any]]:
        going = place.decisions.of(DECIDE.session(request))
        if going is not None and going.number == started.get("number"):
            async for update in with_empty_end(updates(going)):
                yield update

    def stop(request: gr.Request) -> str:
        if (going := place.decisions.of(DECIDE.session(request))) is not None:
            going.stop()
        return line("Cancelling", detail="What is done is kept.")

    buttons = [form.start, form.cancel, place.go_on]
    outputs = [form.notice, place.ticket, place.begun, place.status, *buttons, place.welcome]
    form.start.click(press, [*form.fields, place.mine], outputs, **SWIFT)
    place.go_on.click(again, [place.begun, place.mine], outputs, **SWIFT)
    watched = [place.status, *buttons, place.result.shown]
    place.ticket.change(watch, place.ticket, watched, **SWIFT, trigger_mode="multiple")
    form.cancel.click(stop, None, place.status, **SWIFT)


def _wire_result(place: DecidePlace) -> None:
    """Draw a decision; open a cell of its map; share it."""
    result, services = place.result, place.decisions.services

    def found(shown: dict[str, Any] | None, mine: Any, request: gr.Request) -> Decision | None:
        try:
            return _opened(place, (shown or {}).get("decision", ""), mine, request)
        except KvqError:
            return None

    def show(shown: dict[str, Any] | None, mine: Any, request: gr.Request) -> list[Any]:
        decision = found(shown, mine, request)
        if shown is None or decision is None:
            return [gr.skip()] * len(outputs)
        kept, study = mine, decision.advice.study
        if shown.get("own"):
            kept = remember(mine, place.results.read(study), key_for(services, study))
        link = link_html(decision.id, request)
        return [
            *draw(decision, services, place.results, page_address(request), _unkept(place, decision, request)),
            link,
            gr.update(visible=is_private(services, study)),
            kept,
        ]

    def cell(raw: str, shown: dict[str, Any] | None, mine: Any, request: gr.Request) -> Any:
        decision = found(shown, mine, request)
        score = None if decision is None else picked_score(raw, decision)
        return gr.skip() if score is None or decision is None else cell_html(score, decision, place.results)

    def publish(shown: dict[str, Any] | None, mine: Any, request: gr.Request) -> list[Any]:
        try:
            decision = _opened(place, (shown or {}).get("decision", ""), mine, request)
            share(services, decision.advice.study, my_key(mine, decision.advice.study))
        except KvqError as error:
            return [notice("This cannot be shared", str(error)), gr.skip()]
        return [link_html(decision.id, request), gr.update(visible=False)]

    outputs = [*result.outputs, result.link, result.private, place.mine]
    result.shown.change(show, [result.shown, place.mine], outputs, **QUIET, concurrency_limit=4)
    result.cell.pick.change(cell, [result.cell.pick, result.shown, place.mine], result.cell.words, **SWIFT)
    result.share.click(publish, [result.shown, place.mine], [result.link, result.private], **SWIFT)
    result.link.change(None, result.link, None, js=remember_js("decide"), **SWIFT)
    place.mine.change(lambda mine: gr.update(choices=choices(mine)), place.mine, place.form.study, **SWIFT)


def _unkept(place: DecidePlace, decision: Decision, request: gr.Request) -> str:
    """Why the store does not hold the decision that this page has just made; "" where it does."""
    going = place.decisions.of(DECIDE.session(request))
    if going is None or going.unkept is None or going.decision is None or going.decision.id != decision.id:
        return ""
    return f"{going.unkept} Its link will not open it again; the files below hold all of it."


def _opened(place: DecidePlace, id: str, mine: Any, request: gr.Request) -> Decision:
    """A decision, for a browser that may open its study, or that has just made it. Raises KvqError."""
    going = place.decisions.of(DECIDE.session(request))
    if going is not None and going.decision is not None and going.decision.id == id:
        return going.decision
    decision = stored_decision(str(id), place.decisions.services.store)
    demand_open(place.decisions.services, decision.advice.study, my_key(mine, decision.advice.study))
    return decision


def _wire_visit(place: DecidePlace, arrived: Any) -> Any:
    """Open what the address names: ``?decide=`` a decision, ``?decide&of=`` a study to decide from."""

    def arrive(mine: Any, request: gr.Request) -> list[Any]:
        asked = request.query_params
        if "decide" not in asked:
            return [gr.skip()] * len(outputs)
        listed = choices(mine)
        if not (id := asked["decide"]):
            of, model = asked.get("of", ""), asked.get("model", "")
            source = STUDY if of else gr.skip()
            study = gr.update(choices=listed, value=of or None)
            of_model = gr.update(choices=[model], value=model) if of and model else gr.skip()
            return [*[gr.skip()] * 3, source, study, of_model, *[gr.skip()] * 6, "" if of else fits_of(_first(place))]
        try:
            decision = _opened(place, id, mine, request)
        except KvqError as error:
            said = notice("The decision cannot be opened", str(error), NEXT)
            return [said, *[gr.skip()] * 3, gr.update(choices=listed), *[gr.skip()] * 8]
        shown = {"decision": id, "own": False}
        study = gr.update(choices=listed, value=decision.advice.study)
        model = gr.update(choices=[decision.advice.model], value=decision.advice.model)
        return ["", "", shown, STUDY, study, model, *_asked(decision.asked), ""]

    names = ("room", "size", "context", "batch", "tolerance", "engine")
    fields = dict(zip(names, place.form.rest[3:9], strict=True))
    opened = [place.status, place.welcome, place.result.shown, place.form.source, place.form.study]
    opened.append(place.form.of_model)
    outputs = [*opened, *fields.values(), place.fitting]
    return arrived.then(arrive, place.mine, outputs, **SWIFT)


def _first(place: DecidePlace) -> DecideForm:
    """The form as it is before anybody touched it."""
    return DecideForm(model=str(place.form.rest[0].value or ""))


def _asked(asked: DecisionRequest) -> list[Any]:
    """The questions as they were asked: room, size, context, sequences, tolerance, engine."""
    rooms = ((MEMORY, asked.memory), (CACHE, asked.cache), (BITS, asked.bits))
    room, size = next(((name, value) for name, value in rooms if value), (LEAST, ""))
    given = gr.update(value=str(size), visible=room != LEAST)
    engine = asked.ask().engine or ANY
    return [room, given, asked.context, asked.batch, asked.tolerance, engine]
