"""The answer cards: the reference first, a card a lane, the scale and the two switches above them."""

from dataclasses import dataclass

import gradio as gr

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.cards import cards, lane_body, lane_head, lane_strip, reference_body, reference_head
from ui.html.escape import FULL_SHADE_NATS, SHADES
from ui.service.services import SWIFT

STAGE = "(stage) => window.kvq?.stage(stage)"
SCALE = "".join(f'<span class="k{k}"></span>' for k in range(SHADES + 1))
# The scale is a square root: a quarter of its length is a sixteenth of its end.
TICKS = (
    "".join(f"<span>{FULL_SHADE_NATS * part * part:g}</span>" for part in (0, 0.5))
    + f"<span>≥ {FULL_SHADE_NATS:g}</span>"
)


@dataclass
class AnswerCards:
    stage: gr.Textbox  # which parts of the page are in sight, see ``stage_html``
    cards: gr.HTML


def create_answers() -> AnswerCards:
    stage = gr.Textbox("", visible="hidden", elem_id="stage", show_label=False)
    stage.change(None, stage, None, js=STAGE, **SWIFT)
    with gr.Column(elem_id="answers"):
        _toolbar()
        cards = gr.HTML("", elem_id="cards")
    return AnswerCards(stage, cards)


def _toolbar() -> None:
    # The switches are read by the stylesheet alone (:has(:checked)): no round trip, also while a run streams.
    with gr.Row(elem_id="toolbar"):
        gr.HTML(
            '<div class="legend"><div class="of-kld"><span>KLD, nats</span><div class="scale">'
            f'<div class="steps">{SCALE}</div><div class="ticks">{TICKS}</div></div></div>'
            '<div class="of-flips"><span class="flip-key">another most probable token</span></div>'
            '<span class="edge">first different token</span></div>'
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
            ["KLD", "Flips"],
            value="KLD",
            label="Colour of the tokens",
            show_label=False,
            container=False,
            elem_id="view-color",
            elem_classes=["switch"],
            interactive=True,
        )


def stage_html(over: bool) -> str:
    """What the stage shows: the cards and, once the run is over, its results.

    The stylesheet hides them, page.js shows them. Setting ``visible`` on a container takes Gradio most of a second: it
    asks every component inside for its value.
    """
    return "results" if over else "answers"


def finished_cards(record: Record, arrays: Arrays) -> str:
    """The cards of a finished run."""
    lanes = [
        (lane_head(record, arrays, i), lane_body(record, arrays, i), lane_strip(arrays, i))
        for i in range(len(record.lanes))
    ]
    return cards((reference_head(record), reference_body(record), ""), *lanes)
