"""A visitor's own runs, kept in their browser under names that they give: listed, found, named and forgotten."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from rapidfuzz import fuzz, process, utils

from kvq_core.errors import KvqError
from kvq_core.record.fields import Record
from kvq_core.record.sharing import listed_runs as on_list
from kvq_core.record.store import Store
from kvq_core.settings import settings
from ui.html.escape import safe, shorten
from ui.html.numbers import plural
from ui.service.lists import tell_tabs, told_by_tab
from ui.service.services import SWIFT, Services

KEPT = 100
LISTED = 10
FOUND = 30  # at most, of those that a search finds
ALIKE = 75  # of 100, how like the best part of an entry a search must be
NAMED = 60  # characters of a name
SEARCHED = ("name", "prompt", "titles", "model", "when", "id")
MOST_BESIDE = 2_000  # characters of the runs beside one
_ID = re.compile(r"[0-9a-f]{8,64}")


@dataclass
class History:
    """``message`` is written by js/lists.js: which run is named, or forgotten."""

    kept: gr.BrowserState
    find: gr.Textbox
    runs: gr.HTML
    message: gr.Textbox

    @property
    def outputs(self) -> list[Any]:
        """What ``list_history`` sets."""
        return [self.find, self.runs]


def create_history() -> History:
    # Fixed key and secret: with Gradio's random ones a restart of the server would forget everybody's runs.
    kept = gr.BrowserState([], storage_key="kvq-explorer-runs", secret="kvq-explorer")
    with gr.Column(elem_classes=["card"], elem_id="history"):
        gr.HTML("<h2>Your runs</h2>")
        find = gr.Textbox(
            "",
            label="Find",
            placeholder="name, prompt, lane, model or id",
            max_lines=1,
            visible=False,
            elem_id="history-find",
            interactive=True,
        )
        listing = gr.HTML(history_html([]), elem_id="runs")
        message = gr.Textbox(visible="hidden", elem_id="history-told", show_label=False)
    return History(kept, find, listing, message)


def wire_history(panel: History) -> None:
    """Search while one types; name and forget runs."""
    sought = [panel.kept, panel.find]
    panel.find.change(history_html, sought, panel.runs, **SWIFT, trigger_mode="always_last")

    def change(raw: str, kept: Any, find: str) -> list[Any]:
        kept = change_history(kept, raw)
        return [kept, gr.update(visible=len(kept) > 1 or bool(find)), history_html(kept, find)]

    panel.message.change(change, [panel.message, panel.kept, panel.find], [panel.kept, *panel.outputs], **SWIFT)
    panel.kept.change(None, panel.kept, None, js=tell_tabs("runs", KEPT), **SWIFT)


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


def remember(
    kept: Any,
    record: Record,
    key: str = "",
    beside: Mapping[str, str] | None = None,
    gone: Collection[str] = (),
) -> list[dict[str, str]]:
    """The newest run first, under the name it had; an entry is small and holds what the list shows and finds, and what
    opens the run. ``beside``: keys of the runs that this browser added to it, by id; ``gone``: those it took back."""
    entry = {
        "id": record.id,
        "when": record.created[:16].replace("T", " "),
        "prompt": shorten(record.question, 70),
        "model": record.environment.model_title,
        "lanes": plural(len(record.lanes), "lane"),
        "titles": shorten(", ".join(lane.label for lane in record.lanes), 200),
        "key": key,
    }
    entries = entries_of(kept)
    before = next((e for e in entries if e["id"] == record.id), {"name": "", "key": "", "beside": ""})
    entry["name"], entry["key"] = before["name"], key or before["key"]  # a run that is opened by its link tells none
    added = dict(pair.split(":") for pair in before["beside"].split() if pair.count(":") == 1) | dict(beside or {})
    entry["beside"] = " ".join(f"{run}:{own}" for run, own in added.items() if run not in gone)
    return [entry, *(e for e in entries if e["id"] != record.id)][:KEPT]


def change_history(kept: Any, raw: str) -> list[dict[str, str]]:
    """The runs after one was named or forgotten, or what another tab did: ``put`` entries and ids that are ``gone``.
    What a browser sends is anybody's text."""
    entries = entries_of(kept)
    try:
        told = json.loads(raw)
        if "run" not in told:
            return told_by_tab(entries, told, entries_of, KEPT)
        run, name = told["run"], told.get("name")
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        return entries
    if name is None:
        return [entry for entry in entries if entry["id"] != run]
    return [{**entry, "name": shorten(str(name), NAMED)} if entry["id"] == run else entry for entry in entries]


def list_history(kept: Any, find: str = "") -> list[Any]:
    """Updates of ``History.outputs``: the search is there once there is something to search, and stays as it is."""
    return [gr.update(visible=len(entries_of(kept)) > 1), history_html(kept, find)]


def history_html(kept: Any, find: str = "") -> str:
    """The newest runs, the older ones folded; of a search those it finds, the best first."""
    entries = entries_of(kept)
    if not entries:
        return '<p class="muted">Runs you finish are listed here, in this browser alone.</p>'
    if str(find or "").strip():
        found = search(entries, str(find))
        return _list(found) if found else f'<p class="muted">No run of yours is like “{safe(shorten(find, 40))}”.</p>'
    older = entries[LISTED:]
    folded = f"<details><summary>{plural(len(older), 'older run')}</summary>{_list(older)}</details>" if older else ""
    return _list(entries[:LISTED]) + folded


def search(entries: list[dict[str, str]], find: str) -> list[dict[str, str]]:
    """Entries with a part that is like what is sought."""
    texts = {at: " ".join(entry[name] for name in SEARCHED) for at, entry in enumerate(entries)}
    found = process.extract(
        find,
        texts,
        scorer=fuzz.partial_ratio,
        processor=utils.default_process,
        limit=FOUND,
        score_cutoff=ALIKE,
    )
    return [entries[at] for _, _, at in found]


def _list(entries: list[dict[str, str]]) -> str:
    return f'<ul class="runs">{"".join(_entry(e) for e in entries)}</ul>'


def _entry(e: dict[str, str]) -> str:
    shown = e["name"] or e["prompt"] or e["id"]
    below = [e["prompt"]] * bool(e["name"]) + [e["when"], e["lanes"], e["model"]]
    return (
        f'<li><a href="?run={e["id"]}">{safe(shown)}</a><small>{safe(" · ".join(below))}</small>'
        f'<details class="naming"><summary aria-label="Name or forget {safe(shown)}">Name</summary><input type="text" '
        f'aria-label="Name of the run" maxlength="{NAMED}" data-run-name="{e["id"]}" value="{safe(e["name"])}" '
        f'placeholder="a name, then Enter"><button type="button" class="link-button" data-run-forget="{e["id"]}">Forget'
        "</button></details></li>"
    )


def entries_of(kept: Any) -> list[dict[str, str]]:
    """The runs of a history. What came back from the browser is anybody's text."""
    if not isinstance(kept, list):
        return []
    names = ("id", "when", "prompt", "model", "lanes", "titles", "name", "key", "beside")
    return [
        {name: str(entry.get(name, ""))[: MOST_BESIDE if name == "beside" else 200] for name in names}
        for entry in kept[:KEPT]
        if isinstance(entry, dict) and _ID.fullmatch(str(entry.get("id", "")))
    ]
