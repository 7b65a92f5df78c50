"""Where queries look, and how much of each lane's key error lies there."""

from typing import Any

import gradio as gr

from kvq_core.record import Record
from ui.figures import deviation, error_inside, error_split
from ui.figures.base import Arrays
from ui.text import safe
from ui.words import subspace


def create_subspace() -> tuple[list[gr.components.Component], gr.Slider]:
    words = gr.HTML("", elem_classes=["words"])
    rank = gr.Slider(
        1, 64, value=5, step=1, label="Rank r of the query subspace", elem_id="pick-rank", buttons=[], interactive=True
    )
    with gr.Row(elem_classes=["plots"]):
        plots = [
            gr.Plot(show_label=False, container=False, elem_id=f"plot-{name}", elem_classes=["plot"], min_width=270)
            for name in ("deviation", "error-inside", "error-split")
        ]
    gr.HTML(
        '<p class="muted">Subspace: the r strongest right singular directions of the prompt\'s queries of a KV head. '
        "Deviation 0 means that every query lies in it. The bars are over all layers and KV heads.</p>"
    )
    return [words, *plots], rank


def show_subspace(record: Record, arrays: Arrays, layer: int, rank: int) -> list[Any]:
    layer, rank = int(layer), min(int(rank), record.environment.head_dim)
    figures = (
        deviation(record, arrays, layer, rank),
        error_inside(record, arrays, layer, rank),
        error_split(record, arrays, rank),
    )
    return [
        f"<p>{safe(subspace(record, arrays, rank))}</p>",
        *(gr.update(value=f, visible=f is not None) for f in figures),
    ]
