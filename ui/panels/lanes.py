"""The lanes card: a list, and an editor for the lane chosen whose controls come from its method's fields."""

import secrets
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.methods import knobs, methods
from kvq_core.spec import MAX_LANES
from ui.controls import widget
from ui.lanes import LaneForm, added, described, duplicated, index, parse_layers, removed, title, updated, with_knob
from ui.services import SWIFT
from ui.text import safe, shorten


@dataclass
class Lanes:
    """``lanes`` holds the form's lanes; ``open`` says which one is edited."""

    lanes: gr.State
    open: gr.State
    rows: list[gr.Button]
    add: gr.Button

    @property
    def shown(self) -> list[gr.components.Component]:
        """Outputs of ``listed``."""
        return [*self.rows, self.add]


def create_lanes() -> Lanes:
    with gr.Column(elem_classes=["card"], elem_id="lanes"):
        gr.HTML(
            '<h2>Lanes</h2><div class="lane-fixed"><span></span>'
            "<div>Full precision<small>reference · noise floor on</small></div></div>"
        )
        rows = [
            gr.Button("", visible=False, elem_classes=["lane-row", f"lane-{i}"], elem_id=f"lane-row-{i}")
            for i in range(MAX_LANES)
        ]
        add = gr.Button("Add lane", size="sm", elem_id="add-lane")
        panel = Lanes(gr.State([]), gr.State(opened_on(None)), rows, add)
        _draw_editor(panel)
    for at, row in enumerate(rows):
        row.click(
            lambda lanes, opened, at=at: _toggle(lanes, opened, at), [panel.lanes, panel.open], panel.open, **SWIFT
        )
    add.click(_add, panel.lanes, [panel.lanes, panel.open, *panel.shown], **SWIFT)
    return panel


def listed(lanes: list[LaneForm], opened: dict[str, Any]) -> list[Any]:
    """Updates for the rows and the Add button."""
    updates = []
    for at in range(MAX_LANES):
        if at >= len(lanes):
            updates.append(gr.update(visible=False))
            continue
        summary, error = described(lanes[at])
        classes = ["lane-row", f"lane-{at}"]
        classes += ["wrong"] * bool(error) + ["open"] * (lanes[at]["uid"] == opened["uid"])
        text = f"{shorten(title(lanes[at]), 40)}\n{'needs a change' if error else summary}"
        updates.append(gr.update(value=text, visible=True, elem_classes=classes))
    full = len(lanes) >= MAX_LANES
    return [
        *updates,
        gr.update(value=f"{MAX_LANES} of {MAX_LANES} lanes" if full else "Add lane", interactive=not full),
    ]


def opened_on(uid: int | None) -> dict[str, Any]:
    """State of the editor; always a new one, so that it is drawn anew."""
    return {"uid": uid, "revision": secrets.token_hex(4)}


def _toggle(lanes: list[LaneForm], opened: dict[str, Any], at: int) -> dict[str, Any]:
    uid = lanes[at]["uid"] if at < len(lanes) else None
    return opened_on(None if opened["uid"] == uid else uid)


def _add(lanes: list[LaneForm]) -> list[Any]:
    lanes = added(lanes)
    opened = opened_on(lanes[-1]["uid"])
    return [lanes, opened, *listed(lanes, opened)]


def _draw_editor(panel: Lanes) -> None:
    # Drawn anew when another lane, or another method, is chosen; not while a knob is being changed.
    @gr.render([panel.lanes, panel.open], triggers=[panel.open.change], show_progress="hidden", queue=False)
    def editor(lanes: list[LaneForm], opened: dict[str, Any]) -> None:
        at = index(lanes, opened["uid"])
        if at is None:
            return
        with gr.Column(elem_classes=["editor", f"lane-{at}"], elem_id="editor"):
            _editor(panel, lanes[at], full=len(lanes) >= MAX_LANES)


def _editor(panel: Lanes, lane: LaneForm, full: bool) -> None:
    uid = lane["uid"]
    complaint = gr.HTML(_complaint(lane), elem_id="lane-error")
    everything = [panel.lanes, panel.open, complaint, *panel.shown]

    def on_change(control, change) -> None:
        """``change(lanes, value)`` -> lanes; the list and the complaint follow."""

        def handler(value, lanes, opened):
            try:
                lanes = change(lanes, value)
            except KvqError as error:
                return [lanes, opened, _said(str(error)), *listed(lanes, opened)]
            at = index(lanes, uid)
            return [lanes, opened, _complaint(lanes[at]) if at is not None else "", *listed(lanes, opened)]

        # Not `change`: filling the form must not answer itself.
        control.input(handler, [control, panel.lanes, panel.open], everything, **SWIFT, trigger_mode="always_last")

    choices = [(cls.title, name) for name, cls in methods().items()]
    method = gr.Dropdown(choices, value=lane["method"], label="Method", filterable=True, elem_id="lane-method")
    gr.HTML(_about(lane["method"]))
    label = gr.Textbox(lane["label"], label="Label", placeholder=title(lane), max_length=60, elem_id="lane-label")
    on_change(label, lambda lanes, value: updated(lanes, uid, label=(value or "").strip()))
    with gr.Row(elem_classes=["knobs"]):
        for knob in knobs(methods()[lane["method"]]):
            control = widget(
                knob, lane["knobs"].get(knob.name, knob.default), elem_id=f"knob-{knob.name}", min_width=110
            )
            on_change(control, lambda lanes, value, name=knob.name: with_knob(lanes, uid, name, value))
    _where(lane, on_change)
    with gr.Row(elem_classes=["editor-buttons"]):
        copy = gr.Button("Duplicate", size="sm", interactive=not full, elem_id="duplicate-lane")
        drop = gr.Button("Remove", size="sm", elem_id="remove-lane")
        close = gr.Button("Done", size="sm", elem_id="close-lane")
    listing = [panel.lanes, panel.open, *panel.shown]
    method.input(lambda value, lanes: _method(lanes, uid, value), [method, panel.lanes], listing, **SWIFT)
    copy.click(lambda lanes: _copy(lanes, uid), panel.lanes, listing, **SWIFT)
    drop.click(lambda lanes: _drop(lanes, uid), panel.lanes, listing, **SWIFT)
    close.click(lambda: opened_on(None), None, panel.open, **SWIFT)


def _where(lane: LaneForm, on_change) -> None:
    """Options every method has: which tensors, layers and tokens it quantizes."""
    uid = lane["uid"]
    with gr.Accordion("Where it applies", open=False):
        tensors = gr.Dropdown(
            ["both", "keys", "values"], value=lane["tensors"], label="Tensors", info="The others stay fp16."
        )
        on_change(tensors, lambda lanes, value: updated(lanes, uid, tensors=value))
        shown = lane["layers"] if isinstance(lane["layers"], str) else ", ".join(map(str, lane["layers"]))
        layers = gr.Textbox(shown, label="Layers", info="all, or numbers such as 0, 1, 5-8.")
        on_change(layers, lambda lanes, value: updated(lanes, uid, layers=parse_layers(value or "")))
        with gr.Row():
            for name, words in (("sink_tokens", "First"), ("recent_tokens", "Newest")):
                control = gr.Number(
                    lane[name], label=f"{words} tokens kept", precision=0, placeholder="method's own", min_width=110,
                    info="In fp16.",
                )  # fmt: skip
                on_change(control, lambda lanes, value, name=name: updated(lanes, uid, **{name: value}))


def _method(lanes: list[LaneForm], uid: int, name: str) -> list[Any]:
    lanes, opened = updated(lanes, uid, method=name), opened_on(uid)
    return [lanes, opened, *listed(lanes, opened)]


def _copy(lanes: list[LaneForm], uid: int) -> list[Any]:
    before, lanes = {lane["uid"] for lane in lanes}, duplicated(lanes, uid)
    new = next((lane["uid"] for lane in lanes if lane["uid"] not in before), uid)
    opened = opened_on(new)
    return [lanes, opened, *listed(lanes, opened)]


def _drop(lanes: list[LaneForm], uid: int) -> list[Any]:
    lanes, opened = removed(lanes, uid), opened_on(None)
    return [lanes, opened, *listed(lanes, opened)]


def _complaint(lane: LaneForm) -> str:
    _, error = described(lane)
    return _said(error) if error else ""


def _said(error: str) -> str:
    return f'<p class="error" role="alert">{safe(error)}</p>'


def _about(name: str) -> str:
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
