"""Axes of a static figure: data units onto pixels, ranges, ticks."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ui.html.numbers import significant


@dataclass
class Axis:
    """One axis: data units low .. high onto pixels start .. end (end < start for y)."""

    start: float
    end: float
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    step: float | None = None  # between ticks, where the figure says it
    names: list[str] = field(default_factory=list)  # categories, at 0, 1, 2, ...

    def place(self, values: Any) -> np.ndarray:
        """Pixels of data values; categories by their position."""
        given = np.asarray(values, dtype=float)
        if self.log:
            given = np.log10(np.maximum(given, 1e-300))
        return self.start + (given - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """(pixel, text); at most about six."""
        if self.names:
            return [(float(self.place(i)), name) for i, name in enumerate(self.names)]
        low, high = sorted((self.low, self.high))
        if self.log:
            steps = (1, 2, 5) if high - low < 2.5 else (1,)
            found = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in steps]
            return [(float(self.place(v)), significant(v, 1)) for v in found if low <= math.log10(v) <= high]
        step = self.step or _nice((high - low) / 5)
        digits = max(0, -math.floor(math.log10(step)))
        first = math.ceil(low / step - 1e-9)
        values = [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]
        return [(float(self.place(v)), f"{v:,.{digits}f}") for v in values]


def pairs(figure: go.Figure) -> list[tuple[str, str]]:
    """The axes traces are drawn on, in the order of the traces."""
    return list(dict.fromkeys((t.xaxis or "x", t.yaxis or "y") for t in figure.data))


def axes(figure: go.Figure, inner: tuple[float, float, float, float]) -> dict[str, Axis]:
    """Every axis with traces, in the pixels of ``inner`` (left, top, right, bottom)."""
    x0, y0, x1, y1 = inner
    found = {}
    for name in sorted({name for pair in pairs(figure) for name in pair}):
        said = axis_layout(figure, name)
        a, b = said.domain or (0, 1)
        is_x = name[0] == "x"
        axis = Axis(x0 + a * (x1 - x0), x0 + b * (x1 - x0)) if is_x else Axis(y1 - a * (y1 - y0), y1 - b * (y1 - y0))
        axis.log, axis.step = said.type == "log", said.dtick
        shared = said.matches or name
        sharing = [
            t for t in figure.data if (axis_layout(figure, _axis_of(t, name)).matches or _axis_of(t, name)) == shared
        ]
        axis.low, axis.high, axis.names = _extent(sharing, name[0], axis.log)
        if said.range is not None:
            axis.low, axis.high = said.range
        elif said.autorange == "reversed":
            axis.low, axis.high = axis.high, axis.low
        found[name] = axis
    return found


def axis_layout(figure: go.Figure, name: str) -> Any:
    """What the layout says of axis ``x``, ``y2``, ..."""
    return figure.layout[f"{name[0]}axis{name[1:]}"]


def _axis_of(trace: Any, like: str) -> str:
    return getattr(trace, f"{like[0]}axis", None) or like[0]


def _extent(traces: list[Any], which: str, log: bool) -> tuple[float, float, list[str]]:
    """Range of an axis with some air, and its categories."""
    lows: list[float] = []
    highs: list[float] = []
    names: dict[str, None] = {}
    for trace in traces:
        given = coordinates(trace, which)
        if given.dtype.kind in "UO":
            names |= dict.fromkeys(map(str, given))
            continue
        if given.size:
            half = 0.5 if trace.type == "heatmap" or (trace.type == "bar" and bar_axis(trace) == which) else 0.0
            lows.append(float(np.nanmin(given)) - half)
            highs.append(float(np.nanmax(given)) + half)
            if trace.type == "bar" and bar_axis(trace) != which:
                lows.append(0.0)
    if names:
        return -0.5, len(names) - 0.5, list(names)
    low, high = min(lows, default=0.0), max(highs, default=1.0)
    if log:
        return math.log10(max(low, 1e-12)) - 0.05, math.log10(max(high, 1e-12)) + 0.05, []
    if all(t.type == "bar" for t in traces) and low == 0:
        high = _stacked_top(traces, which, high)
    air = 0.0 if any(t.type in ("heatmap", "bar") for t in traces) else 0.03 * (high - low)
    return low - air, high + air + (0.04 * (high - low) if low == 0 and air == 0 else 0), []


def _stacked_top(traces: list[Any], which: str, high: float) -> float:
    """Bars on one another reach the sum of them."""
    sums: dict[str, float] = {}
    for trace in traces:
        if bar_axis(trace) == which:
            return high
        for place, value in zip(coordinates(trace, bar_axis(trace)), coordinates(trace, which), strict=False):
            sums[str(place)] = sums.get(str(place), 0.0) + float(value)
    return max([high, *sums.values()])


def bar_axis(trace: Any) -> str:
    """The axis a bar trace's bars are lined up on."""
    return "y" if trace.orientation == "h" else "x"


def coordinates(trace: Any, which: str) -> np.ndarray:
    """Coordinates of a trace on an axis; two levels of categories as one text."""
    given = getattr(trace, which)
    if trace.type == "heatmap" and given is None:
        given = range(np.asarray(trace.z).shape[1 if which == "x" else 0])
    if given is None:
        return np.arange(0.0)
    if len(given) == 2 and not np.isscalar(given[0]):
        return np.asarray([f"{a}, {b}" for a, b in zip(*given, strict=True)], dtype=object)
    found = np.asarray(given)
    return found if found.dtype.kind in "UO" else found.astype(float)


def places(axis: Axis, given: np.ndarray) -> np.ndarray:
    """Pixels of coordinates, categories among them."""
    return axis.place([axis.names.index(str(v)) for v in given] if axis.names else given)


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(m * scale for m in (1, 2, 5, 10) if m * scale >= step * 0.999)
