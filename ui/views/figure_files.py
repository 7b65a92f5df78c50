"""Figures taken away: a view's numbers or one figure's as CSV, JSON or Parquet; js/take.js saves what is sent, draws
images by itself and copies the code that embeds a figure."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from kvq_core.record.fields import Record
from ui.selection import Selection, read_selection
from ui.service.services import SWIFT, Services
from ui.views.export import view_csv, view_json, view_parquet
from ui.views.view import Drawing, View

SAVE = "(text, name) => window.kvq?.save(text, name)"
WRITERS: dict[str, Callable[[Record, Selection, str, Drawing], str | bytes]] = {
    "csv": view_csv,
    "json": view_json,
    "parquet": view_parquet,
}
ViewValues = Callable[[Sequence[Any]], Iterator[tuple[View, Sequence[Any]]]]
Export = tuple[gr.Button, gr.Button, gr.Textbox, gr.Textbox, gr.Textbox]


def create_export() -> Export:
    with gr.Row(elem_id="export"):
        gr.HTML(
            '<p class="muted">Export this view</p>'
            '<button type="button" class="plain-button" data-image="png">PNG</button>'
            '<button type="button" class="plain-button" data-image="svg">SVG</button>'
        )
        csv = gr.Button("CSV", size="sm", elem_id="view-csv", min_width=50)
        json = gr.Button("JSON", size="sm", elem_id="view-json", min_width=50)
        text, name = gr.Textbox(visible=False), gr.Textbox(visible=False)
        take = gr.Textbox(visible="hidden", elem_id="take", show_label=False)
    return csv, json, text, name, take


def wire_export(export: Export, inputs: list[Any], held: ViewValues, services: Services) -> None:
    """``inputs``: the run shown, the open view, the selection, then what the pickers hold, which ``held`` divides."""
    csv, json, text, name, take = export

    def file(shown: dict[str, Any], opened: str, to: str, figure: str | None, values: Sequence[Any]) -> list[Any]:
        if not shown.get("run") or to not in WRITERS:
            return [gr.skip()] * 2
        record, arrays = services.records.drawn(shown)
        at = read_selection(record, *values[:3])
        for view, picked in held(values[3:]):
            if view.name != opened:
                continue
            drawn = view.drawn(record, arrays, at, picked)
            if figure is not None:
                only = drawn.only(figure)
                if only is None:
                    break
                drawn = only
            return [as_text(WRITERS[to](record, at, view.name, drawn)), f"{record.id}-{figure or opened}.{to}"]
        return [gr.skip()] * 2

    def of_figure(raw: str, shown: dict[str, Any], opened: str, *values: Any) -> list[Any]:
        told = read_request(raw)
        figure, to = told.get("figure"), told.get("as")
        known = isinstance(figure, str) and isinstance(to, str)
        return file(shown, opened, str(to), str(figure), values) if known else [gr.skip()] * 2

    for button, suffix in ((csv, "csv"), (json, "json")):

        def of_view(shown: dict[str, Any], opened: str, *values: Any, to: str = suffix) -> list[Any]:
            return file(shown, opened, to, None, values)

        button.click(of_view, inputs, [text, name], **SWIFT).then(None, [text, name], None, js=SAVE, **SWIFT)
    taken = take.change(of_figure, [take, *inputs], [text, name], **SWIFT)
    taken.then(None, [text, name], None, js=SAVE, **SWIFT)


def as_text(data: str | bytes) -> str:
    """Bytes as base64, which the browser turns back."""
    return data if isinstance(data, str) else base64.b64encode(data).decode()


def read_request(raw: Any) -> dict[str, Any]:
    """What a browser sent, which is anybody's text."""
    try:
        told = json.loads(raw)
    except (TypeError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
