"""A view as files: every number its figures and tables show, in one long table or as JSON."""

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvq_core.record.fields import Record
from ui.figures.base import heat
from ui.html.escape import cell_safe
from ui.selection import Selection
from ui.views.view import Drawing

COLUMNS = ("figure", "series", "x", "y", "value", "x_is", "y_is", "value_is")


def view_csv(record: Record, at: Selection, name: str, drawn: Drawing) -> str:
    """A line a point: curves and bars have x and y, heatmaps and tables a value at (x, y)."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for title, rows in (*((t, points(figure)) for t, figure in figures_of(drawn)), *drawn.tables.items()):
        for row in rows:
            writer.writerow(map(cell_safe, [title, *row]))
    return out.getvalue()


def view_parquet(record: Record, at: Selection, name: str, drawn: Drawing) -> bytes:
    """The lines of ``view_csv``; a column that holds numbers and words holds words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [[title, *row] for title, figure in figures_of(drawn) for row in points(figure)]
    lines += [[title, *row] for title, rows in drawn.tables.items() for row in rows]
    columns = dict(zip(COLUMNS, map(list, zip(*lines, strict=True)), strict=True)) if lines else {}
    table = pa.table({title: _alike(values) for title, values in columns.items()})
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"run": record.id, "view": name, "says": drawn.words}), file)
    return file.getvalue()


def _alike(values: list[Any]) -> list[Any]:
    """Numbers as they are where all are, else texts."""
    plain = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)
    return [None if v is None else float(v) if plain else str(v) for v in values]


def view_json(record: Record, at: Selection, name: str, drawn: Drawing) -> str:
    """The run, the selection, the sentence and the same points."""
    found = {
        "run": record.id,
        "view": name,
        "selection": asdict(at),
        "says": drawn.words,
        "columns": COLUMNS[1:],
        "figures": {title: list(points(figure)) for title, figure in figures_of(drawn)},
        "tables": dict(drawn.tables),
        "absent": {title: said for title, said in drawn.figures.items() if isinstance(said, str)},
    }
    return json.dumps(found, ensure_ascii=False)


def figures_of(drawn: Drawing) -> Iterator[tuple[str, go.Figure]]:
    return ((name, figure) for name, figure in drawn.figures.items() if isinstance(figure, go.Figure))


def points(figure: go.Figure) -> Iterator[list[Any]]:
    """Rows in the order of COLUMNS without the figure's name."""
    for trace in figure.data:
        titles = [_axis_title(figure, trace, axis) for axis in "xy"]
        if trace.type == "heatmap":
            z = heat(figure, trace)
            xs, ys = (_or_range(given, size) for given, size in ((trace.x, z.shape[1]), (trace.y, z.shape[0])))
            unit = figure.layout.coloraxis.colorbar.title.text if trace.coloraxis else ""
            for y, line in zip(ys, z.tolist(), strict=True):
                for x, value in zip(xs, line, strict=True):
                    if math.isnan(value):  # blank
                        continue
                    yield [trace.name or "", x, y, value, *titles, unit or ""]
        elif trace.x is not None and trace.y is not None:
            for x, y in zip(_or_range(trace.x, 0), _or_range(trace.y, 0), strict=False):
                yield [trace.name or "", x, y, None, *titles, ""]


def _axis_title(figure: go.Figure, trace: Any, axis: str) -> str:
    """The title of a trace's axis; of stacked plots only the lowest carries the shared one."""
    named = getattr(trace, f"{axis}axis", None) or axis
    own = figure.layout[f"{axis}axis{named[1:]}"].title.text
    shared = [a.title.text for a in figure.select_xaxes() if a.title.text] if axis == "x" else []
    return str(own or (shared[-1] if shared else ""))


def _or_range(values: Any, size: int) -> list[Any]:
    if values is None:
        return list(range(size))
    if len(values) == 2 and not np.isscalar(values[0]):  # two levels of categories
        return [" / ".join(map(str, pair)) for pair in zip(*values, strict=True)]
    return np.asarray(values).tolist() if isinstance(values, np.ndarray) else list(values)
