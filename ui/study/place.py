"""The place Study put together, and what a link to it opens."""

from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from ui.html.status import notice
from ui.service.services import SWIFT
from ui.study.access import demand_open, mine_html, my_key
from ui.study.check import check_values
from ui.study.form import of_compare_html
from ui.study.parts import StudyPlace, arrange_study
from ui.study.results import link_html
from ui.study.showing import wire_cell, wire_shown
from ui.study.starting import wire_start
from ui.study.work import Studies

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
