"""The scorecard: one sortable row a lane, exports, and llama-perplexity's block in full."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gradio as gr
import pandas as pd

from kvq_core.errors import StoreError
from kvq_core.logs import log_error
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.record.store import record_json
from ui.html.escape import safe
from ui.html.tables import COLUMNS, perplexity_rows, scorecard, to_csv
from ui.html.verdict import EXPLAINED
from ui.service.services import Services
from ui.words import overall

CLOSE = (
    "PPL can improve while KLD worsens: read KLD and flips first. Output error: how far the cache moves the attention "
    "output at the reference's last query, ||Δo||₂, mean over query heads; its bound is what Theorem 1 of SQuat allows "
    "(with ||V||, as its proof has it): never exceeded, and loose."
)


@dataclass
class Scorecard:
    words: gr.HTML
    table: gr.Dataframe
    csv: gr.DownloadButton
    json: gr.DownloadButton
    block: gr.HTML

    @property
    def outputs(self) -> list[gr.components.Component]:
        return [self.words, self.table, self.csv, self.json, self.block]


def create_scorecard() -> Scorecard:
    numbers: list[Literal["number"]] = ["number"] * (len(COLUMNS) - 2)
    with gr.Column(elem_classes=["card"], elem_id="scorecard"):
        with gr.Row(elem_classes=["title-row"]):
            gr.HTML("<h2>Scorecard</h2>")
            csv = gr.DownloadButton("CSV", size="sm", elem_id="download-csv", min_width=60)
            json = gr.DownloadButton("Record (JSON)", size="sm", elem_id="download-json", min_width=110)
        words = gr.HTML("", elem_classes=["words"])
        table = gr.Dataframe(
            headers=[column.title for column in COLUMNS],
            datatype=["str", "str", *numbers],
            interactive=False,
            buttons=[],
            elem_id="score-table",
            label="Scorecard, a row a lane",
            show_label=False,
            pinned_columns=1,
            max_height=460,
        )
        gr.HTML(f'<p class="muted">Forced rows on the same tokens, nats. {safe(EXPLAINED)} {CLOSE}</p>')
        with gr.Accordion("Complete llama-perplexity block", open=False, elem_id="perplexity"):
            block = gr.HTML("")
    return Scorecard(words, table, csv, json, block)


def show_scorecard(record: Record, arrays: Arrays, services: Services) -> list[Any]:
    rows = scorecard(record, arrays)
    csv: str | None = None
    json: str | None = None
    try:
        csv = services.file(f"{record.id}-scorecard.csv", to_csv(rows).encode())
        json = services.file(f"{record.id}-record.json", record_json(record).encode())
    except StoreError as error:  # the page needs no files
        log_error("no downloads", error, run=record.id)
        csv = json = None
    return [_said(overall(record, arrays)), _table(rows), csv, json, _block(record)]


def _table(rows: list[dict[str, Any]]) -> Any:
    """Raw values, so that sorting is by number, shown as formatted text."""
    frame = pd.DataFrame([[row[column.name] for column in COLUMNS] for row in rows], columns=[c.title for c in COLUMNS])
    return frame.style.format({column.title: _shown(column.shown) for column in COLUMNS})


def _shown(function: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: function(None if value is None or value != value else value)


def _block(record: Record) -> str:
    head, rows = perplexity_rows(record)
    if not rows:
        return '<p class="muted">No lane was scored.</p>'
    titles = "".join(f'<th scope="col">{safe(name)}</th>' for name in head)
    lines = "".join(
        f'<tr><th scope="row">{safe(row[0])}</th>' + "".join(f"<td>{safe(v)}</td>" for v in row[1:]) + "</tr>"
        for row in rows
    )
    table = f'<table class="plain"><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _said(sentence: str) -> str:
    return f"<p>{safe(sentence)}</p>"
