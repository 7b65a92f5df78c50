"""A lane's ``select`` on the form: what chooses the keys that it reads, and that choice's knobs. No Gradio here."""

from dataclasses import replace
from typing import Any

from kvq_core.methods import Knob, knobs, selections
from kvq_core.spec import LaneOptions
from ui.form.controls import control, put

ALL = "all"
PLACE = "select"
SELECT = replace(
    next(knob for knob in knobs(LaneOptions) if knob.name == PLACE),
    type="choice",
    default=ALL,
    choices=(ALL, *selections()),
    nullable=False,
    fields=(),
)


def select_knobs(by: str) -> dict[str, Knob]:
    """The knobs of a choice by name."""
    return {knob.name: knob for knob in knobs(selections()[by]) if knob.name != "by"}


def select_controls(select: dict[str, Any] | None) -> str:
    """The choice, and below it what it is set to."""
    rows = [control("lane", PLACE, PLACE, SELECT, ALL if select is None else select["by"])]
    for name, knob in select_knobs(select["by"]).items() if select is not None else ():
        place = f"{PLACE}.{name}"
        rows.append(control("lane", place, place, knob, (select or {}).get(name, knob.default)))
    return "".join(rows)


def is_select(place: Any) -> bool:
    """Whether a control's place is of the choice."""
    return isinstance(place, str) and place.partition(".")[0] == PLACE


def set_select(select: dict[str, Any] | None, place: str, shown: Any) -> dict[str, Any] | None:
    """The choice with what a control shows. Raises SpecError where text is no value; places that are not there, and
    choices that nobody offers, change nothing."""
    name = place.partition(".")[2]
    if not name:
        return None if shown == ALL else {"by": shown} if shown in tuple(selections()) else select
    known = {} if select is None else select_knobs(select["by"])
    if select is None or name not in known:
        return select
    return put(select, name, known[name], shown)
