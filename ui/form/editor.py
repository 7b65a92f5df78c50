"""The lane editor as HTML: method, label, the method's knobs, and where it applies. js/editor.js reports changes."""

from typing import Any, get_args

from kvq_core.errors import KvqError
from kvq_core.methods import Knob, methods
from kvq_core.spec import MAX_LANES, Lane
from ui.form.controls import control, current, places
from ui.form.lanes import LaneForm, describe_lane, index, parse_layers, title, update_lane, with_knob
from ui.html.escape import safe

KNOB = "knobs."
LABEL = Knob("label", "Label", "", "text", "", None, None, None, False)
OPTIONS = (
    Knob(
        "tensors", "Tensors", "The others stay fp16.", "choice", "both", None, None, ("both", "keys", "values"), False
    ),
    Knob("layers", "Layers", "all, or numbers such as 0, 1, 5-8.", "text", "all", None, None, None, False),
    Knob("sink_tokens", "First tokens kept", "In fp16; empty: the method's own.", "integer", None, 0, None, None, True),
    Knob("recent_tokens", "Newest tokens kept", "The same.", "integer", None, 0, None, None, True),
    Knob(
        "center",
        "Centre keys",
        "Quantize keys without a constant that all share: their mean before RoPE, the key projection's bias, or their "
        "mean after RoPE, which loses what RoPE turns. A mean takes 2 bytes a channel; a bias is in the weights.",
        "choice",
        "none",
        None,
        None,
        get_args(Lane.model_fields["center"].annotation),
        False,
    ),
    Knob(
        "rotate",
        "Rotate",
        "Mix channels by a Hadamard transform before they are quantized, and back when they are read; signed: after "
        "random signs. Nothing is stored for it.",
        "choice",
        "none",
        None,
        None,
        get_args(Lane.model_fields["rotate"].annotation),
        False,
    ),
    Knob("rotate_block", "Rotated block", "Channels; empty: as many as can be.", "integer", None, 2, 1024, None, True),
)
BUTTONS = ("Duplicate", "Remove", "Close")


def editor(lanes: list[LaneForm], opened: dict[str, Any]) -> str:
    """The editor on the lane that is open; nothing where none is.

    Its tag is new with every revision: Gradio rewrites HTML in place, and an input that a person has changed would keep
    showing that beside another lane's value.
    """
    at = index(lanes, opened["uid"])
    if at is None:
        return ""
    lane, tag = lanes[at], f"lane-editor-{opened['revision']}"
    given, known = lane["knobs"], methods()[lane["method"]]
    rows = "".join(
        control(lane["method"], place, KNOB + place, knob, current(given, place, knob))
        for place, knob in places(known)
        if _open(given, place)
    )
    options = "".join(_option(knob, lane) for knob in OPTIONS)
    used = any(lane[knob.name] != knob.default for knob in OPTIONS)
    return (
        f'<{tag} class="editor lane-{at}" data-uid="{lane["uid"]}" data-revision="{opened["revision"]}">'
        f"{_methods(lane['method'])}{method_notes(lane['method'])}{_option(LABEL, lane, title({**lane, 'label': ''}))}"
        f'<div class="knobs">{rows}</div>'
        f'<details class="about"{" open" * used}><summary>Where it applies</summary>'
        f'<div class="knobs">{options}</div></details>'
        f'<div class="editor-buttons">{_buttons(len(lanes))}</div></{tag}>'
    )


def _methods(name: str) -> str:
    """The choice of the method by its title."""
    options = "".join(
        f'<option value="&quot;{known}&quot;"{" selected" * (known == name)}>{safe(cls.title)}</option>'
        for known, cls in methods().items()
    )
    return (
        '<label class="knob wide" id="lane-method"><span>Method</span>'
        f'<select id="in-lane-method" data-place="method">{options}</select></label>'
    )


def _option(knob: Knob, lane: LaneForm, placeholder: str = "") -> str:
    value = lane[knob.name]
    shown = ", ".join(map(str, value)) if isinstance(value, list) else value
    return control("lane", knob.name, knob.name, knob, shown, placeholder)


def _buttons(count: int) -> str:
    return "".join(
        f'<button type="button" class="plain-button" id="{words.lower()}-lane" data-do="{words.lower()}"'
        f"{' disabled' * (words == BUTTONS[0] and count >= MAX_LANES)}>{words}</button>"
        for words in BUTTONS
    )


def _open(given: dict[str, Any], place: str) -> bool:
    """Whether a control is shown: those inside an object are where it is switched on."""
    outer, _, inner = place.partition(".")
    return not inner or given.get(outer) is not None


def apply_edits(lanes: list[LaneForm], uid: Any, values: dict[str, Any]) -> tuple[list[LaneForm], str | None]:
    """The lanes with what was changed in one lane's editor, by place; and what of it is no value at all.

    What comes from a browser is anybody's data: places and lanes that are not there change nothing.
    """
    said = None
    for place, value in values.items():
        at = index(lanes, uid)
        if at is None:
            return lanes, said
        try:
            lanes = _set(lanes, lanes[at], place, value)
        except KvqError as error:
            said = str(error)
    return lanes, said


def _set(lanes: list[LaneForm], lane: LaneForm, place: str, value: Any) -> list[LaneForm]:
    uid = lane["uid"]
    if place.startswith(KNOB):
        known = dict(places(methods()[lane["method"]]))
        return with_knob(lanes, uid, place[len(KNOB) :], value) if place[len(KNOB) :] in known else lanes
    if place == "method":
        return update_lane(lanes, uid, method=value) if value in tuple(methods()) else lanes
    if place == LABEL.name:
        return update_lane(lanes, uid, label=str(value or "").strip())
    if place == "layers":
        return update_lane(lanes, uid, layers=parse_layers(str(value or "")))
    return update_lane(lanes, uid, **{place: value}) if place in {knob.name for knob in OPTIONS} else lanes


def complaint(lanes: list[LaneForm], uid: int | None, said: str | None = None) -> str:
    """What is wrong with the lane, in the words of the spec."""
    at = index(lanes, uid)
    error = said or (describe_lane(lanes[at])[1] if at is not None else None)
    return f'<p class="error" role="alert">{safe(error)}</p>' if error else ""


def method_notes(name: str) -> str:
    """The method's docstring, its paper and its deviations, as they are written in its file."""
    cls = methods()[name]
    first, _, more = (cls.__doc__ or "").strip().partition("\n\n")
    paper = f'<p><a href="{safe(cls.paper)}" target="_blank" rel="noopener">Paper</a></p>' if cls.paper else ""
    deviations = "".join(f"<li>{safe(text)}</li>" for text in cls.deviations)
    listing = f"<p>Deviations from the paper:</p><ul>{deviations}</ul>" if deviations else ""
    return (
        f'<details class="about"><summary>{safe(" ".join(first.split()))}</summary>'
        f"<p>{safe(' '.join(more.split()))}</p>{paper}{listing}</details>"
    )
