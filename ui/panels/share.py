"""Share: the links of the run shown, a card to post, files to keep, and the command that computes it again."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError, SpecError, StoreError
from kvq_core.record.fields import Record
from kvq_core.record.files import ARRAYS, RECORD, serialize
from kvq_core.record.sharing import holds_key, reach
from kvq_core.record.shipped import holder
from kvq_core.spec import parse_spec
from ui.export.card import card, card_text
from ui.export.page import filed, page
from ui.export.reproduce import FILE, command, comparison_json, conditions
from ui.html.copying import COPY_JS, copy_box
from ui.html.escape import safe
from ui.html.status import notice
from ui.html.tables import scorecard, to_csv
from ui.service.access import key_in
from ui.service.address import comparison_link, lasting_link, link, own_query
from ui.service.services import QUIET, SWIFT, Services

PRIVATE = "Only this browser can open this run. Share it, and its link opens for everybody who has it."
LISTED = "Also list it on this page, where everybody sees its prompt"
FILES = ("Run (HTML)", "Record (JSON)", "Arrays (safetensors)", "Scorecard (CSV)", "Comparison (JSON)")


@dataclass
class SharePanel:
    link: gr.HTML
    private: gr.Row
    listed: gr.Checkbox
    share: gr.Button
    message: gr.HTML
    more: gr.Accordion
    copies: gr.HTML
    files: list[gr.DownloadButton]

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        """What ``show_share`` sets, in its order."""
        return [self.link, self.private, self.message, self.more, self.copies, *self.files]


def create_share() -> SharePanel:
    box = gr.HTML("", elem_id="share", visible=False, js_on_load=COPY_JS)
    with gr.Row(visible=False, elem_id="private") as private:
        gr.HTML(f'<p class="muted">{PRIVATE}</p>')
        listed = gr.Checkbox(label=LISTED, value=False, elem_id="share-listed", container=False)
        share = gr.Button("Share this run", size="sm", elem_id="share-run")
    said = gr.HTML("")
    with gr.Accordion("Share, download, reproduce", open=False, visible=False, elem_id="share-more") as more:
        copies = gr.HTML("", js_on_load=COPY_JS, elem_id="copies")
        with gr.Row(elem_id="downloads"):
            files = [gr.DownloadButton(name, size="sm", min_width=90, interactive=False) for name in FILES]
    return SharePanel(box, private, listed, share, said, more, copies, files)


def show_share(record: Record, shown: dict[str, Any], request: gr.Request, services: Services) -> list[Any]:
    """The run's link; what takes longer is made when it is asked for."""
    hidden = _is_private(record.id, services)
    return [
        gr.update(value=_link_box(record.id, shown, request, hidden), visible=True),
        gr.update(visible=hidden),
        "",
        gr.update(visible=True, open=False),
        '<p class="muted">Preparing</p>',
        *[gr.update(interactive=False)] * len(FILES),
    ]


def wire_share(panel: SharePanel, shown: gr.State, kept: gr.BrowserState, services: Services) -> None:
    """Fill the panel when it is opened; share a run when its maker says so."""

    def fill(shown: dict[str, Any], request: gr.Request) -> Iterator[list[Any]]:
        """What is copied at once, then the files, the page last: its figures take a second.

        All of it is said again with the page: of two answers that a slow browser gets before it has made the buttons,
        it keeps the second.
        """
        if not shown.get("run"):
            return
        record, arrays = services.records.get(shown["run"])
        copies, files = _copies(record, arrays, request), _files(record, arrays, services)
        yield [copies, gr.skip(), *files]
        yield [copies, _page(record, arrays, services), *files]

    def share(shown: dict[str, Any], kept: Any, listed: bool, request: gr.Request) -> list[Any]:
        run = shown.get("run")
        try:
            if not run or not holds_key(services.store, run, key_in(kept, run)):
                raise KvqError("Only the browser that made a run can share it. Run the comparison here first.")
            services.store.share(run, listed)
        except KvqError as error:
            return [gr.skip(), gr.skip(), notice("The run was not shared", str(error))]
        return [gr.update(value=_link_box(run, shown, request, False)), gr.update(visible=False), ""]

    outputs = [panel.copies, *panel.files]
    panel.more.expand(fill, shown, outputs, **QUIET, concurrency_limit=2, trigger_mode="always_last")
    panel.share.click(share, [shown, kept, panel.listed], [panel.link, panel.private, panel.message], **SWIFT)


def _is_private(run: str, services: Services) -> bool:
    try:
        return not services.records.ships(run) and reach(services.store, run) == "private"
    except KvqError:
        return True


def _link_box(run: str, shown: dict[str, Any], request: gr.Request, hidden: bool) -> str:
    title = "Link to this run, for this browser alone" if hidden else "Link to this run"
    box = copy_box(title, link(run, request), follow=own_query(shown))
    return f"<div data-private>{box}</div>" if hidden else box  # js/take.js asks


def _copies(record: Record, arrays: dict[str, Any], request: gr.Request) -> str:
    address = link(record.id, request)
    picture = base64.b64encode(card(record, arrays, address).encode()).decode()
    try:
        text = comparison_link(parse_spec(record.spec), request)
        form = copy_box("Link to the comparison alone: it fills the form, without the result", text)
    except SpecError as error:
        form = f'<p class="muted">No link to the comparison alone. {safe(error)}</p>'
    return (
        f"{form}<h2>Card</h2>"
        f'<div class="posting">'
        f"{copy_box('Text to paste', card_text(record, arrays, address), lines=6 + len(record.lanes))}"
        f'<div><img alt="The run as a picture" src="data:image/svg+xml;base64,{picture}">'
        f'<button type="button" class="plain-button png" data-name="{safe(record.id)}.png">Download PNG</button></div>'
        f"</div><h2>Command</h2>{copy_box('Computes the run again', command(record), lines=6)}"
        f'<p class="muted">{safe(conditions(record))} The file {safe(FILE)} is among the downloads, too.</p>'
        "<h2>Files</h2>"
    )


def _files(record: Record, arrays: dict[str, Any], services: Services) -> list[Any]:
    content, _ = serialize(record, arrays)
    files = {
        "record.json": content[RECORD],
        "arrays.safetensors": content[ARRAYS],
        "scorecard.csv": to_csv(scorecard(record, arrays)).encode(),
        FILE: comparison_json(record).encode(),
    }
    return [_offered(services.file(f"{record.id}-{name}", data)) for name, data in files.items()]


def _page(record: Record, arrays: dict[str, Any], services: Services) -> Any:
    """The same file for all visitors: nothing in it is of a request."""
    address = lasting_link(record.id)
    try:
        made = filed(record, arrays, holder(record.id, services.store).files(record.id), address)
    except StoreError as error:  # of a run that could not be stored
        made = page(record, arrays, f"The run is not in this page. {error}", address).encode()
    return _offered(services.file(f"{record.id}.html", made))


def _offered(path: str) -> Any:
    return gr.update(value=path, interactive=True)
