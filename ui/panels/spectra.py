"""Singular values of the prompt's keys."""

from typing import Any

import gradio as gr

from kvq_core.record import Record
from ui.figures import cumulative_energy, head_spectra, joint_spectra
from ui.figures.base import Arrays
from ui.text import safe
from ui.words import spectra


def create_spectra() -> list[gr.components.Component]:
    words = gr.HTML("", elem_classes=["words"])
    with gr.Row(elem_classes=["plots"]):
        plots = [
            gr.Plot(show_label=False, container=False, elem_id=f"plot-{name}", elem_classes=["plot"], min_width=270)
            for name in ("head-spectra", "joint-spectra", "energy")
        ]
    gr.HTML(
        '<p class="muted">The full-precision keys of the prompt; the same for every lane. Thin lines on the right: '
        "heads concatenated.</p>"
    )
    return [words, *plots]


def show_spectra(record: Record, arrays: Arrays, layer: int) -> list[Any]:
    layer = int(layer)
    figures = (draw(record, arrays, layer) for draw in (head_spectra, joint_spectra, cumulative_energy))
    return [
        f"<p>{safe(spectra(record, arrays, layer))}</p>",
        *(gr.update(value=f, visible=f is not None) for f in figures),
    ]
