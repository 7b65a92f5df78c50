"""The answer cards: the reference first, a card a lane, the scale and the two switches above them."""

from dataclasses import dataclass

import gradio as gr

from kvq_core.record import Record
from kvq_core.spec import MAX_LANES
from ui.cards import lane_body, lane_head, lane_strip, reference_body, reference_head
from ui.figures.base import Arrays
from ui.services import SWIFT
from ui.text import FULL_SHADE_NATS, SHADES

STAGE = "(stage) => window.kvq?.stage(stage)"
SCALE = "".join(f'<span class="k{k}"></span>' for k in range(SHADES + 1))
# The scale is a square root: a quarter of its length is a sixteenth of its end.
TICKS = (
    "".join(f"<span>{FULL_SHADE_NATS * part * part:g}</span>" for part in (0, 0.5))
    + f"<span>≥ {FULL_SHADE_NATS:g}</span>"
)


@dataclass
class AnswerCards:
    stage: gr.Textbox  # which parts of the page are in sight, see ``staged``
    heads: list[gr.HTML]
    bodies: list[gr.HTML]
    strips: list[gr.HTML]

    @property
    def streamed(self) -> list[gr.HTML]:
        return [*self.heads, *self.bodies, *self.strips]


def create_answers() -> AnswerCards:
    stage = gr.Textbox("", visible="hidden", elem_id="stage", show_label=False)
    stage.change(None, stage, None, js=STAGE, **SWIFT)
    with gr.Column(elem_id="answers"):
        _toolbar()
        with gr.Row(elem_id="cards"):
            cards = [_card(at) for at in range(MAX_LANES + 1)]
    heads, bodies, strips = zip(*cards, strict=True)
    return AnswerCards(stage, list(heads), list(bodies), [strip for strip in strips if strip is not None])


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


def _card(at: int) -> tuple[gr.HTML, gr.HTML, gr.HTML | None]:
    name = "reference" if at == 0 else f"lane-{at - 1}"
    with gr.Column(elem_classes=["card", "answer", name], elem_id=f"card-{at}", min_width=0):
        head = gr.HTML("", elem_classes=["head"])
        body = gr.HTML("", elem_classes=["tokens"])
        strip = gr.HTML("", elem_classes=["strip"]) if at else None
    return head, body, strip


def staged(lanes: int, over: bool) -> str:
    """What the stage shows: the cards of that many lanes and, once the run is over, its results.

    The stylesheet hides them, page.js shows them. Setting ``visible`` on a container takes Gradio most of a second: it
    asks every component inside for its value.
    """
    return f"{'results' if over else 'answers'} {lanes}"


def finished(record: Record, arrays: Arrays) -> list[str]:
    """Heads, bodies and strips of a finished run, in the order of AnswerCards.streamed."""
    count = len(record.lanes)
    pad = [""] * (MAX_LANES - count)
    heads = [reference_head(record), *(lane_head(lane, record.noise_floor) for lane in record.lanes)]
    bodies = [reference_body(record), *(lane_body(record, arrays, i) for i in range(count))]
    strips = [lane_strip(arrays, i) for i in range(count)]
    return [*heads, *pad, *bodies, *pad, *strips, *pad]
