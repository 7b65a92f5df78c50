"""Filling the form: from a preset, or from the address the page was opened with."""

import re
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError, StoreError
from kvq_core.models import with_model
from kvq_core.presets import preset, presets
from kvq_core.record.fields import RESULTS_VERSION, Record
from kvq_core.spec import ComparisonSpec, parse_lane, parse_spec
from kvq_core.spec.links import decode
from ui.form.lanes_panel import LanesPanel, redraw_lanes
from ui.form.setup_panel import Setup, question_html
from ui.form.values import from_comparison
from ui.html.status import line, notice
from ui.service.access import open_run
from ui.service.services import Services

NEXT_FOR_A_LINK = "Check that the link is complete, pick one of your own runs, or set up the comparison and press Run."
WAITS = "The form is filled and nothing was computed: press Run."
AGAIN = "Press Run for today's figures, under a new link."
CHECK = "check"  # in an address, beside ``study``: the run whose lanes are checked on many prompts
REFUSED = {
    CHECK: "This link names no run to check",
    "run": "This link opens no run",
    "vs": "This link opens no run",
    "c": "This link holds no comparison",
    "preset": "This link names no preset",
}


def form_outputs(setup: Setup, lanes: LanesPanel) -> list[gr.components.Component]:
    """What ``fill_form`` sets, in its order."""
    return [setup.question, *setup.fields, setup.rest, *lanes.outputs]


def fill_form(spec: ComparisonSpec, question: str = "") -> list[Any]:
    """The whole form showing a spec, the lane editor closed."""
    values, form_lanes, rest = from_comparison(with_model(spec))
    return [question, *values, rest, *redraw_lanes(form_lanes, None)]


def from_preset(name: str) -> list[Any]:
    found = preset(name)
    return fill_form(found.spec, question_html(found))


def linked_form(asked_for: dict[str, str]) -> list[Any] | None:
    """The form that an address holds beside the run it opens; None where there is none, or what is there is none."""
    if "form" not in asked_for:
        return None
    try:
        return fill_form(decode(asked_for["form"]))
    except KvqError:
        return None


def open_page(
    request: gr.Request, services: Services, kept: Any = None
) -> tuple[dict[str, Any] | None, str, list[Any]]:
    """Run to show, a message, and the form, for the address asked for: ``?run=`` (with ``&vs=``, another run beside
    it), ``?c=`` (a comparison, which waits for Run), ``?preset=`` or nothing.

    Text in an address is anybody's: what it does not name is answered with a card, never a trace.
    """
    asked_for = dict(request.query_params)
    default = next(iter(presets()))
    try:
        if "run" in asked_for or "vs" in asked_for:
            return _run(asked_for, services, kept)
        if CHECK in asked_for:
            return None, "", fill_form(as_deployed(open_run(services, asked_for[CHECK], kept)[0]))
        if "c" in asked_for:
            return None, line("Comparison from a link", "done", detail=WAITS), fill_form(decode(asked_for["c"]))
        return None, "", from_preset(asked_for.get("preset", default))
    except KvqError as error:
        title = next((title for name, title in REFUSED.items() if name in asked_for), "This link opens nothing")
        return None, notice(title, str(error), NEXT_FOR_A_LINK), from_preset(default)


def _run(asked_for: dict[str, str], services: Services, kept: Any) -> tuple[dict[str, Any], str, list[Any]]:
    if "run" not in asked_for:
        raise StoreError("vs= names a second run and needs a first one: ?run=A&vs=B.")
    record, _ = open_run(services, asked_for["run"], kept)
    shown = {"run": record.id, "ticket": "link", **looked_at(asked_for)}
    shown |= {"vs": asked_for["vs"]} if "vs" in asked_for else {}
    return shown, stored_line(record), form_of(record.spec)


def as_deployed(record: Record) -> ComparisonSpec:
    """The comparison of a run with each lane's prompt read as its engine reads one, where it has one engine. Raises
    SpecError for a run of another version whose comparison is none today."""
    return parse_spec({**record.spec, "lanes": [_lane_as_deployed(lane) for lane in record.spec["lanes"]]})


def _lane_as_deployed(lane: dict[str, Any]) -> dict[str, Any]:
    deployed = {**lane, "prefill": "deployed"}
    try:
        parse_lane(deployed, "lane")
    except KvqError:  # its rules are of several engines, or read no prompt so
        return lane
    return lane if lane.get("prefill", "full") != "full" else deployed


def stored_line(record: Record) -> str:
    """What is said above the answer of a run that was opened by its link."""
    detail = f"of {record.created[:10]}"
    if record.results_version < RESULTS_VERSION:
        detail += f", computed by an earlier version of the program (results {record.results_version}). {AGAIN}"
    return line("Stored run", "done", detail=detail)


def looked_at(asked_for: dict[str, str]) -> dict[str, Any]:
    """What of a run an address looks at: its ``view`` and, as ``at=12.6.25``, layer, query head and token."""
    found: dict[str, Any] = {"view": asked_for["view"]} if "view" in asked_for else {}
    numbers = re.fullmatch(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", asked_for.get("at", ""), re.ASCII)
    if numbers:
        found["at"] = dict(zip(("layer", "head", "token"), map(int, numbers.groups()), strict=True))
    return found


def form_of(spec: dict[str, Any]) -> list[Any]:
    """The form of a stored run; a spec of another version leaves it on the first preset."""
    try:
        return fill_form(parse_spec(spec))
    except KvqError:
        return from_preset(next(iter(presets())))
