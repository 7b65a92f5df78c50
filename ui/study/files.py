"""A study as files: rows as Parquet and CSV, lanes as CSV, all figures as JSON, and the study itself."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from kvq_core.errors import StoreError
from kvq_core.studies.result import StudyResult
from kvq_core.studies.rows import COLUMNS, parquet
from ui.html.escape import cell_safe
from ui.service.services import Services

# Those columns of rows that hold a number a position are for Parquet alone.
_PLAIN = [name for name, kind in COLUMNS.items() if not kind.startswith("list")]


def rows_csv(result: StudyResult) -> bytes:
    """A line is model x prompt x lane."""
    table = result.table[_PLAIN].map(cell_safe)
    return bytes(table.to_csv(index=False).encode())


def lanes_csv(result: StudyResult) -> bytes:
    """A line a lane of a model; what is a list or an object stands as JSON."""
    out = io.StringIO()
    names = list(dict.fromkeys(name for line in result.lines for name in line))
    writer = csv.DictWriter(out, names)
    writer.writeheader()
    for line in result.lines:
        plain = {name: json.dumps(v) if isinstance(v, dict | list) else v for name, v in line.items()}
        writer.writerow({name: cell_safe(value) for name, value in plain.items()})
    return out.getvalue().encode()


def summary_json(result: StudyResult) -> bytes:
    return json.dumps(result.summary(), ensure_ascii=False).encode()


def spec_json(result: StudyResult) -> bytes:
    """For the command line, with the prompts inside."""
    return result.plan.spec.whole(result.plan.prompts).canonical().encode()


FILES: dict[str, tuple[str, Callable[[StudyResult], bytes]]] = {
    "Rows (Parquet)": ("rows.parquet", lambda result: parquet(result.rows)),
    "Rows (CSV)": ("rows.csv", rows_csv),
    "Lanes (CSV)": ("lanes.csv", lanes_csv),
    "Figures (JSON)": ("figures.json", summary_json),
    "Study (JSON)": ("study.json", spec_json),
}


def download_updates(services: Services, files: Mapping[str, Callable[[], bytes]]) -> list[Any]:
    """Of buttons, each of a file's name and what makes it. None can be pressed where one cannot be kept."""
    try:
        paths = [services.file(name, make()) for name, make in files.items()]
    except StoreError:
        return [gr.update(interactive=False)] * len(files)
    return [gr.update(value=path, interactive=True) for path in paths]


def name_of(result: StudyResult, ending: str) -> str:
    """Says all that decides the contents."""
    return f"study-{result.id}-{result.done}-of-{len(result.plan.cells)}-{len(result.failed)}-{ending}"
