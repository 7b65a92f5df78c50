"""Open a run that is a file: chosen, or dropped anywhere on the page (js/opens.js)."""

from pathlib import Path
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError, StoreError
from kvq_core.record.carried import MOST_BYTES, carried, restore
from kvq_core.record.store import Store
from kvq_core.settings import settings
from ui.html.escape import safe
from ui.service.services import SWIFT, Services

GO = "(run) => run && location.assign(`?run=${encodeURIComponent(run)}`)"


def create_open_file(services: Services) -> None:
    """Nothing on a public instance: what anybody may put into its store would be taken for what it computed."""
    if settings().public:
        return
    with gr.Column(elem_classes=["card"], elem_id="opens"):
        given = gr.UploadButton("Open a run's file", file_types=[".html"], size="sm", elem_id="open-file")
        said = gr.HTML("")
        run = gr.Textbox(visible="hidden", elem_id="opened-run", show_label=False)

    def keep(file: str) -> list[Any]:
        try:
            return ["", opened(Path(file), services.store)]
        except KvqError as error:
            return [f'<p class="error">{safe(error)}</p>', ""]

    given.upload(keep, given, [said, run], **SWIFT)
    run.change(None, run, None, js=GO, **SWIFT)


def opened(file: Path, store: Store) -> str:
    """Id of the run that ``file`` carries, which the store has now. Raises StoreError in one line."""
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise StoreError(f"The file has {size / 1e6:.1f} MB; a run's file has {MOST_BYTES / 1e6:.0f} MB at most.")
    found = carried(file.read_bytes(), "The file")
    restore(found, store)
    return found.record.id
