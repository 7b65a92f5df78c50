"""The lanes card: the list of lanes, and one editor that opens in it below the lane chosen."""

import json
import secrets
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.methods import methods
from kvq_core.models import layers_of
from kvq_core.presets import BUNDLES, with_bundle
from kvq_core.recommend.engine_flags import lane_of_flags, passed_over
from kvq_core.spec import MAX_LANES, ComparisonSpec
from ui.form.controls import places
from ui.form.editor import KNOB, RULES, apply_edits, complaint, editor
from ui.form.lane_list import lane_rows_html
from ui.form.lanes import (
    LaneForm,
    add_lane,
    append_lane,
    duplicate_lane,
    from_spec,
    index,
    move_lane,
    remove_lane,
    switch_lane,
)
from ui.form.rules import add_rule, move_rule_up, remove_rule, rules_of
from ui.form.selecting import SELECT
from ui.form.values import FIELDS, to_comparison
from ui.form.waiting import fills
from ui.service.admission import checked_cache_at
from ui.service.services import LANES


@dataclass
class LanesPanel:
    """``lanes`` holds the form's lanes; ``open`` says which one the editor is on: it stands between ``rows``, which end
    with that lane, and ``below``. js/editor.js writes into ``sent``; ``heard`` says how far that was read."""

    lanes: gr.State
    open: gr.State
    rows: gr.HTML
    complaint: gr.HTML
    editor: gr.HTML
    below: gr.HTML
    add: gr.Button
    flags: gr.Textbox
    bundle: gr.Dropdown
    sent: gr.Textbox
    heard: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        """Outputs of ``redraw_lanes``: the states, the list and the editor."""
        return [self.lanes, self.open, self.rows, self.complaint, self.editor, self.below, self.add]


def create_lanes() -> LanesPanel:
    with gr.Column(elem_classes=["card"], elem_id="lanes"):
        gr.HTML(
            '<h2>Lanes</h2><div class="lane-fixed"><span></span>'
            "<div>Full precision<small>reference · noise floor on</small></div></div>"
        )
        rows = gr.HTML("", elem_id="lane-rows")
        said = gr.HTML("", elem_id="lane-error")
        form = gr.HTML("", elem_id="editor")
        below = gr.HTML("", elem_id="lane-rows-below")
        add = gr.Button("Add lane", size="sm", elem_id="add-lane")
        flags = gr.Textbox(
            label="Paste an engine's flags",
            placeholder="-ctk q8_0 -ctv q4_0",
            max_lines=6,  # of one line a browser takes the ends of lines away
            elem_id="flags",
            info="llama.cpp, vLLM, SGLang, TensorRT-LLM, ExLlamaV3, Ollama, transformers; a whole command will do.",
            interactive=True,
        )
        bundle = gr.Dropdown(
            bundle_choices(),
            value=None,
            label="Take a bundle's lanes instead",
            elem_id="bundle",
            interactive=True,
            min_width=180,
        )
        sent = gr.Textbox(visible="hidden", elem_id="lanes-sent", show_label=False)
        heard = gr.HTML("", visible="hidden", elem_id="lanes-heard")
    panel = LanesPanel(
        gr.State([]), gr.State(place_editor(None)), rows, said, form, below, add, flags, bundle, sent, heard
    )
    both = [panel.lanes, panel.open]
    sent.change(hear, [sent, *both], [*panel.outputs, panel.heard], **LANES)
    add.click(insert_lane, panel.lanes, panel.outputs, **LANES)
    return panel


def wire_flags(panel: LanesPanel, model: gr.components.Component, rest: gr.State) -> None:
    """Flags that are pasted, or typed and entered, are a lane more, on the form's model."""
    inputs, outputs = [panel.flags, panel.lanes, panel.open, model, rest], [*panel.outputs, panel.flags]
    panel.flags.submit(take_flags, inputs, outputs, **LANES)  # js/editor.js enters what is pasted


def wire_bundle(panel: LanesPanel, fields: list[gr.components.Component], rest: gr.State) -> None:
    """A bundle that is picked brings its lanes, for the form's model and prompt."""
    fills(panel.bundle.input, take_bundle, [panel.bundle, panel.lanes, rest, *fields], [*panel.outputs, panel.bundle])


def take_flags(
    words: Any, lanes: list[LaneForm], opened: dict[str, Any], model: Any, rest: dict[str, Any]
) -> list[Any]:
    """The lane that an engine's flags say, at the end, and their box free; anybody's text."""
    try:
        taken = lane_of_flags(str(words), layers_of(str(model or "").strip(), rest.get("revision")))
        left = ", ".join(passed_over(str(words), taken))
    except KvqError as error:
        return [*redraw_lanes(lanes, opened["uid"], str(error), opened["rule"]), gr.skip()]
    said = f"{left} changes what an engine stores, and is no part of the lane." if left else None
    return [*redraw_lanes(append_lane(lanes, taken), None, said), ""]


def bundle_choices() -> list[tuple[str, str]]:
    """Titles of the bundles, one with an option once for each of its values, by how one writes them."""
    found = []
    for name, bundle in BUNDLES.items():
        first = next(iter(bundle.options.values()), None)
        values = () if first is None else first.values
        found += [(f"{bundle.title}: {value}", f"{name}:{value}") for value in values] or [(bundle.title, name)]
    return found


def take_bundle(words: Any, lanes: list[LaneForm], rest: dict[str, Any], *values: Any) -> list[Any]:
    """A bundle's lanes in place of the form's, solved for its model and prompt where lanes depend on these, and its
    picker free for the next one; anybody's text."""
    if words is None:
        return [gr.skip()] * 8
    try:
        told = dict(zip(FIELDS, values, strict=True))
        asks = bool(str(told["prompt"] or "").strip() or told["conversation"])
        spec = to_comparison(told, [], rest) if asks else ComparisonSpec(prompt="-")
        taken = from_spec(with_bundle(spec, str(words), checked_cache_at if asks else None).lanes)
    except KvqError as error:
        return [*redraw_lanes(lanes, None, str(error)), None]
    return [*redraw_lanes(taken, None), None]


def redraw_lanes(lanes: list[LaneForm], uid: int | None, said: str | None = None, rule: int = 0) -> list[Any]:
    """The lanes with the editor on one of them and its ``rule``, or closed."""
    opened = place_editor(uid, rule)
    return _shown(lanes, opened, said, editor(lanes, opened))


def _shown(lanes: list[LaneForm], opened: dict[str, Any], said: str | None, form: Any) -> list[Any]:
    full = len(lanes) >= MAX_LANES
    add = gr.update(value=f"{MAX_LANES} of {MAX_LANES} lanes" if full else "Add lane", interactive=not full)
    rows, below = lane_rows_html(lanes, opened)
    return [lanes, opened, rows, complaint(lanes, opened["uid"], said), form, below, add]


def place_editor(uid: int | None, rule: int = 0) -> dict[str, Any]:
    return {"uid": uid, "revision": secrets.token_hex(4), "rule": rule}


def insert_lane(lanes: list[LaneForm]) -> list[Any]:
    lanes = add_lane(lanes)
    return redraw_lanes(lanes, lanes[-1]["uid"])


def hear(raw: str, lanes: list[LaneForm], opened: dict[str, Any]) -> list[Any]:
    """``apply_change``, then when that was told, on the page's clock."""
    try:
        told = str(float(json.loads(raw)["at"]))
    except (TypeError, ValueError, KeyError, RecursionError):
        told = ""
    return [*apply_change(raw, lanes, opened), told]


def apply_change(raw: str, lanes: list[LaneForm], opened: dict[str, Any]) -> list[Any]:
    """What js/editor.js tells: all that was changed in the editor since it was opened, and a button that was pressed.

    All, so that of changes in quick succession the last one told is enough. Anybody's text: nonsense changes nothing.
    """
    try:
        told = json.loads(raw)
        uid, values, do, target = told["uid"], dict(told["values"]), told["do"], told["lane"]
    except (TypeError, ValueError, KeyError, RecursionError):
        return [gr.skip()] * 7
    if told.get("revision") not in (None, opened["revision"]):  # since then rules may have other numbers
        values = {place: value for place, value in values.items() if not place.startswith(RULES)}
    lanes, said = apply_edits(lanes, uid, values)
    if do is None and _reshapes(lanes, uid, values):
        return redraw_lanes(lanes, opened["uid"], said, opened["rule"])
    if do is None:
        return _shown(lanes, opened, said, gr.skip())  # the editor stays as the person left it
    if isinstance(do, str) and do.startswith("rule"):
        return _ruled(lanes, opened["uid"], do, target)
    if do in ("switch", "move"):
        lanes = switch_lane(lanes, target) if do == "switch" else move_lane(lanes, target, told.get("to"))
        return redraw_lanes(lanes, opened["uid"], said, opened["rule"])
    return _done(lanes, opened["uid"], do, target)


def _reshapes(lanes: list[LaneForm], uid: Any, values: dict[str, Any]) -> bool:
    """Whether the last change adds or removes controls: another method, an object switched on or off."""
    at = index(lanes, uid)
    last = next(reversed(values), None)
    if at is None or last is None:
        return False
    last = last.removeprefix(RULES).lstrip("0123456789").removeprefix(".") if last.startswith(RULES) else last
    known = [methods()[rule["method"]] for rule in rules_of(lanes[at])]
    knobs = [knob for cls in known for place, knob in places(cls) if place == last.removeprefix(KNOB)]
    return last in ("method", SELECT.name) or any(knob.fields for knob in knobs)


def _ruled(lanes: list[LaneForm], uid: int | None, do: str, target: Any) -> list[Any]:
    """The lanes after a button of the rule editor; ``target``: the rule's number from 1."""
    at, rule = index(lanes, uid), target - 1 if type(target) is int else 0
    if at is None:
        return redraw_lanes(lanes, uid)
    lane = lanes[at]
    if do == "rule-add":
        lane, rule = add_rule(lane), 0
    if do == "rule-up":
        lane, rule = move_rule_up(lane, rule), rule - 1
    if do == "rule-remove":
        lane, rule = remove_rule(lane, rule), 0
    return redraw_lanes([*lanes[:at], lane, *lanes[at + 1 :]], uid, None, max(0, rule))


def _done(lanes: list[LaneForm], uid: int | None, do: Any, target: Any) -> list[Any]:
    """The lanes after a button of the list or the editor."""
    if do == "open":
        return redraw_lanes(lanes, None if target == uid else target)
    if do == "duplicate":
        before = {lane["uid"] for lane in lanes}
        lanes = duplicate_lane(lanes, uid if target is None else target)
        return redraw_lanes(lanes, next((lane["uid"] for lane in lanes if lane["uid"] not in before), uid))
    return redraw_lanes(remove_lane(lanes, uid) if do == "remove" else lanes, None)
