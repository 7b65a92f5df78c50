"""The selection's controls, beside the views: what moves it, and what it is in words."""

from dataclasses import dataclass

import gradio as gr

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.selection import last_token, selection_html, start


@dataclass
class Selectors:
    """What moves the selection, and the selection in words."""

    layer: gr.Slider
    head: gr.Slider
    token: gr.Slider
    words: gr.HTML


def create_selectors() -> Selectors:
    with gr.Column(elem_id="selection", elem_classes=["instrument"]):
        gr.HTML("<h2>Selection</h2>")
        with gr.Column(elem_id="pickers"):
            sliders = (
                _slider("Layer", "pick-layer", 29),
                _slider("Query head", "pick-head", 8),
                _slider("Token", "pick-token", 63),
            )
        return Selectors(*sliders, gr.HTML("", elem_id="selected"))


def place_selectors(panel: Selectors, record: Record, arrays: Arrays) -> None:
    """Before the page is served: where a run is opened."""
    at, env = start(record, arrays), record.environment
    panel.layer.value, panel.head.value, panel.token.value = at.layer, at.head, at.token
    panel.layer.maximum, panel.head.maximum, panel.token.maximum = (
        env.layers - 1,
        env.query_heads - 1,
        last_token(record),
    )
    panel.words.value = selection_html(record, arrays, at)


def _slider(label: str, name: str, high: int) -> gr.Slider:
    return gr.Slider(0, high, value=0, step=1, label=label, elem_id=name, min_width=170, buttons=[], interactive=True)
