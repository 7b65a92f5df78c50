"""The answer cards: the reference first, a card a lane, the scale and the two switches above them."""

import json
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.record.subset import TOGETHER
from kvq_core.spec import MAX_LANES
from ui.html.escape import FULL_SHADE_NATS, SHADES
from ui.html.lane_table import lane_table
from ui.service.records import drawn_lanes
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
    table: gr.HTML  # of all lanes, where not all have cards
    drawn: gr.Textbox  # those that a reader chose in it; js/page.js writes it


def create_answers() -> AnswerCards:
    stage = gr.Textbox("", visible="hidden", elem_id="stage", show_label=False)
    stage.change(None, stage, None, js=STAGE, **SWIFT)
    drawn = gr.Textbox("", visible="hidden", elem_id="drawn", show_label=False)
    with gr.Column(elem_id="answers"):
        table = gr.HTML("", elem_id="lane-table")
        _toolbar()
        cards = gr.HTML("", elem_id="cards")
    return AnswerCards(stage, cards, table, drawn)


def _toolbar() -> None:
    # The switches are read by the stylesheet alone (:has(:checked)): no round trip, also while a run streams.
    with gr.Row(elem_id="toolbar"):
        gr.HTML(
            '<h2 class="sr-only">Answers</h2>'
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


def stage_html(over: bool | None) -> str:
    """What the stage shows: the cards and, once the run is over, its results; None: the form, which waits for Run.

    The stylesheet hides them, page.js shows them. Setting ``visible`` on a container takes Gradio most of a second: it
    asks every component inside for its value.
    """
    return "form" if over is None else "results" if over else "answers"


def all_lanes(record: Record, arrays: Arrays, shown: dict[str, Any]) -> str:
    """The table of a run that has more lanes than are drawn; nothing of others."""
    if len(record.lanes) <= TOGETHER:
        return ""
    return lane_table(record, arrays, drawn_lanes(record, shown), bool(shown.get("lanes")))


def wire_table(panel: AnswerCards, shown: gr.State) -> None:
    """Draw the lanes chosen in the table; the selection and the view stay."""

    def draw(raw: str, shown: dict[str, Any]) -> Any:
        try:
            asked = json.loads(raw)["lanes"]
        except (TypeError, ValueError, KeyError, RecursionError):  # what a browser sends is anybody's text
            return gr.skip()
        if not shown.get("run") or not isinstance(asked, list):
            return gr.skip()
        return {**shown, "lanes": asked[:MAX_LANES], "stays": True}

    panel.drawn.change(draw, [panel.drawn, shown], shown, **SWIFT)
