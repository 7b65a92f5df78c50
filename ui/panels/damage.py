"""Attention-score deltas: every layer and head, then one head step by step."""

from typing import Any

import gradio as gr

from kvq_core.record import Record
from ui.figures import damage_overview, score_map
from ui.figures.base import Arrays
from ui.text import safe
from ui.words import damage


def create_damage() -> list[gr.components.Component]:
    words = gr.HTML("", elem_classes=["words"])
    with gr.Row(elem_classes=["plots"]):
        overview = gr.Plot(
            show_label=False, container=False, elem_id="plot-damage", elem_classes=["plot"], min_width=320
        )
        with gr.Column(min_width=320):
            detail = gr.Plot(show_label=False, container=False, elem_id="plot-score-map", elem_classes=["plot"])
    gr.HTML(
        '<p class="muted">Left: mean |Δ q·k/√d| over the steps, quantized positions only, centred per row because '
        "softmax ignores a shift. Right: the head chosen above, step by step, the strongest value of each bin with its "
        "sign.</p>"
    )
    return [words, overview, detail]


def show_damage(record: Record, arrays: Arrays, layer: int, head: int) -> list[Any]:
    figures = damage_overview(record, arrays), score_map(record, arrays, int(layer), int(head))
    return [f"<p>{safe(damage(record, arrays))}</p>", *(gr.update(value=f, visible=f is not None) for f in figures)]
