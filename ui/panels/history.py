"""A visitor's own runs, kept in their browser, and the link of the run shown."""

import os
import re
from typing import Any
from urllib.parse import urlsplit

import gradio as gr

from kvq_core.record import Record
from ui.numbers import plural
from ui.text import safe, shorten

KEPT = 30
LISTED = 10
_ID = re.compile(r"[0-9a-f]{8,64}")


def create_history() -> tuple[gr.BrowserState, gr.HTML]:
    # Fixed key and secret: with Gradio's random ones a restart of the server would forget everybody's runs.
    kept = gr.BrowserState([], storage_key="kvq-explorer-runs", secret="kvq-explorer")
    with gr.Column(elem_classes=["card"], elem_id="history"):
        gr.HTML("<h2>Your runs</h2>")
        listing = gr.HTML(listed([]), elem_id="runs")
    return kept, listing


def create_share() -> gr.Textbox:
    return gr.Textbox(
        label="Link to this run", interactive=False, buttons=["copy"], elem_id="share", visible=False,
    )  # fmt: skip


def remembered(kept: Any, record: Record) -> list[dict[str, str]]:
    """The newest run first; an entry is small and holds what the list shows."""
    entry = {
        "id": record.id,
        "when": record.created[:16].replace("T", " "),
        "prompt": shorten(str(record.spec.get("prompt", "")), 70),
        "model": record.environment.model_title,
        "lanes": plural(len(record.lanes), "lane"),
    }
    return [entry, *(e for e in _valid(kept) if e["id"] != record.id)][:KEPT]


def listed(kept: Any) -> str:
    entries = _valid(kept)[:LISTED]
    if not entries:
        return '<p class="muted">Runs you finish are listed here, in this browser alone.</p>'
    items = "".join(
        f'<li><a href="?run={e["id"]}">{safe(e["prompt"] or e["id"])}</a>'
        f"<small>{safe(e['when'])} · {safe(e['lanes'])} · {safe(e['model'])}</small></li>"
        for e in entries
    )
    return f'<ul class="runs">{items}</ul>'


def link(run_id: str, request: gr.Request) -> str:
    """The address that opens the run: the Space's own page where there is one, else the server the page came from."""
    if space := os.environ.get("SPACE_ID"):
        return f"https://huggingface.co/spaces/{space}?run={run_id}"
    origin = urlsplit(request.headers.get("origin") or request.headers.get("referer") or "")
    base = f"{origin.scheme}://{origin.netloc}" if origin.scheme in ("http", "https") and origin.netloc else ""
    return f"{base}/?run={run_id}"


def _valid(kept: Any) -> list[dict[str, str]]:
    """What came back from the browser is anybody's text."""
    if not isinstance(kept, list):
        return []
    names = ("id", "when", "prompt", "model", "lanes")
    return [
        {name: str(entry.get(name, ""))[:200] for name in names}
        for entry in kept[:KEPT]
        if isinstance(entry, dict) and _ID.fullmatch(str(entry.get("id", "")))
    ]
