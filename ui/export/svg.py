"""A Plotly figure as a static SVG, for pages that open offline: the bars, lines, points and heatmaps of figures.

Plotly's own script is 4.6 MB, and turning figures into pictures takes a browser. Of shapes those with a name are drawn;
the others mark the page's selection. Text takes the colour of the page around it.
"""

import base64
import html
import io
import zlib
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ui.export.marks import dash, symbol, texture
from ui.export.svg_axes import Axis, axes, axis_layout, bar_axis, coordinates, pairs, places
from ui.figures.base import heat
from ui.html.colors import LANES, SEQUENTIAL, Scale, at, rgb
from ui.html.escape import safe
from ui.html.numbers import significant

WIDTH = 760
LEGEND_LINE = 18
CHARACTER = 6.3  # mean width of one at 12 px
Box = tuple[float, float, float, float]  # left, top, right, bottom


def svg(figure: go.Figure) -> str:
    """The figure as an ``<svg>`` element. Raises TypeError for a kind of trace that no figure here draws."""
    layout = figure.layout
    legend = _legend(figure)
    inner, height = room(figure)
    left, scales = inner[0], axes(figure, inner)
    body = [_frame(figure, scales, x, y) for x, y in pairs(figure)]
    stacked: dict[Any, np.ndarray] = {}
    befores = [None, *figure.data]
    body += [
        _trace(figure, trace, before, scales, stacked) for before, trace in zip(befores, figure.data, strict=False)
    ]
    body += [_note(note, inner) for note in layout.annotations]
    body += [_mark(shape, scales) for shape in layout.shapes if shape.name]
    body += [_legend_entry(entry, left) for entry in legend]
    if layout.coloraxis.colorscale:
        body.append(_color_bar(layout.coloraxis, inner))
    label = safe((layout.meta or {}).get("label", "") if isinstance(layout.meta, dict) else "")
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg" '
        f'font-size="12" fill="currentColor">{"".join(body)}</svg>'
    )


def room(figure: go.Figure) -> tuple[Box, float]:
    """Where the axes lie in the picture, and its height; it is WIDTH wide."""
    layout = figure.layout
    left, right = max(62, _label_room(figure)), 70 if layout.coloraxis.colorscale else 14
    top = max(layout.margin.t or 12, 12) + LEGEND_LINE * (1 + max((line for line, *_ in _legend(figure)), default=-1))
    height = (layout.height or 300) + top - (layout.margin.t or 12)
    return (left, top, WIDTH - right, height - max(46, layout.margin.b or 46)), height


def _trace(figure: go.Figure, trace: Any, before: Any, scales: dict[str, Axis], stacked: dict[Any, np.ndarray]) -> str:
    x, y = scales[trace.xaxis or "x"], scales[trace.yaxis or "y"]
    if trace.type == "heatmap":
        return _heatmap(figure, trace, x, y)
    if trace.type == "bar":
        return _bars(figure, trace, x, y, stacked)
    if trace.type == "scatter":
        return (_band(trace, before, x, y) if trace.fill == "tonexty" else "") + _scatter(trace, x, y)
    raise TypeError(f"a {trace.type} trace has no static form")


def _bars(figure: go.Figure, trace: Any, x: Axis, y: Axis, stacked: dict[Any, np.ndarray]) -> str:
    lined, across = (y, x) if bar_axis(trace) == "y" else (x, y)
    where, lengths = coordinates(trace, bar_axis(trace)), coordinates(trace, "x" if across is x else "y")
    at_pixel = places(lined, where)
    unit = abs(lined.end - lined.start) / max(1e-9, abs(lined.high - lined.low))
    thick = unit * (1 - (figure.layout.bargap or 0.2))
    bases = np.zeros(len(lengths))
    if figure.layout.barmode == "stack":
        keys = [(trace.xaxis, trace.yaxis, str(place)) for place in where]
        bases = np.asarray([stacked.get(key, 0.0) for key in keys])
        stacked.update(zip(keys, bases + lengths, strict=True))
    lows, highs = across.place(bases), across.place(bases + lengths)
    colors = trace.marker.color
    parts = []
    for i, (p, a, b) in enumerate(zip(at_pixel, lows, highs, strict=True)):
        low, size = min(a, b), abs(b - a)
        box = (low, p - thick / 2, size, thick) if across is x else (p - thick / 2, low, thick, size)
        color = colors if isinstance(colors, str) else colors[i] if colors is not None else LANES[0]
        place = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" '.format(*box)
        parts.append(f'{place}fill="{color}"/>')
        woven, fill = texture(trace.marker.pattern.shape[i] if trace.marker.pattern.shape else "")
        if fill:
            parts.append(f'{woven}{place}fill="{fill}"/>')
    return "".join(parts)


def _points(trace: Any, x: Axis, y: Axis) -> list[tuple[float, float]]:
    return list(zip(places(x, coordinates(trace, "x")), places(y, coordinates(trace, "y")), strict=True))


def _band(trace: Any, before: Any, x: Axis, y: Axis) -> str:
    """What lies between a line and the one before it."""
    edges = (*_points(before, x, y), *reversed(_points(trace, x, y)))
    return f'<path d="M{"L".join(f"{px:.1f} {py:.1f}" for px, py in edges)}Z" fill="{trace.fillcolor}"/>'


def _scatter(trace: Any, x: Axis, y: Axis) -> str:
    points = _points(trace, x, y)
    out = ""
    mode = trace.mode or "lines"
    color = trace.line.color or trace.marker.color or "currentColor"
    if "lines" in mode and points and trace.line.width != 0:
        steps = trace.line.shape == "hv"
        path = "M" + "".join(
            f"{'L' if i else ''}{px:.1f} {points[i - 1][1] if steps and i else py:.1f}"
            + (f"L{px:.1f} {py:.1f}" if steps and i else "")
            for i, (px, py) in enumerate(points)
        )
        out += f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{trace.line.width or 2}"'
        out += f"{dash(trace.line.dash)}/>"
    if "markers" in mode:
        radius = (trace.marker.size or 6) / 2
        shape, rim = trace.marker.symbol or "circle", trace.marker.line.color or ""
        out += "".join(symbol(shape, px, py, radius, trace.marker.color or color, rim) for px, py in points)
    return out


def _heatmap(figure: go.Figure, trace: Any, x: Axis, y: Axis) -> str:
    """One picture of a pixel a cell: 256 colours, enlarged without smoothing."""
    shared = figure.layout.coloraxis
    low, high, scale = shared.cmin or 0.0, shared.cmax or 1.0, shared.colorscale or SEQUENTIAL
    shown = np.nan_to_num(heat(figure, trace))  # what is blank has the colour of nothing
    codes = np.clip((shown - low) / ((high - low) or 1.0) * 255, 0, 255).astype(np.uint8)
    (left, right), (top, bottom) = _edges(x, coordinates(trace, "x")), _edges(y, coordinates(trace, "y"))
    if top > bottom:  # the first row is the lowest one
        codes, top, bottom = codes[::-1], bottom, top
    data = base64.b64encode(png(codes, scale)).decode()
    return (
        f'<image x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
        f'preserveAspectRatio="none" style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _edges(axis: Axis, given: np.ndarray) -> tuple[float, float]:
    """Where the first cell begins and the last one ends, by their middles."""
    at = places(axis, given)
    half = 0.5 * float(at[1] - at[0] if at.size > 1 else axis.place(1.0) - axis.place(0.0))
    return float(at[0]) - half, float(at[-1]) + half


def png(codes: np.ndarray, scale: Any) -> bytes:
    """(rows, columns) uint8 as a PNG whose 256 colours run through a scale."""
    stops: Scale = tuple((float(part), str(color)) for part, color in scale)
    palette = b"".join(bytes(rgb(at(stops, i / 255))) for i in range(256))
    image = Image.fromarray(codes, "P")
    image.putpalette(palette)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=9)
    return file.getvalue()


def _frame(figure: go.Figure, scales: dict[str, Axis], x: str, y: str) -> str:
    """Ticks, their lines and the titles of one subplot."""
    across, up = scales[x], scales[y]
    left, right, bottom = across.start, across.end, max(up.start, up.end)
    top = min(up.start, up.end)
    parts = []
    said = axis_layout(figure, y)
    if said.showticklabels is not False:
        for pixel, text in up.ticks():
            if said.showgrid is not False:
                parts.append(_line(left, pixel, right, pixel))
            parts.append(_text(left - 6, pixel + 4, text, "end"))
    if said.title.text:
        parts.append(_text(14, (top + bottom) / 2, said.title.text, "middle", turned=True))
    said = axis_layout(figure, x)
    if said.showticklabels is not False:
        for pixel, text in across.ticks():
            if said.showgrid is not False:
                parts.append(_line(pixel, top, pixel, bottom))
            parts.append(_text(pixel, bottom + 16, text, "middle"))
    if said.title.text:
        parts.append(_text((left + right) / 2, bottom + 36, said.title.text, "middle"))
    return "".join(parts) + _line(left, bottom, right, bottom)


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="currentColor" stroke-opacity=".16"/>'


def _text(x: float, y: float, text: str, anchor: str, turned: bool = False, color: str = "") -> str:
    """Plotly's texts are escaped already: taken back, then escaped as everything here is."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    ink = f' fill="{color}" font-weight="600"' if color else ' fill-opacity=".7"'
    body = safe(html.unescape(text))
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{ink}{turn}>{body}</text>'


def _note(note: Any, inner: Box) -> str:
    """A subplot's title, in its lane's colour, above its left edge."""
    x0, y0, x1, y1 = inner
    return _text(x0 + note.x * (x1 - x0), y1 - note.y * (y1 - y0) - 5, note.text, "start", color=note.font.color)


def _mark(shape: Any, scales: dict[str, Axis]) -> str:
    """A line from one value of an axis to another, at a height of its subplot."""
    across, (name, _) = scales[shape.xref], shape.yref.split()
    up, (x0, x1) = scales[name], across.place([shape.x0, shape.x1])
    y = up.start + shape.y0 * (up.end - up.start)
    color, width = shape.line.color, shape.line.width
    return f'<path d="M{x0:.1f} {y:.1f}L{x1:.1f} {y:.1f}" stroke="{color}" stroke-width="{width}"/>'


def _label_room(figure: go.Figure) -> float:
    """Pixels that the longest category on a y axis takes."""
    texts = [str(v) for t in figure.data for v in coordinates(t, "y") if isinstance(v, str)]
    return 24 + CHARACTER * max(map(len, texts), default=0)


def _legend(figure: go.Figure) -> list[tuple[int, float, str, str]]:
    """(line, x, name, colour) of every trace that is named to the reader."""
    if figure.layout.showlegend is False:
        return []
    shown = {t.name: t for t in reversed(figure.data) if t.name and t.showlegend is not False and t.type != "heatmap"}
    entries, line, x = [], 0, 0.0
    for name, trace in reversed(shown.items()):
        width = 26 + CHARACTER * len(html.unescape(name))
        if x and x + width > WIDTH - 90:
            line, x = line + 1, 0.0
        color = trace.line.color if trace.type == "scatter" and trace.line.color else trace.marker.color
        entries.append((line, x, name, color if isinstance(color, str) else color[0] if color else LANES[0]))
        x += width
    return entries if len(entries) > 1 else []


def _legend_entry(entry: tuple[int, float, str, str], left: float) -> str:
    line, x, name, color = entry
    y = 6 + LEGEND_LINE * line
    return f'<rect x="{left + x:.1f}" y="{y}" width="10" height="10" rx="3" fill="{color}"/>' + _text(
        left + x + 15, y + 9, name, "start"
    )


def _color_bar(told: Any, inner: Box) -> str:
    x, top, bottom = inner[2] + 12, inner[1], min(inner[3], inner[1] + 220)
    stops = "".join(f'<stop offset="{part:g}" stop-color="{color}"/>' for part, color in told.colorscale)
    bar = told.colorbar
    ends = (_end(told.cmax), _end(told.cmin)) if bar.ticktext is None else (bar.ticktext[-1], bar.ticktext[0])
    name = f"scale-{zlib.crc32(stops.encode()):08x}"  # ids are the whole page's
    return (
        f'<linearGradient id="{name}" x1="0" x2="0" y1="1" y2="0">{stops}</linearGradient>'
        f'<rect x="{x}" y="{top}" width="10" height="{bottom - top:.1f}" fill="url(#{name})" '
        'stroke="currentColor" stroke-opacity=".16"/>'
        + _text(x + 14, top + 9, ends[0], "start")
        + _text(x + 14, bottom, ends[1], "start")
        + _text(x + 26, (top + bottom) / 2, bar.title.text or "", "middle", turned=True)
    )


def _end(value: float) -> str:
    return significant(value, 2)
