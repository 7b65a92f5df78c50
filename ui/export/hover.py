"""What a static figure says under the pointer: its marks in the picture's own units, for a small script."""

import html
import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ui.export.svg import room
from ui.export.svg_axes import Axis, axes, bar_axis, coordinates, places
from ui.figures.base import heat
from ui.html.numbers import significant

MOST_CELLS = 2000  # of a picture's heatmaps: some 100 bytes each
Mark = tuple[float, float, str]  # x and y in the picture, and what is said there


def marks(figure: go.Figure, cells: int = MOST_CELLS) -> list[Mark]:
    """Points, ends of bars and middles of cells, in the order of the traces; those that hold no number are left out.
    ``cells``: about how many of heatmaps, see ``strongest``; of twice as many points or more some are left out."""
    scales = axes(figure, room(figure)[0])
    points = sum(len(coordinates(each, "x")) for each in figure.data if each.type != "heatmap")
    step = max(1, math.ceil(points / (2 * cells)))
    return [mark for trace in figure.data for mark in _marks(figure, trace, scales, cells, step)]


def marks_json(figure: go.Figure, cells: int = MOST_CELLS) -> str:
    """The same for the inside of a ``<script>`` element; ASCII."""
    return json.dumps(marks(figure, cells), separators=(",", ":")).replace("<", "\\u003c")


def _marks(figure: go.Figure, trace: Any, scales: dict[str, Axis], cells: int, step: int) -> Iterator[Mark]:
    if trace.hoverinfo == "skip":  # a front joins lanes' points and is none
        return
    names = trace.xaxis or "x", trace.yaxis or "y"
    x, y = (scales[name] for name in names)
    titles, given = [_title(figure, name) for name in names], (coordinates(trace, "x"), coordinates(trace, "y"))
    across, up = places(x, given[0]), places(y, given[1])
    name = f"{_plain(trace.name)} · " if trace.name else ""
    if trace.type == "heatmap":
        measured = _plain(figure.layout.coloraxis.colorbar.title.text or "")
        logs = "%{customdata}" in (trace.hovertemplate or "")  # the scale is one of logarithms
        values = np.asarray(trace.customdata if logs else heat(figure, trace), dtype=float)
        for row, column in strongest(values, cells // len(figure.data)):
            where = ", ".join(
                f"{title} {_said(at)}".strip()
                for title, at in zip(titles, (given[0][column], given[1][row]), strict=True)
            )
            yield _mark(across[column], up[row], f"{name}{where}: {_worth(measured, _said(values[row, column]))}")
        return
    vertical = trace.type != "bar" or bar_axis(trace) == "x"
    of, measured = titles if vertical else titles[::-1]
    for at, (px, py) in islice(enumerate(zip(across, up, strict=True)), 0, None, step):
        place, value = (given[0][at], given[1][at]) if vertical else (given[1][at], given[0][at])
        if isinstance(value, str) or not math.isnan(value):
            told = _told(trace, at, value)
            where = f"{name}{_quantity(of)[0]} {_said(place)}"
            yield _mark(px, py, where if told is None else f"{where}: {_worth(measured, told)}")


def strongest(values: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Row and column of every cell that is a number; of more than ``most`` cells the strongest of each patch of them,
    for the script says the nearest one."""
    rows, columns = values.shape
    patch = max(1, math.ceil(math.sqrt(values.size / max(1, most))))
    for row in range(0, rows, patch):
        for column in range(0, columns, patch):
            part = np.abs(values[row : row + patch, column : column + patch])
            if not np.isnan(part).all():
                y, x = np.unravel_index(np.nanargmax(part), part.shape)
                yield row + int(y), column + int(x)


def _told(trace: Any, at: int, value: Any) -> str | None:
    """What a mark is worth, as the page's own hover has it: a point's text where its height is not its value (a 0 on a
    logarithmic axis), None where its height says nothing (flips above their bars)."""
    hover = trace.hovertemplate or ""
    if trace.type != "scatter" or not hover or "%{y" in hover:
        return _said(value)
    return str(trace.text[at]) if "%{text}" in hover else None


def _worth(title: str, value: str) -> str:
    """A value between the quantity and the unit that a title names: "mean KLD, nats" is "mean KLD 0.2 nats"."""
    quantity, unit = _quantity(title)
    return f"{quantity} {value} {unit}"


def _quantity(title: str) -> tuple[str, str]:
    """Quantity and unit of a title, without what it says in brackets."""
    quantity, _, unit = title.partition(" (")[0].partition(", ")
    return quantity, unit


def _title(figure: go.Figure, name: str) -> str:
    """Of an axis; of subplots over one another one says it for all."""
    alike = (axis for axis in figure.layout if axis.startswith(f"{name[0]}axis"))
    said = (figure.layout[axis].title.text for axis in (f"{name[0]}axis{name[1:]}", *alike))
    return _plain(next(filter(None, said), ""))


def _mark(x: float, y: float, text: str) -> Mark:
    return round(float(x), 1), round(float(y), 1), " ".join(text.split())


def _said(value: Any) -> str:
    if isinstance(value, str):
        return _plain(value)
    return f"{value:.0f}" if float(value).is_integer() else significant(float(value), 3)


def _plain(text: str) -> str:
    """Plotly's texts are escaped already; the script writes text, never markup."""
    return html.unescape(text)
