"""Form controls generated from a method's knobs: one table from a knob's type to a widget, no method by name."""

import json
from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components import Component

from kvq_core.errors import SpecError
from kvq_core.methods import Knob, knobs, methods

EMPTY = ""  # what a control shows for null


def widget(knob: Knob, value: Any, **options: Any) -> Component:
    """The control of a knob, showing ``value``; must be called inside Blocks."""
    return _WIDGETS[knob.type](
        knob, value, {"label": knob.title, "info": describe(knob), "interactive": True, **options}
    )


def shown_value(knob: Knob, value: Any) -> Any:
    """What a knob's control shows for a value."""
    if value is None:
        return None if knob.type in ("integer", "number") else EMPTY
    if knob.type in ("list", "object", "text") and not isinstance(value, str):
        return json.dumps(value).strip("[]") if knob.type == "list" else json.dumps(value)
    return value


def describe(knob: Knob) -> str:
    """Help and allowed range; the range is checked by the method itself, which says more than a widget could."""
    return f"{knob.help} {_bounds(knob)}".strip()


def read(knob: Knob, shown: Any) -> Any:
    """A control's value as the knob's value.

    Raises SpecError where text is no value at all; whether it is allowed is for the method to say.
    """
    if shown is None or shown == EMPTY:
        return None
    if knob.type == "integer" and isinstance(shown, float) and shown.is_integer():
        return int(shown)
    if knob.type in ("list", "object") and isinstance(shown, str):
        return _parse(knob, shown)
    return shown


def changed(method: str, given: dict[str, Any], name: str, shown: Any) -> dict[str, Any]:
    """``given`` knobs with one set from its control; a knob at its default is left out."""
    knob = {k.name: k for k in knobs(methods()[method])}[name]
    value = read(knob, shown)
    rest = {k: v for k, v in given.items() if k != name}
    return rest if value == knob.default and type(value) is type(knob.default) else {**rest, name: value}


def _parse(knob: Knob, text: str) -> Any:
    wrapped = f"[{text}]" if knob.type == "list" and not text.strip().startswith("[") else text
    try:
        return json.loads(wrapped)
    except ValueError:
        example = "8, 4, 4, 0" if knob.type == "list" else '{"name": 1}'
        raise SpecError(f"{knob.name} = {text[:60]!r} cannot be read; write it like {example}.") from None


def _bounds(knob: Knob) -> str:
    if knob.type not in ("integer", "number"):
        return ""
    low, high = knob.minimum, knob.maximum
    if low is not None and high is not None:
        return f"{low:,g} to {high:,g}."
    return f"At least {low:,g}." if low is not None else f"At most {high:,g}." if high is not None else ""


def _choice(knob: Knob, value: Any, options: dict[str, Any]) -> Component:
    choices: list[tuple[str, Any]] = [(str(c), c) for c in knob.choices or ()]
    if knob.nullable:
        choices.insert(0, ("default", EMPTY))
    return gr.Dropdown(choices, value=shown_value(knob, value), filterable=False, **options)


def _number(knob: Knob, value: Any, options: dict[str, Any]) -> Component:
    whole = knob.type == "integer"
    placeholder = "default" if knob.nullable else None
    return gr.Number(
        value, precision=0 if whole else None, step=1 if whole else 0.001, placeholder=placeholder, **options
    )


def _boolean(knob: Knob, value: Any, options: dict[str, Any]) -> Component:
    return gr.Checkbox(bool(value), **options)


def _text(knob: Knob, value: Any, options: dict[str, Any]) -> Component:
    return gr.Textbox(shown_value(knob, value), placeholder="default" if knob.nullable else None, **options)


_WIDGETS: dict[str, Callable[[Knob, Any, dict[str, Any]], Component]] = {
    "choice": _choice, "integer": _number, "number": _number, "boolean": _boolean,
    "list": _text, "text": _text, "object": _text,
}  # fmt: skip
