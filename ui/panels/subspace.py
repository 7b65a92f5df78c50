"""Where queries look, and how much of each lane's key error lies there."""

from typing import Any

import gradio as gr

from kvq_core.record import Record
from ui.figures import deviation, error_inside, error_split
from ui.figures.base import Arrays
from ui.panels.view import Drawn, View, create_slot, create_words, or_absent
from ui.selection import Selection
from ui.words import subspace

MISSING = "Not captured in this run."


def create_subspace() -> View:
    words = create_words()
    rank = gr.Slider(
        1, 64, value=5, step=1, label="Rank r of the query subspace", elem_id="pick-rank", buttons=[], interactive=True
    )
    with gr.Row(elem_classes=["plots"]):
        slots = [
            create_slot("deviation", "How far queries lie from the subspace", "0: every query lies in it."),
            create_slot("error-inside", "Key error inside the subspace", "Of the prompt's queries, per KV head."),
            create_slot("error-split", "Key error inside and outside", "Over all layers and KV heads."),
        ]
    return View("subspace", words, slots, compute, ("layer",), [rank], fit=fit)


def fit(record: Record) -> list[Any]:
    return [gr.update(maximum=record.environment.head_dim)]


def compute(record: Record, arrays: Arrays, at: Selection, rank: Any) -> Drawn:
    rank = min(max(1, int(rank or 1)), record.environment.head_dim)
    figures = {
        "deviation": or_absent(deviation(record, arrays, at.layer, rank), MISSING),
        "error-inside": or_absent(error_inside(record, arrays, at.layer, rank), MISSING),
        "error-split": or_absent(error_split(record, arrays, rank), MISSING),
    }
    return Drawn(subspace(record, arrays, rank), figures)
