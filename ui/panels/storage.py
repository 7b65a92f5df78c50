"""Bits of every element, bytes by what they are for, and what a longer context would take."""

from typing import Any

import gradio as gr

from kvq_core.record import Record
from ui.colors import lane_color
from ui.figures import bit_map, stored_bytes
from ui.figures.base import Arrays
from ui.numbers import percent, size
from ui.panels.view import Drawn, View, create_slot, create_words, or_absent
from ui.selection import Selection
from ui.tables import extrapolated
from ui.text import safe
from ui.words import storage

MISSING = "Not captured in this run."
MAX_CONTEXT, MAX_BATCH = 10_000_000, 100_000


def create_storage() -> View:
    words = create_words()
    with gr.Row(elem_classes=["plots"]):
        stored = create_slot("bytes", "Stored bytes by what they are for")
        with gr.Column(min_width=300, elem_classes=["slot"]):
            with gr.Row():
                context = gr.Number(
                    32_768, label="Context, tokens", precision=0, min_width=120, elem_id="context", interactive=True
                )
                batch = gr.Number(1, label="Batch", precision=0, min_width=90, elem_id="batch", interactive=True)
            table = gr.HTML("", elem_id="extrapolation")
    with gr.Row(elem_classes=["choices"]):
        kind = gr.Radio(
            [("Keys", "key"), ("Values", "value")], value="key", label="Bit map of", elem_id="bits-of", interactive=True
        )
        axis = gr.Radio(["layers", "channels"], value="layers", label="Rows", elem_id="bits-rows", interactive=True)
    bits = create_slot(
        "bits", "Bits of every element", "One row where the bits depend on the token alone. Metadata included."
    )
    return View("storage", words, [stored, bits], compute, (), [context, batch, kind, axis], {"table": table})


def compute(
    record: Record, arrays: Arrays, at: Selection, context: Any, batch: Any, kind: Any, axis: Any
) -> Drawn:  # fmt: skip
    figures = {"bytes": stored_bytes(record), "bits": or_absent(bit_map(record, arrays, kind, axis), MISSING)}
    return Drawn(storage(record), figures, {"table": _table(record, context, batch)})


def _table(record: Record, context: Any, batch: Any) -> str:
    if not _whole(context, MAX_CONTEXT) or not _whole(batch, MAX_BATCH):
        return (
            f'<p class="error">Give a context from 1 to {MAX_CONTEXT:,} tokens and a batch from 1 to {MAX_BATCH:,}.</p>'
        )
    env = record.environment
    per_token = env.layers * env.kv_heads * env.head_dim
    full = 2 * 2 * per_token * int(context) * int(batch)
    rows = [f'<tr><th scope="row"><span class="dot ref"></span>FP16 cache</th><td>{size(full)}</td><td>100 %</td></tr>']
    for index, lane in enumerate(record.lanes):
        if lane.memory is None:
            continue
        stored = extrapolated(lane.memory, per_token, int(context), int(batch))
        dot = f'<span class="dot" style="background:{lane_color(index)}"></span>'
        rows.append(
            f'<tr><th scope="row">{dot}{safe(lane.label)}</th><td>{size(stored)}</td>'
            f"<td>{percent(stored / full)}</td></tr>"
        )
    return (
        '<div class="scroll"><table class="plain"><thead><tr>'
        f'<th scope="col">At {int(context):,} × {int(batch):,}</th>'
        '<th scope="col">cache</th><th scope="col">of fp16</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="muted">Extrapolated: the quantized region at its measured bits, the measured windows unchanged.</p>'
    )


def _whole(value: Any, high: int) -> bool:
    return isinstance(value, int | float) and value == value and 1 <= value <= high
