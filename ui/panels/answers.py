"""The answer cards: the reference first, a card a lane, the scale and the two switches above them."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.record import Record
from kvq_core.spec import MAX_LANES
from ui.cards import lane_body, lane_head, lane_strip, reference_body, reference_head
from ui.figures.base import Arrays
from ui.text import FULL_SHADE_NATS, SHADES

SCALE = "".join(f'<span class="k{k}"></span>' for k in range(SHADES + 1))
# The scale is a square root: a quarter of its length is a sixteenth of its end.
TICKS = (
    "".join(f"<span>{FULL_SHADE_NATS * part * part:g}</span>" for part in (0, 0.5))
    + f"<span>≥ {FULL_SHADE_NATS:g}</span>"
)


@dataclass
class AnswerCards:
    area: gr.Column
    columns: list[gr.Column]
    heads: list[gr.HTML]
    bodies: list[gr.HTML]
    strips: list[gr.HTML]

    @property
    def streamed(self) -> list[gr.HTML]:
        return [*self.heads, *self.bodies, *self.strips]


def create_answers() -> AnswerCards:
    with gr.Column(elem_id="answers", visible=False) as area:
        _toolbar()
        with gr.Row(elem_id="cards"):
            cards = [_card(at) for at in range(MAX_LANES + 1)]
    columns, heads, bodies, strips = zip(*cards, strict=True)
    return AnswerCards(area, list(columns), list(heads), list(bodies), [strip for strip in strips if strip is not None])


def _toolbar() -> None:
    # The switches are read by the stylesheet alone (:has(:checked)): no round trip, also while a run streams.
    with gr.Row(elem_id="toolbar"):
        gr.HTML(
            f'<div class="legend"><span>KLD, nats</span><div class="scale"><div class="steps">{SCALE}</div>'
            f'<div class="ticks">{TICKS}</div></div><span class="edge">first different token</span></div>'
        )
        gr.Radio(
            ["Own tokens", "Same tokens"],
            value="Own tokens",
            label="Text of the lanes",
            show_label=False,
            container=False,
            elem_id="view-text",
            elem_classes=["switch"],
            interactive=True,
        )
        gr.Radio(
            ["KLD", "Flips"], value="KLD", label="Colour of the tokens", show_label=False, container=False,
            elem_id="view-color", elem_classes=["switch"], interactive=True
        )  # fmt: skip


def _card(at: int) -> tuple[gr.Column, gr.HTML, gr.HTML, gr.HTML | None]:
    name = "reference" if at == 0 else f"lane-{at - 1}"
    with gr.Column(visible=False, elem_classes=["card", "answer", name], elem_id=f"card-{at}", min_width=0) as column:
        head = gr.HTML("", elem_classes=["head"])
        body = gr.HTML("", elem_classes=["tokens"])
        strip = gr.HTML("", elem_classes=["strip"]) if at else None
    return column, head, body, strip


def visible(lanes: int) -> list[Any]:
    """Updates of the cards' columns for a run with that many lanes."""
    return [gr.update(visible=at <= lanes) for at in range(MAX_LANES + 1)]


def finished(record: Record, arrays: Arrays) -> list[str]:
    """Heads, bodies and strips of a finished run, in the order of AnswerCards.streamed."""
    count = len(record.lanes)
    pad = [""] * (MAX_LANES - count)
    heads = [reference_head(record), *(lane_head(lane, record.noise_floor) for lane in record.lanes)]
    bodies = [reference_body(record), *(lane_body(record, arrays, i) for i in range(count))]
    strips = [lane_strip(arrays, i) for i in range(count)]
    return [*heads, *pad, *bodies, *pad, *strips, *pad]
