"""What a static figure says under the pointer: its marks in the picture's own units, for a small script."""

import html
import math
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go

from ui.export.svg import room
from ui.export.svg_axes import Axis, axes, bar_axis, coordinates, places
from ui.figures.base import heat
from ui.html.numbers import significant

Mark = tuple[float, float, str]  # x and y in the picture, and what is said there


def marks(figure: go.Figure) -> list[Mark]:
    """Points, ends of bars and middles of cells, in the order of the traces; those that hold no number are left out."""
    scales = axes(figure, room(figure)[0])
    return [mark for trace in figure.data for mark in _marks(figure, trace, scales)]


def _marks(figure: go.Figure, trace: Any, scales: dict[str, Axis]) -> Iterator[Mark]:
    names = trace.xaxis or "x", trace.yaxis or "y"
    x, y = (scales[name] for name in names)
    titles, given = [_title(figure, name) for name in names], (coordinates(trace, "x"), coordinates(trace, "y"))
    across, up = places(x, given[0]), places(y, given[1])
    name = f"{_plain(trace.name)} · " if trace.name else ""
    if trace.type == "heatmap":
        for row, cells in enumerate(heat(figure, trace)):
            for column, value in enumerate(cells):
                if not math.isnan(value):
                    where = f"{titles[0]} {_said(given[0][column])}, {titles[1]} {_said(given[1][row])}"
                    yield _mark(across[column], up[row], f"{name}{where}: {_said(value)}")
        return
    vertical = trace.type != "bar" or bar_axis(trace) == "x"
    for at, (px, py) in enumerate(zip(across, up, strict=True)):
        place, value = (given[0][at], given[1][at]) if vertical else (given[1][at], given[0][at])
        if isinstance(value, str) or not math.isnan(value):
            yield _mark(px, py, f"{name}{titles[0 if vertical else 1]} {_said(place)}: {_said(value)}")


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
