"""The lanes card: the list of lanes, and one editor that is put on the lane chosen."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.spec import MAX_LANES
from ui.lanes import LaneForm, added, described, duplicated, parse_layers, removed, title, updated, with_knob
from ui.panels.editor import Editor, complaint, create_editor, editing
from ui.services import SWIFT
from ui.text import shorten


@dataclass
class Lanes:
    """``lanes`` holds the form's lanes; ``open`` says which one the editor is on."""

    lanes: gr.State
    open: gr.State
    rows: list[gr.Button]
    editor: Editor
    add: gr.Button

    @property
    def listing(self) -> list[gr.components.Component]:
        """Outputs of ``listed``."""
        return [*self.rows, self.add]

    @property
    def shown(self) -> list[Any]:
        """Outputs of ``redrawn``: the states, the list and the editor."""
        return [self.lanes, self.open, *self.listing, *self.editor.outputs]


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
        editor = create_editor()
        add = gr.Button("Add lane", size="sm", elem_id="add-lane")
    panel = Lanes(gr.State([]), gr.State(opened_on(None)), rows, editor, add)
    _wire_list(panel)
    _wire_knobs(panel)
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
    words = f"{MAX_LANES} of {MAX_LANES} lanes" if full else "Add lane"
    return [*updates, gr.update(value=words, interactive=not full)]


def redrawn(lanes: list[LaneForm], uid: int | None) -> list[Any]:
    """The lanes with the editor on one of them, or closed."""
    opened = opened_on(uid)
    return [lanes, opened, *listed(lanes, opened), *editing(lanes, uid)]


def opened_on(uid: int | None) -> dict[str, Any]:
    return {"uid": uid, "revision": secrets.token_hex(4)}


def _wire_list(panel: Lanes) -> None:
    both = [panel.lanes, panel.open]

    def toggle(lanes: list[LaneForm], opened: dict[str, Any], at: int) -> list[Any]:
        uid = lanes[at]["uid"] if at < len(lanes) else None
        return redrawn(lanes, None if opened["uid"] == uid else uid)

    def add(lanes: list[LaneForm]) -> list[Any]:
        lanes = added(lanes)
        return redrawn(lanes, lanes[-1]["uid"])

    def duplicate(lanes: list[LaneForm], opened: dict[str, Any]) -> list[Any]:
        before, lanes = {lane["uid"] for lane in lanes}, duplicated(lanes, opened["uid"])
        return redrawn(lanes, next((lane["uid"] for lane in lanes if lane["uid"] not in before), opened["uid"]))

    for at, row in enumerate(panel.rows):
        row.click(lambda lanes, opened, at=at: toggle(lanes, opened, at), both, panel.shown, **SWIFT)
    panel.add.click(add, panel.lanes, panel.shown, **SWIFT)
    editor = panel.editor
    editor.copy.click(duplicate, both, panel.shown, **SWIFT)
    editor.drop.click(lambda lanes, opened: redrawn(removed(lanes, opened["uid"]), None), both, panel.shown, **SWIFT)
    editor.close.click(lambda lanes: redrawn(lanes, None), panel.lanes, panel.shown, **SWIFT)
    editor.method.input(
        lambda value, lanes, opened: redrawn(updated(lanes, opened["uid"], method=value), opened["uid"]),
        [editor.method, *both],
        panel.shown,
        **SWIFT,
    )


def _wire_knobs(panel: Lanes) -> None:
    editor = panel.editor

    def on_input(
        control: gr.components.Component, change: Callable[[list[LaneForm], int, Any], list[LaneForm]]
    ) -> None:
        """``change(lanes, uid, value)`` -> lanes; the list and the complaint follow, the editor stays as it is."""

        def handler(value: Any, lanes: list[LaneForm], opened: dict[str, Any]) -> list[Any]:
            said = None
            try:
                lanes = change(lanes, opened["uid"], value)
            except KvqError as error:
                said = str(error)
            return [lanes, complaint(lanes, opened["uid"], said), *listed(lanes, opened)]

        # Not `change`: putting the editor on another lane must not write into it.
        outputs = [panel.lanes, editor.complaint, *panel.listing]
        # A Textbox tells of typing by `input`, of pasted text only when it is left.
        triggers = [control.input, *([control.blur] if isinstance(control, gr.Textbox) else [])]
        gr.on(triggers, handler, [control, panel.lanes, panel.open], outputs, **SWIFT, trigger_mode="always_last")

    for place, control in editor.knobs:
        on_input(control, lambda lanes, uid, value, place=place: with_knob(lanes, uid, place, value))
    for switch, inner in editor.objects:
        values = [control.value for control in inner]  # switched on again, it starts from the defaults
        switch.input(
            lambda on, values=values: [gr.update(visible=on, value=value) for value in values], switch, inner, **SWIFT
        )
    on_input(editor.label, lambda lanes, uid, value: updated(lanes, uid, label=(value or "").strip()))
    on_input(editor.layers, lambda lanes, uid, value: updated(lanes, uid, layers=parse_layers(value or "")))
    for name, control in (("tensors", editor.tensors), ("sink_tokens", editor.sink), ("recent_tokens", editor.recent)):
        on_input(control, lambda lanes, uid, value, name=name: updated(lanes, uid, **{name: value}))
