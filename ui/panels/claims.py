"""The papers' claims as measured on the default model: what is stored is shown, nothing is measured here."""

import gradio as gr

from kvq_core.claims.board import Board, stored_board
from kvq_core.errors import KvqError
from kvq_core.spec import DEFAULT_MODEL
from ui.html.claims_table import claims_missing, claims_summary, claims_table
from ui.html.escape import safe
from ui.service.services import SWIFT

COMMAND = "python -m kvq_core claims --model ID"


def create_claims() -> gr.Accordion:
    """A closed section; its contents are read anew whenever it is opened."""
    with gr.Accordion("What the papers claim, measured here", open=False, elem_id="claims") as section:
        board = gr.HTML("", elem_id="claims-board")
        section.expand(_shown, None, board, **SWIFT)
        gr.HTML(f'<p class="muted">Measure it on another model: <code>{safe(COMMAND)}</code></p>')
    return section


def _shown() -> str:
    try:
        board: Board = stored_board(DEFAULT_MODEL)
    except KvqError as error:
        return claims_missing(str(error))
    return f"<p><b>{safe(claims_summary(board))}</b></p>{claims_table(board)}"
