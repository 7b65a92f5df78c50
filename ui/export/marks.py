"""What a static figure says under the pointer: its marks in the picture's own units, for a small script."""

import html
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go

from ui.export.svg import room
from ui.export.svg_axes import Axis, axes, axis_layout, bar_axis, coordinates, places
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
    titles = [_plain(axis_layout(figure, name).title.text or "") for name in names]
    given = coordinates(trace, "x"), coordinates(trace, "y")
    across, up = places(x, given[0]), places(y, given[1])
    if trace.type == "heatmap":
        for row, cells in enumerate(heat(figure, trace)):
            for column, value in enumerate(cells):
                if value == value:  # not blank
                    where = f"{titles[0]} {_said(given[0][column])}, {titles[1]} {_said(given[1][row])}".strip()
                    yield _mark(across[column], up[row], f"{where}: {_said(value)}")
        return
    name, vertical = _plain(trace.name or ""), trace.type != "bar" or bar_axis(trace) == "x"
    for at, (px, py) in enumerate(zip(across, up, strict=True)):
        place, value = (given[0][at], given[1][at]) if vertical else (given[1][at], given[0][at])
        if isinstance(value, str) or value == value:
            yield _mark(px, py, f"{name} · {titles[not vertical]} {_said(place)}: {_said(value)}".removeprefix(" · "))


def _mark(x: float, y: float, text: str) -> Mark:
    return round(float(x), 1), round(float(y), 1), text


def _said(value: Any) -> str:
    return _plain(value) if isinstance(value, str) else significant(float(value), 3)


def _plain(text: str) -> str:
    """Plotly's texts are escaped already; the script writes text, never markup."""
    return html.unescape(text)
