"""Open a run that is a file: chosen here, or dropped anywhere on the page. js/opens.js gives it to ``/open``."""

import gradio as gr

from kvq_core.settings import settings

OPENS = (
    '<div hidden><label class="plain-button opens">Open a run\'s file'
    '<input type="file" accept=".html,text/html" id="open-file" class="sr-only"></label>'
    '<p class="muted" id="open-said" role="status">Or drop it on the page.</p></div>'
)


def create_open_file() -> None:
    """Nothing on a public instance, where ``/open`` refuses."""
    with gr.Column(elem_classes=["card"], elem_id="opens", visible=not settings().public):
        gr.HTML(OPENS)
