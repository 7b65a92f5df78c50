"""Whether the form still says what the run shown says: what differs, line by line, and the ways on from there."""

import os.path
from typing import Any

import gradio as gr

from kvq_core.analysis.two_specs import Change, changes
from kvq_core.errors import KvqError, SpecError
from kvq_core.methods import Knob
from kvq_core.models import with_model
from kvq_core.spec import ComparisonSpec, parse_spec
from kvq_core.spec.links import encode
from ui.form.controls import titles
from ui.form.editor import LABEL, OPTIONS, READS
from ui.form.filling import form_of, form_outputs
from ui.form.lanes import LaneForm
from ui.form.lanes_panel import LanesPanel
from ui.form.selecting import SELECT
from ui.form.setup_panel import Setup
from ui.form.values import FIELDS, to_comparison
from ui.form.waiting import fills
from ui.html.escape import safe, shorten
from ui.html.numbers import ABSENT, plural
from ui.service.services import QUIET, Services

OF_LANES: tuple[Knob, ...] = (LABEL, *OPTIONS, *READS, SELECT)
CONTEXT = 18  # characters of two long texts that are shown before the first one that differs
BACK = '<button type="button" class="plain-button" data-form-back>Back to the run\'s form</button>'
RUN = '<button type="button" class="plain-button first" data-form-run>Run the form</button>'


def create_differs() -> tuple[gr.HTML, gr.Textbox]:
    """What is said, and what js/page.js writes to fill the form with the run's own again."""
    said = gr.HTML("", elem_id="differs", elem_classes=["instrument"])
    return said, gr.Textbox(visible="hidden", elem_id="form-back", show_label=False)


def wire_differs(
    panel: tuple[gr.HTML, gr.Textbox],
    setup: Setup,
    lanes: LanesPanel,
    shown: gr.State,
    ticket: gr.State,
    services: Services,
) -> None:
    """Compare the form with the run whenever one of the two changes."""
    said, back = panel
    named = {name: str(setup[name].label) for name in FIELDS}

    def compare(shown: dict[str, Any], started: dict[str, Any], *values: Any) -> str:
        *fields, form_lanes, rest = values
        return form_changes(
            _asked(shown, started, services), dict(zip(FIELDS, fields, strict=True)), form_lanes, rest, named
        )

    def tell(_: str, shown: dict[str, Any], started: dict[str, Any]) -> list[Any]:
        run = _asked(shown, started, services)
        return [gr.skip()] * len(outputs) if run is None else form_of(run.model_dump(mode="json"))

    on_page, outputs = [shown, ticket], form_outputs(setup, lanes)
    changed = [*[setup[name].change for name in FIELDS], lanes.lanes.change, setup.rest.change, shown.change]
    inputs = [*on_page, *setup.fields, lanes.lanes, setup.rest]
    gr.on(changed, compare, inputs, said, **QUIET, trigger_mode="always_last", concurrency_limit=2)
    fills(back.change, tell, [back, *on_page], outputs)


def form_changes(
    run: ComparisonSpec | None,
    form: dict[str, Any],
    lanes: list[LaneForm],
    rest: dict[str, Any],
    named: dict[str, str],
) -> str:
    """What the form's values, by FIELDS, say otherwise than ``run``; ``named``: titles of their controls. Nothing of a
    form as the page begins with it: a run is shown before the form has been filled."""
    if not (form["prompt"] or form["conversation"] or lanes):
        return ""
    try:
        asked = to_comparison(form, lanes, rest)
    except KvqError as error:
        return "" if run is None else differs_html([], str(error), "")
    found = [] if run is None else list(changes(run, with_model(asked)))
    return differs_html(
        [change_in_words(each, named) for each in found], "", _link(asked) if found or run is None else ""
    )


def _asked(shown: dict[str, Any], started: dict[str, Any], services: Services) -> ComparisonSpec | None:
    """What the run shown was asked, in the words of its own form where it was made on this page: a record names a
    model by what it is, not by its path."""
    if not shown.get("run"):
        return None
    own = started.get("id") is not None and shown.get("ticket") == started["id"]
    try:
        spec = started["spec"] if own else services.records.get(shown["run"])[0].spec
        return with_model(parse_spec(spec))
    except KvqError:
        return None  # gone, or of another version: nothing of today's to compare with


def _link(form: ComparisonSpec) -> str:
    """The form as text for the address; nothing where it is too long for one."""
    try:
        return encode(form)
    except SpecError:
        return ""


def differs_html(told: list[tuple[str, str, str]], error: str, link: str) -> str:
    """``told``: what differs with the run's value and the form's. js/page.js puts ``link`` into the address."""
    if not told and not error:
        return f'<div data-draft="{safe(link)}"></div>'
    rows = "".join(
        f'<li><span>{safe(what)}</span> <del aria-label="in the run">{safe(one)}</del> '
        f'<ins aria-label="in the form">{safe(other)}</ins></li>'
        for what, one, other in told
    )
    where = f"in {plural(len(told), 'place')}" if told else "and cannot run"
    listed = f"<ul>{rows}</ul>" if told else f'<p class="error">{safe(error)}</p>'
    return (
        f'<div class="differs-box" data-draft="{safe(link)}"><details><summary><b role="status">Form differs from this '
        f'run</b> {where}</summary>{listed}</details><div class="row">{RUN if told else ""}{BACK}</div></div>'
    )


def change_in_words(change: Change, named: dict[str, str]) -> tuple[str, str, str]:
    """A change in the words of the form: what it is of, the run's value, the form's."""
    if change.lane and not change.place:
        return (
            ("Lane", change.lane, "not in the form")
            if change.other is None
            else ("Lane", "not in the run", change.lane)
        )
    what = f"{change.lane}: {_titled(change.place)}" if change.lane else named.get(change.place, change.place)
    return (what, *_values(change.one, change.other))


def _titled(place: str) -> str:
    """A place in a lane by the title of its control."""
    knob = place.removeprefix("knobs.")
    if knob != place:
        return titles().get(knob, knob)
    return next((each.title for each in OF_LANES if each.name == place.partition(".")[0]), place)


def _values(one: Any, other: Any) -> tuple[str, str]:
    texts = [ABSENT if value is None or value == "" else _text(value) for value in (one, other)]
    start = max(0, len(os.path.commonprefix(texts)) - CONTEXT) if max(map(len, texts)) > 60 else 0
    first, second = (shorten(("…" if start else "") + text[start:], 60) for text in texts)
    return first, second


def _text(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return ", ".join(f"{k} {_text(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)
