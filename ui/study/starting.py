"""Start, Go on and Cancel of a study."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import gradio as gr

from kvq_core.studies.spec import StudySpec
from ui.html.copying import remember_js
from ui.html.status import line
from ui.service.services import SWIFT, visitor
from ui.service.streams import with_empty_end
from ui.study.asked import study_of
from ui.study.form import form_of
from ui.study.parts import StudyPlace
from ui.study.quote import admit
from ui.study.results import link_html
from ui.study.watching import STUDY, updates


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
