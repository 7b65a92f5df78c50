"""What all figures share: a transparent template, array access, rounding for a small payload."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record
from ui.html.colors import ACCENT, DIVERGING, GRID, INK, LANES, SEQUENTIAL, lane_color, lane_mark, with_alpha
from ui.html.escape import plot_safe, shorten
from ui.html.tokens import TOKENS, font

TICK, TEXT = TOKENS.text["tick"], TOKENS.text["small"]
BLANK = -128  # the code of a heatmap's cell that stands for nothing
LABEL = 28  # characters of a label of a lane
HOVER = {"font": {"family": font("sans"), "size": TEXT}, "namelength": -1}


def lanes_with(record: Record, arrays: Arrays, name: str) -> Iterator[tuple[int, LaneRecord, np.ndarray]]:
    """Finished lanes that have the array ``lane/{i}/{name}``."""
    for index, lane in enumerate(record.lanes):
        found = array(arrays, f"lane/{index}/{name}")
        if lane.status == "done" and found is not None and found.size:
            yield index, lane, found


def label_of(lane: LaneRecord, limit: int = LABEL) -> str:
    """A lane's label for Plotly: escaped and short."""
    return plot_safe(shorten(lane.label, limit))


def plot_label(text: str) -> str:
    """Any text for Plotly as ``label_of`` gives a lane's."""
    return plot_safe(shorten(text, LABEL))


def color_of(record: Record, index: int) -> str:
    """A lane's hue: by its place in the whole run, also where some of its lanes are drawn."""
    return lane_color(record.number(index))


def line_of(record: Record, index: int, width: float = 2.0, **options: Any) -> dict[str, Any]:
    """A lane's line: its hue, and from the ninth lane on its dash, unless ``options`` give one another meaning."""
    mark = lane_mark(record.number(index))
    dash = {} if mark.dash == "solid" else {"dash": mark.dash}
    return {"color": mark.color, "width": width, **dash, **options}


def symbols_of(record: Record, index: int, size: float, **options: Any) -> dict[str, Any]:
    """A lane's points: its hue and its symbol."""
    mark = lane_mark(record.number(index))
    return {"color": mark.color, "symbol": mark.symbol, "size": size, **options}


def bars_of(record: Record, indices: Sequence[int], alpha: float = 1.0) -> dict[str, Any]:
    """Bars of lanes, one each: their hues, and the textures of those that have one."""
    marks = [lane_mark(record.number(index)) for index in indices]
    found: dict[str, Any] = {"color": [mark.color if alpha == 1.0 else with_alpha(mark.color, alpha) for mark in marks]}
    if any(mark.pattern for mark in marks):
        found["pattern"] = {"shape": [mark.pattern for mark in marks], "fillmode": "overlay", "solidity": 0.4}
    return found


def of_lane(index: int) -> dict[str, int]:
    """``meta`` of a trace that is a lane's (the reference's: -1): the page's one legend switches it, see
    js/legend.js."""
    return {"lane": index}


def of_rows(indices: Sequence[int]) -> dict[str, list[int]]:
    """``meta`` of a trace whose rows are lanes', from the top; -1 is no lane's."""
    return {"lanes": list(indices)}


def lane_of(trace: Any) -> int | None:
    """The lane a trace says it is of."""
    return trace.meta.get("lane") if isinstance(trace.meta, dict) else None


def label_figure(figure: go.Figure, label: str, pick: dict[str, Any] | None = None, **meta: Any) -> go.Figure:
    """What a screen reader says, and what a click selects: ``{"layer": "x"}`` is a point's x, a number is itself."""
    figure.update_layout(meta={"label": label, **({"pick": pick} if pick else {}), **meta})
    return figure


def cursor(figure: go.Figure, at: float, rows: int = 1, axis: Literal["x", "y"] = "x") -> go.Figure:
    """A thin line at the selection, in every row."""
    line = {"color": ACCENT, "width": 1.5, "dash": "dot"}
    for row in range(1, rows + 1):
        place = {"row": row, "col": 1} if figure._has_subplots() else {}
        figure.add_vline(at, line=line, **place) if axis == "x" else figure.add_hline(at, line=line, **place)
    return figure


def as_int8(values: np.ndarray, top: float) -> np.ndarray:
    """Signed values as int8 codes of ``top / 127``, the figure's ``meta["scale"]``: a quarter of float32 for a large
    heatmap; NaN becomes BLANK. js/plots.js turns them back before it draws."""
    codes = np.clip(np.round(values * (127 / (top or 1.0))), -127, 127)
    return np.where(np.isnan(codes), BLANK, codes).astype(np.int8)


def heat(figure: go.Figure, trace: Any) -> np.ndarray:
    """A heatmap's values in their unit, also where they are held as codes; NaN where it is blank."""
    meta, z = figure.layout.meta, np.asarray(trace.z, dtype=float)
    scale = meta.get("scale") if isinstance(meta, dict) else None
    return z if scale is None else np.where(z == BLANK, np.nan, z * scale)


def round_values(values: np.ndarray, digits: int = 4) -> np.ndarray:
    """float32 with at most ``digits`` decimals; Plotly sends it as binary."""
    return np.round(values, digits).astype(np.float32)


def canvas(height: int, **layout: Any) -> go.Figure:
    """An empty figure in the page's style."""
    return apply_style(go.Figure(), height, **layout)


def lane_rows(
    titles: Sequence[str], row_height: int, colors: Sequence[str], gap: int = 30, **options: Any
) -> go.Figure:
    """One subplot a lane below each other on a shared x axis, each titled in its lane's colour."""
    inner = len(titles) * row_height + (len(titles) - 1) * gap
    spacing = gap / inner if len(titles) > 1 else 0
    figure = make_subplots(
        len(titles), 1, shared_xaxes=True, vertical_spacing=spacing, subplot_titles=list(titles), **options
    )
    for note, color in zip(figure.layout.annotations, colors, strict=True):
        note.update(x=0, xanchor="left", font={"size": TEXT, "color": color}, yshift=1)
    return apply_style(figure, inner + 80, margin={"l": 48, "r": 8, "t": 26, "b": 46})


def apply_style(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Transparent, quiet, readable on a light and on a dark ground."""
    figure.update_layout(
        template=go.layout.Template(),  # Plotly's own is 6 KB a figure
        height=height,
        margin={"l": 52, "r": 12, "t": 12, "b": 46},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": font("sans"), "size": TEXT, "color": INK},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": TEXT}},
        hoverlabel=HOVER,
        dragmode="zoom",
        colorway=list(LANES),
    )
    figure.update_layout(**layout)
    axis = {
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": GRID,
        "ticks": "",
        "title": {"standoff": 8, "font": {"size": TICK}},
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis, exponentformat="none")  # 0.0001, not 100μ
    return figure


def sequential(high: float, unit: str) -> dict[str, Any]:
    """A shared white-to-purple colour axis from 0."""
    return {"colorscale": list(SEQUENTIAL), "cmin": 0, "cmax": high or 1.0, "colorbar": bar(unit)}


def decade_scale(unit: str, low: float, high: float) -> dict[str, Any]:
    """A shared white-to-purple colour axis of decimal logarithms, with the values themselves at its ticks."""
    first, last = round(math.log10(low)), round(math.log10(high))
    ticks = list(range(first, last + 1))
    named = {"tickvals": ticks, "ticktext": [f"{10.0**tick:g}" for tick in ticks]}
    return {"colorscale": list(SEQUENTIAL), "cmin": first, "cmax": last, "colorbar": {**bar(unit), **named}}


def diverging(high: float, unit: str) -> dict[str, Any]:
    """A shared purple-to-orange colour axis, white at 0."""
    return {"colorscale": list(DIVERGING), "cmin": -(high or 1.0), "cmax": high or 1.0, "colorbar": bar(unit)}


def decades(low: float, high: float) -> dict[str, Any]:
    """Ticks of a logarithmic axis with their values written out: many where it spans less than a decade, 1, 2 and 5 of
    each of a few decades, powers of ten over more."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    span = math.log10(high / low)
    steps = (1, 1.5, 2, 3, 4, 5, 7) if span < 1 else (1, 2, 5) if span < 2.5 else (1,)
    at = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return {"tickvals": at, "ticktext": [f"{value:g}" for value in at]}


def bar(unit: str) -> dict[str, Any]:
    return {
        "title": {"text": unit, "side": "right", "font": {"size": TICK}},
        "thickness": 10,
        "outlinewidth": 0,
        "tickfont": {"size": TICK},
        "len": 1.0,
        "x": 1.0,
        "xpad": 6,
    }


def pool_bins(values: np.ndarray, limit: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``limit`` entries along an axis, each the mean of its bin; and the bins' first indices."""
    length = values.shape[axis]
    edges = np.linspace(0, length, min(limit, length) + 1).astype(int)[:-1]
    widths = np.diff(np.append(edges, length))
    shape = [1] * values.ndim
    shape[axis] = -1
    return np.add.reduceat(values, edges, axis=axis) / widths.reshape(shape), edges
