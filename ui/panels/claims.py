"""The papers' claims as measured, the models side by side: what is stored is shown, nothing is measured here."""

import gradio as gr

from kvq_core.claims.board import stored_boards
from kvq_core.claims.latency import stored_latency
from kvq_core.claims.side_by_side import FLIPS
from kvq_core.errors import KvqError
from ui.html.claims_table import claims_missing, claims_summary, claims_table, latency_claims
from ui.html.escape import safe
from ui.service.services import SWIFT

COMMAND = "python -m kvq_core claims --model ID"


def create_claims() -> gr.Accordion:
    """A closed section; its contents are read anew whenever it is opened."""
    with gr.Accordion("What the papers claim, measured here", open=False, elem_id="claims") as section:
        # read by the stylesheet alone, as the switches of the answers are
        gr.Radio(
            ["All claims", FLIPS.capitalize()],
            value="All claims",
            label="Claims that are shown",
            show_label=False,
            container=False,
            elem_id="claims-shown",
            elem_classes=["switch"],
            interactive=True,
        )
        board = gr.HTML("", elem_id="claims-board")
        section.expand(_shown, None, board, **SWIFT)
        gr.HTML(f'<p class="muted">Measure it on another model: <code>{safe(COMMAND)}</code></p>')
    return section


def _shown() -> str:
    try:
        boards = stored_boards()
    except KvqError as error:
        return claims_missing(str(error))
    return claims_summary(boards) + claims_table(boards) + latency_claims(stored_latency().boards)
