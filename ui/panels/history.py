"""A visitor's own runs, kept in their browser, and the link of the run shown."""

import re
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.record.fields import Record
from kvq_core.settings import settings
from kvq_core.store.sharing import listed_runs as on_list
from kvq_core.store.store import Store
from ui.html.escape import safe, shorten
from ui.html.numbers import plural
from ui.service.services import SWIFT, Services

KEPT = 30
LISTED = 10
_ID = re.compile(r"[0-9a-f]{8,64}")


def create_history() -> tuple[gr.BrowserState, gr.HTML]:
    # Fixed key and secret: with Gradio's random ones a restart of the server would forget everybody's runs.
    kept = gr.BrowserState([], storage_key="kvq-explorer-runs", secret="kvq-explorer")
    with gr.Column(elem_classes=["card"], elem_id="history"):
        gr.HTML("<h2>Your runs</h2>")
        listing = gr.HTML(history_html([]), elem_id="runs")
    return kept, listing


def create_shared(services: Services) -> None:
    """On a public instance, the runs their makers put on the list; read whenever the page is opened."""
    with gr.Column(elem_classes=["card"], elem_id="shared", visible=settings().public):
        gr.HTML("<h2>Shared runs</h2>")
        if settings().public:
            gr.on(None, lambda: shared_runs(services.store), None, gr.HTML(""), **SWIFT)


def shared_runs(store: Store) -> str:
    try:
        found = on_list(store, LISTED)
    except KvqError as error:
        return f'<p class="error">{safe(error)}</p>'
    items = "".join(
        f'<li><a href="?run={safe(run.id)}">{safe(shorten(run.prompt, 70) or run.id)}</a>'
        f"<small>{safe(run.created[:10])} · {plural(len(run.lanes), 'lane')} · {safe(run.model_title)}</small></li>"
        for run in found
    )
    return f'<ul class="runs">{items}</ul>' if items else '<p class="muted">Nobody has listed a run yet.</p>'


def remember(kept: Any, record: Record, key: str = "") -> list[dict[str, str]]:
    """The newest run first; an entry is small and holds what the list shows, and what opens the run."""
    entry = {
        "id": record.id,
        "when": record.created[:16].replace("T", " "),
        "prompt": shorten(record.question, 70),
        "model": record.environment.model_title,
        "lanes": plural(len(record.lanes), "lane"),
        "key": key,
    }
    return [entry, *(e for e in entries_of(kept) if e["id"] != record.id)][:KEPT]


def history_html(kept: Any) -> str:
    entries = entries_of(kept)[:LISTED]
    if not entries:
        return '<p class="muted">Runs you finish are listed here, in this browser alone.</p>'
    items = "".join(
        f'<li><a href="?run={e["id"]}">{safe(e["prompt"] or e["id"])}</a>'
        f"<small>{safe(e['when'])} · {safe(e['lanes'])} · {safe(e['model'])}</small></li>"
        for e in entries
    )
    return f'<ul class="runs">{items}</ul>'


def entries_of(kept: Any) -> list[dict[str, str]]:
    """The runs of a history. What came back from the browser is anybody's text."""
    if not isinstance(kept, list):
        return []
    names = ("id", "when", "prompt", "model", "lanes", "key")
    return [
        {name: str(entry.get(name, ""))[:200] for name in names}
        for entry in kept[:KEPT]
        if isinstance(entry, dict) and _ID.fullmatch(str(entry.get("id", "")))
    ]
