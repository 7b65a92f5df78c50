"""Filling the form: from a preset, or from the address the page was opened with."""

from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.models import with_model
from kvq_core.presets import preset, presets
from kvq_core.spec import ComparisonSpec, parse_spec
from ui.form import from_comparison
from ui.panels.lanes import Lanes, redrawn
from ui.panels.setup import Setup, asked
from ui.services import Services
from ui.status import line, notice

NEXT_FOR_A_LINK = "Check that the link is complete, pick one of your own runs, or set up the comparison and press Run."


def form_outputs(setup: Setup, lanes: Lanes) -> list[gr.components.Component]:
    """What ``filled`` sets, in its order."""
    return [setup.question, *setup.fields, setup.rest, *lanes.shown]


def filled(spec: ComparisonSpec, question: str = "") -> list[Any]:
    """The whole form showing a spec, the lane editor closed."""
    values, form_lanes, rest = from_comparison(with_model(spec))
    return [question, *values, rest, *redrawn(form_lanes, None)]


def from_preset(name: str) -> list[Any]:
    found = preset(name)
    return filled(found.spec, asked(found))


def opened_page(request: gr.Request, services: Services) -> tuple[dict[str, Any] | None, str, list[Any]]:
    """Run to show, a message, and the form, for the address asked for: ``?run=``, ``?preset=`` or nothing.

    Text in an address is anybody's: what it does not name is answered with a card, never a trace.
    """
    asked_for = dict(request.query_params)
    default = next(iter(presets()))
    if "run" in asked_for:
        try:
            record, _ = services.shelf.get(asked_for["run"])
            return (
                {"run": record.id, "ticket": "link"},
                line("Stored run", "done", detail=f"of {record.created[:10]}"),
                _form_of(record.spec),
            )
        except KvqError as error:
            return None, notice("This link opens no run", str(error), NEXT_FOR_A_LINK), from_preset(default)
    try:
        return None, "", from_preset(asked_for.get("preset", default))
    except KvqError as error:
        return None, notice("This link names no preset", str(error)), from_preset(default)


def _form_of(spec: dict[str, Any]) -> list[Any]:
    """The form of a stored run; a spec of another version leaves it on the first preset."""
    try:
        return filled(parse_spec(spec))
    except KvqError:
        return from_preset(next(iter(presets())))
