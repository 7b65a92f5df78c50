"""Where is the damage: a grid of layers and KV heads, then one head, one token, its channels."""

from typing import Any

import gradio as gr

from kvq_core.analysis.foretells import FIRST
from kvq_core.analysis.looks import has_every_lane, keeps, looked_at, steps_at
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures import (
    attention_rows,
    channel_errors,
    damage_grid,
    depth_error,
    score_map,
    sink_change,
)
from ui.figures.damage import MEASURES
from ui.html.figure_menu import PICKED, UNKEPT
from ui.html.looks import from_memory, layers_html, look_html, whole_layer
from ui.selection import Selection
from ui.views.view import Drawing, Slot, Stacked, View, create_page, create_words, or_absent
from ui.words.damage import damage

CHOICES = [
    ("Relative error", "relative"),
    ("Score error", "score"),
    ("Attention KL", "attention"),
    ("Output error", "output"),
]
CHOICES.sort(key=lambda choice: choice[1] != FIRST)  # what foretells best what a layer costs is shown first
TITLES = {
    "score": "Scores (keys × queries): layer × KV head",
    "attention": "Attention: layer × KV head",
    "output": "Attention output (keys and values): layer × KV head",
}
MISSING = "Not captured in this run."
ROWS = (
    ["look-layers"],
    (
        Slot("grid-key", "Keys: layer × KV head", "Click a cell to select its layer and head."),
        Slot("grid-value", "Values: layer × KV head"),
    ),
    ["look-maps"],
    (
        Slot(
            "score-map",
            "Score deltas of the selected head, step by step",
            "Each bin's strongest, rows centred: softmax ignores a shift.",
        ),
        Stacked(
            (
                Slot("attention-rows", "Attention at the selected token", "The reference's row, then each lane's."),
                Slot("sinks", "Attention on the first tokens", "Lane minus reference, mean over heads and steps."),
            )
        ),
    ),
    (
        Slot("channels-key", "Key channels that carry the error", "Of the selected layer and KV head."),
        Slot("channels-value", "Value channels that carry the error"),
    ),
    (Slot("depth", "Error against context depth", "Mean over all layers and heads."),),
)


def create_damage() -> View:
    words = create_words()
    with gr.Row(elem_classes=["choices"]):
        measure = gr.Radio(
            CHOICES, value=FIRST, label="Measure", elem_id="damage-measure", interactive=True, min_width=540
        )
        uncentred = gr.Checkbox(
            label="Uncentred score deltas", value=False, elem_id="uncentred", interactive=True, min_width=160
        )
    return View("damage", words, [create_page(*ROWS)], compute, ("layer", "head", "token"), [measure, uncentred])


def compute(record: Record, arrays: Arrays, at: Selection, measure: str, uncentred: Any) -> Drawing:
    kv_head = at.kv_head(record)
    grids = {
        f"grid-{kind}": or_absent(damage_grid(record, arrays, measure, kind, at.layer, kv_head), MISSING)
        if kind in MEASURES[measure]
        else ""
        for kind in ("key", "value")
    }
    shift = "" if not uncentred else " What centring took away was not kept in this run."
    maps, rows = (
        looked_at(record, arrays, at.layer, at.head),
        steps_at(record, arrays, at.layer, at.head, at.step),
    )
    not_kept = f"Layer {at.layer}, query head {at.head} was not kept in this run." if record.capture.layers else MISSING
    no_rows = f"Attention at token {at.token} was not kept in this run." if maps is not None else not_kept
    figures = {
        **grids,
        "score-map": or_absent(
            maps and score_map(*maps, at.layer, at.head, at.step, not uncentred),
            not_kept if maps is None else f"{MISSING}{shift}",
        ),
        "attention-rows": or_absent(rows and attention_rows(*rows, at.layer, at.head, at.step), no_rows),
        "channels-key": or_absent(channel_errors(record, arrays, "key", at.layer, kv_head), MISSING),
        "channels-value": or_absent(channel_errors(record, arrays, "value", at.layer, kv_head), MISSING),
        "sinks": or_absent(sink_change(record, arrays), MISSING),
        "depth": or_absent(depth_error(record, arrays, measure), MISSING),
    }
    titles = dict.fromkeys(grids, TITLES[measure]) if measure in TITLES else {}
    missing = f"attention at token {at.token}" if rows is None else ""
    missing = whole_layer(at.layer) if maps is None or not has_every_lane(maps) else missing
    own = keeps(record, at.layer, at.head) and at.step in record.capture.attention_steps and len(record.looks) == 0
    html = {
        "look-layers": layers_html(record, arrays, "delta_mean"),
        "look-maps": look_html(record, arrays, at.layer, at.head, missing, own),
    }
    lacks = _unkept(record, at) | ({"score-map": PICKED} if uncentred else {})
    lacks |= {"depth": PICKED} if measure == "score" else {}
    return Drawing(damage(record, arrays, at), figures, html, titles=titles, lacks=lacks)


def _unkept(record: Record, at: Selection) -> dict[str, str]:
    """Figures that are drawn from memory alone."""
    maps = keeps(record, at.layer, at.head)
    own = {"score-map": maps, "attention-rows": maps and at.step in record.capture.attention_steps}
    return {name: UNKEPT for name, is_own in own.items() if not is_own and from_memory(record, at.layer)}
