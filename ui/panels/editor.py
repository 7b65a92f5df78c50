"""The lane editor: method, label, the method's knobs, and where the lane applies."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.methods import Method, methods
from kvq_core.spec import MAX_LANES
from ui.controls import current, places, shown_value, widget
from ui.lanes import LaneForm, described, index, title
from ui.text import safe

Component = gr.components.Component


@dataclass
class Editor:
    """Every method's knobs are there once; the rows of the methods not chosen are hidden and cost the page nothing."""

    area: gr.Column
    complaint: gr.HTML
    method: gr.Dropdown
    about: gr.HTML
    label: gr.Textbox
    rows: dict[str, tuple[gr.Row, list[Component]]]
    tensors: gr.Dropdown
    layers: gr.Textbox
    sink: gr.Number
    recent: gr.Number
    copy: gr.Button
    drop: gr.Button
    close: gr.Button

    @property
    def knobs(self) -> list[tuple[str, Component]]:
        """Places of knobs with their controls, of all methods."""
        known = methods()
        return [
            (place, control)
            for name, (_, controls) in self.rows.items()
            for (place, _), control in zip(places(known[name]), controls, strict=True)
        ]

    @property
    def objects(self) -> list[tuple[Component, list[Component]]]:
        """The checkbox of every knob that is an object, with the controls inside."""
        return [
            (controls[at], controls[at + 1 : at + 1 + len(knob.fields)])
            for name, (_, controls) in self.rows.items()
            for at, (_, knob) in enumerate(places(methods()[name]))
            if knob.fields
        ]

    @property
    def outputs(self) -> list[Any]:
        """Outputs of ``editing``."""
        of_methods = [part for row, controls in self.rows.values() for part in (row, *controls)]
        options = [self.tensors, self.layers, self.sink, self.recent, self.copy]
        return [self.area, self.complaint, self.method, self.about, self.label, *of_methods, *options]


def create_editor() -> Editor:
    with gr.Column(visible=False, elem_classes=["editor"], elem_id="editor") as area:
        said = gr.HTML("", elem_id="lane-error")
        choices = [(cls.title, name) for name, cls in methods().items()]
        method = gr.Dropdown(choices, value=choices[0][1], label="Method", interactive=True, elem_id="lane-method")
        about = gr.HTML("")
        label = gr.Textbox(label="Label", max_length=60, interactive=True, elem_id="lane-label")
        rows = {name: _knob_row(name, cls) for name, cls in methods().items()}
        options = _options()
        with gr.Row(elem_classes=["editor-buttons"]):
            buttons = [
                gr.Button(words, size="sm", elem_id=f"{words.lower()}-lane", min_width=60)
                for words in ("Duplicate", "Remove", "Close")
            ]
    return Editor(area, said, method, about, label, rows, *options, *buttons)


def _knob_row(name: str, cls: type[Method]) -> tuple[gr.Row, list[Component]]:
    with gr.Row(visible=False, elem_classes=["knobs"]) as row:
        controls = [
            widget(
                knob, knob.default, elem_id=f"{name}-{place.replace('.', '-')}", min_width=110, visible="." not in place
            )
            for place, knob in places(cls)
        ]
    return row, controls


def _options() -> list[Component]:
    """Options every method has: which tensors, layers and tokens it quantizes."""
    with gr.Accordion("Where it applies", open=False):
        tensors = gr.Dropdown(
            ["both", "keys", "values"], value="both", label="Tensors", info="The others stay fp16.", interactive=True
        )
        layers = gr.Textbox("all", label="Layers", info="all, or numbers such as 0, 1, 5-8.", interactive=True)
        with gr.Row():
            kept = [
                gr.Number(
                    label=f"{words} tokens kept", info="In fp16; empty: the method's own.", precision=0, min_width=110,
                    interactive=True,
                )
                for words in ("First", "Newest")
            ]  # fmt: skip
    return [tensors, layers, *kept]


def editing(lanes: list[LaneForm], uid: int | None) -> list[Any]:
    """Updates that put the editor on a lane, in the order of Editor.outputs; closed for a lane that is not there."""
    at = index(lanes, uid)
    if at is None:
        others = 4 + sum(1 + len(places(cls)) for cls in methods().values()) + 5
        return [gr.update(visible=False), *[gr.skip()] * others]
    lane = lanes[at]
    layers = lane["layers"] if isinstance(lane["layers"], str) else ", ".join(map(str, lane["layers"]))
    return [
        gr.update(visible=True, elem_classes=["editor", f"lane-{at}"]), complaint(lanes, uid), lane["method"],
        about(lane["method"]), gr.update(value=lane["label"], placeholder=title({**lane, "label": ""})),
        *(part for name, cls in methods().items() for part in _row_of(name, cls, lane)),
        lane["tensors"], layers, lane["sink_tokens"], lane["recent_tokens"],
        gr.update(interactive=len(lanes) < MAX_LANES),
    ]  # fmt: skip


def _row_of(name: str, cls: type[Method], lane: LaneForm) -> list[Any]:
    """Updates of a method's row and its controls: only the lane's own method is shown."""
    known, given = places(cls), lane["knobs"]
    if name != lane["method"]:
        return [gr.update(visible=False), *[gr.skip()] * len(known)]
    return [
        gr.update(visible=True),
        *(
            gr.update(value=shown_value(knob, current(given, place, knob)), visible=_open(given, place))
            for place, knob in known
        ),
    ]


def _open(given: dict[str, Any], place: str) -> bool:
    """Whether a control is shown: those inside an object are where it is switched on."""
    outer, _, inner = place.partition(".")
    return not inner or given.get(outer) is not None


def complaint(lanes: list[LaneForm], uid: int | None, said: str | None = None) -> str:
    """What is wrong with the lane, in the words of the spec."""
    at = index(lanes, uid)
    error = said or (described(lanes[at])[1] if at is not None else None)
    return f'<p class="error" role="alert">{safe(error)}</p>' if error else ""


def about(name: str) -> str:
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
