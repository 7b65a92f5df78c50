"""Form controls generated from a method's knobs: one table from a knob's type to an input, no method by name."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import Knob, Method, knobs, methods
from ui.html.escape import safe

EMPTY = ""  # what a control shows for null


def places(method: type[Method]) -> list[tuple[str, Knob]]:
    """Every control of a method: where its value lies in a lane's knobs, and what it sets.

    A knob that is an object is a checkbox, followed by its own knobs: ``sparsity``, ``sparsity.chunk_size``, ...
    """
    found = []
    for knob in knobs(method):
        found += [(knob.name, knob), *((f"{knob.name}.{inner.name}", inner) for inner in knob.fields)]
    return found


@cache
def titles() -> dict[str, str]:
    """Titles of all methods' knobs by place."""
    return {place: knob.title for method in methods().values() for place, knob in places(method)}


def current(given: dict[str, Any], place: str, knob: Knob) -> Any:
    """The value that lies at a place in a lane's knobs; the default where none is given."""
    outer, _, inner = place.partition(".")
    return (given.get(outer) or {}).get(inner, knob.default) if inner else given.get(outer, knob.default)


def control(group: str, name: str, place: str, knob: Knob, value: Any, placeholder: str = "") -> str:
    """A knob's control as HTML, showing ``value``, with its title and help; editor.js reports changes under ``place``.

    ``group`` and ``name`` make the element's id.
    """
    id = f"{group}-{name.replace('.', '-')}"
    hint = placeholder or ("default" if knob.nullable else "")
    given = f'id="in-{safe(id)}" data-place="{safe(place)}"' + (f' placeholder="{safe(hint)}"' if hint else "")
    return (
        f'<label class="knob {knob.type}" id="{safe(id)}"><span>{safe(knob.title)}</span>'
        f"{_INPUTS[knob.type](knob, value, given)}<small>{safe(describe(knob))}</small></label>"
    )


def control_value(knob: Knob, value: Any) -> Any:
    """What a knob's control shows for a value."""
    if knob.fields:
        return value is not None
    if value is None:
        return None if knob.type in ("integer", "number") else EMPTY
    return json.dumps(value).strip("[]") if knob.type == "list" and not isinstance(value, str) else value


def describe(knob: Knob) -> str:
    """Help and allowed range; the range is checked by the method itself, which says more than a widget could."""
    return f"{knob.help} {_bounds(knob)}".strip()


def read(knob: Knob, shown: Any) -> Any:
    """A control's value as the knob's value.

    Raises SpecError where text is no value at all; whether it is allowed is for the method to say.
    """
    if knob.fields:
        return {} if shown else None
    if shown is None or shown == EMPTY:
        return None
    if knob.type == "integer" and isinstance(shown, float) and shown.is_integer():
        return int(shown)
    return _parse(knob, shown) if knob.type == "list" and isinstance(shown, str) else shown


def set_knob(method: str, given: dict[str, Any], place: str, shown: Any) -> dict[str, Any]:
    """``given`` knobs with one set from its control; a knob at its default is left out."""
    outer, _, inner = place.partition(".")
    knob = dict(places(methods()[method]))[place]
    return (
        {**given, outer: put(given.get(outer) or {}, inner, knob, shown)} if inner else put(given, outer, knob, shown)
    )


def put(given: dict[str, Any], name: str, knob: Knob, shown: Any) -> dict[str, Any]:
    """``given`` values with the one of a knob from its control; left out at its default."""
    value = read(knob, shown)
    default = list(knob.default) if isinstance(knob.default, tuple) else knob.default
    rest = {k: v for k, v in given.items() if k != name}
    return rest if value == default and type(value) is type(default) else {**rest, name: value}


def _parse(knob: Knob, text: str) -> Any:
    """A list as people write it: with or without brackets, or chosen by the name in parentheses after it."""
    numbers = re.sub(r"\([^)]*\)\s*$", "", text).strip()
    try:
        return json.loads(numbers if numbers.startswith("[") else f"[{numbers}]")
    except ValueError:
        raise SpecError(f"{knob.name} = {excerpt(text)} cannot be read; write it like 8, 4, 4, 0.") from None


def _bounds(knob: Knob) -> str:
    if knob.type not in ("integer", "number"):
        return ""
    low, high = knob.minimum, knob.maximum
    if low is not None and high is not None:
        return f"{low:,g} to {high:,g}."
    return f"At least {low:,g}." if low is not None else f"At most {high:,g}." if high is not None else ""


def _choice(knob: Knob, value: Any, given: str) -> str:
    choices: list[tuple[str, Any]] = [(str(c), c) for c in knob.choices or ()]
    if knob.nullable:
        choices.insert(0, ("default", EMPTY))
    now = control_value(knob, value)
    # JSON, so that a number comes back as a number
    options = "".join(
        f'<option value="{safe(json.dumps(choice))}"{" selected" * (choice == now)}>{safe(text)}</option>'
        for text, choice in choices
    )
    return f"<select {given}>{options}</select>"


def _number(knob: Knob, value: Any, given: str) -> str:
    step = "1" if knob.type == "integer" else "any"
    return f'<input type="number" step="{step}" {given} value="{"" if value is None else safe(value)}">'


def _switch(knob: Knob, value: Any, given: str) -> str:
    return f'<input type="checkbox" {given}{" checked" * bool(control_value(knob, value))}>'


def _text(knob: Knob, value: Any, given: str) -> str:
    return f'<input type="text" {given} value="{safe(control_value(knob, value))}">'


def _list(knob: Knob, value: Any, given: str) -> str:
    """Text, with the named values to choose from beside any other text."""
    if not knob.named:
        return _text(knob, value, given)
    offered = "".join(
        f'<option value="{safe(f"{control_value(knob, v)} ({name})")}">' for name, v in knob.named.items()
    )
    return f'{_text(knob, value, f"{given} list=list-{knob.name}")}<datalist id="list-{knob.name}">{offered}</datalist>'


_INPUTS: dict[str, Callable[[Knob, Any, str], str]] = {
    "choice": _choice,
    "integer": _number,
    "number": _number,
    "boolean": _switch,
    "list": _list,
    "text": _text,
    "object": _switch,
}
