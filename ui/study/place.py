"""The place Study put together, and what a link to it opens."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.presets import FOLDER
from kvq_core.studies.spec import StudySpec
from ui.form.filling import CHECK
from ui.html.copying import remember_js
from ui.html.status import line, notice
from ui.service.access import open_run
from ui.service.services import SWIFT, Services, visitor
from ui.service.streams import with_empty_end
from ui.study.access import demand_open, mine_html, my_key
from ui.study.asked import OF_COMPARE, PASTE, study_of
from ui.study.form import FormPanel, form_of, of_compare_html
from ui.study.parts import StudyPlace, arrange_study
from ui.study.quote import admit
from ui.study.results import link_html
from ui.study.showing import wire_cell, wire_shown
from ui.study.watching import STUDY, updates
from ui.study.work import Studies

PROMPTS = FOLDER / "table" / "prompts.jsonl"  # the reference table's twelve, long enough for every window
FILL = "Check the link, or fill the form."


NEXT = "Check the link, or begin the study again with its prompts."


def create_study(studies: Studies, compare_lanes: gr.State, history: gr.BrowserState) -> StudyPlace:
    """``compare_lanes``: of the form of Compare; ``history``: of runs, which a cell that is opened joins."""
    place = arrange_study(studies, compare_lanes)
    wire_start(place)
    wire_shown(place)
    wire_cell(place, history)
    return place


def wire_visit(place: StudyPlace, arrived: Any, history: gr.BrowserState) -> Any:
    """Open what the address names, once the form of Compare has ``arrived``: the event that does. ``history``: of runs,
    one of which may be checked."""
    services = place.studies.services

    def arrive(mine: Any, history: Any, lanes: list[Any], request: gr.Request) -> list[Any]:
        if "study" not in request.query_params:
            return [gr.skip()] * len(outputs)
        id, own = request.query_params["study"], [of_compare_html(lanes), mine_html(mine)]
        if not id:
            said, *fields = check_values(place.form, dict(request.query_params), services, history)
            return [said or gr.skip(), *[gr.skip()] * 4, *own, *fields]
        own += [gr.skip()] * len(place.form.fields)
        try:
            demand_open(services, id, my_key(mine, id))
            found = place.studies.results.read(id)
        except KvqError as error:
            said = notice("The study cannot be opened", str(error), NEXT)
            return [said, *[gr.skip()] * 4, *own]
        left = len(found.plan.cells) - found.done
        shown = {"study": id, "done": found.done}
        return ["", gr.update(visible=left > 0), link_html(id, request), "", shown, *own]

    outputs = [
        place.status,
        place.go_on,
        place.result.link,
        place.welcome,
        place.result.shown,
        place.form.of_compare,
        place.listing,
        *place.form.fields,
    ]
    return arrived.then(arrive, [place.mine, history, place.compare_lanes], outputs, **SWIFT)


def check_values(panel: FormPanel, asked: dict[str, str], services: Services, kept: Any) -> list[Any]:
    """Of an address that names a run to check: a message, and values of the form's fields in their order."""
    fields: list[Any] = [gr.skip()] * len(panel.fields)
    if CHECK not in asked:
        return ["", *fields]
    try:
        record, _ = open_run(services, asked[CHECK], kept)
    except KvqError as error:
        return [notice("There is no run to check", str(error), FILL), *fields]
    told: dict[Any, Any] = {
        panel.prompts.fields[0]: PASTE,
        panel.prompts.fields[1]: PROMPTS.read_text(encoding="utf-8"),
        panel.models: [record.spec["model"]],
        panel.lanes: OF_COMPARE,
        panel.new_tokens: record.spec["max_new_tokens"],
    }
    return ["", *(told.get(field, gr.skip()) for field in panel.fields)]


def wire_start(place: StudyPlace) -> None:
    """Admit a study and follow it; what is shown at its end draws itself."""
    form, result, studies = place.form, place.result, place.studies

    def press(request: gr.Request, *values: Any) -> list[Any]:
        *fields, lanes = values
        return begin(lambda: study_of(form_of(tuple(fields)), lanes).spec, request)

    def again(shown: dict[str, Any] | None, request: gr.Request) -> list[Any]:
        return begin(lambda: studies.results.get((shown or {}).get("study", "")).plan.spec, request)

    def begin(spec: Callable[[], StudySpec], request: gr.Request) -> list[Any]:
        try:
            found = admit(spec(), studies.services.store)
            going = studies.begin(found.plan, STUDY.session(request), visitor(request), found.cost)
        except Exception as error:
            return [STUDY.refusal(error), *[gr.skip()] * (len(begun) - 1)]
        started = {"id": found.plan.id, "number": going.number}
        link = link_html(found.plan.id, request)
        return ["", started, line("Starting", done=0.0), *STUDY.busy(), gr.update(visible=False), link, ""]

    async def watch(started: dict[str, Any], request: gr.Request) -> AsyncGenerator[list[Any]]:
        going = studies.of(STUDY.session(request))
        if going is not None and going.number == started.get("number"):
            async for update in with_empty_end(updates(going, studies.results)):
                yield update

    def stop(request: gr.Request) -> str:
        if (going := studies.of(STUDY.session(request))) is not None:
            going.stop()
        return line("Cancelling", detail="What is done is kept.")

    begun = [form.notice, place.ticket, place.status, form.start, form.cancel, place.go_on, result.link, place.welcome]
    form.start.click(press, [*form.fields, place.compare_lanes], begun, **SWIFT)
    place.go_on.click(again, result.shown, begun, **SWIFT)
    watched = [place.status, form.start, form.cancel, place.go_on, place.live, result.shown]
    place.ticket.change(watch, place.ticket, watched, **SWIFT, trigger_mode="multiple")
    form.cancel.click(stop, None, place.status, **SWIFT)
    result.link.change(None, result.link, None, js=remember_js("study"), **SWIFT)
