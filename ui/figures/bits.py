"""What is stored: bits of every element, and bytes by what they are for."""

from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from kvq_core.analysis.plans import shape_of
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.record.memory import FULL_PRECISION, Memory
from ui.figures.base import (
    bars_of,
    canvas,
    color_of,
    cursor,
    label_figure,
    label_of,
    lane_rows,
    lanes_with,
    of_lane,
    of_rows,
    pool_bins,
    round_values,
    sequential,
)
from ui.html.colors import NOISE, with_alpha

Axis = Literal["layers", "heads", "channels"]
MAX_BINS = 256
OVER = {"axis": "x", "of": "position"}  # what is marked in the figure, see js/along.js
# Parts of the store by what they are for, from the strongest to the faintest shade of the lane's colour.
GROUPS = (
    ("codes", 1.0, ("codes",)),
    ("scales, zeros, other metadata", 0.6, ()),
    ("full precision", 0.25, FULL_PRECISION),
)


def bit_map(record: Record, arrays: Arrays, kind: Literal["key", "value"], axis: Axis, token: int) -> go.Figure | None:
    """Stored bits of every token x layer, KV head or channel, a lane below the other, on one scale; a line at a token
    of the answer."""
    lanes = [(i, lane, _plane(b, axis, record)) for i, lane, b in lanes_with(record, arrays, f"{kind}_bits")]
    if not lanes:
        return None
    flat = all(plane.shape[0] == 1 for *_, plane in lanes)
    figure = lane_rows(
        [label_of(lane) for _, lane, _ in lanes], 26 if flat else 80, [color_of(record, i) for i, _, _ in lanes]
    )
    for row, (index, lane, plane) in enumerate(lanes, 1):
        heat = _heat(plane, axis, label_of(lane), of_lane(index))
        figure.add_trace(heat, row, 1)
        single = len(heat.z) == 1
        figure.update_yaxes(
            title_text="" if single else axis[:-1],
            showticklabels=not single,
            showgrid=False,
            autorange="reversed",
            row=row,
            col=1,
        )
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="token of the cache: prompt, then answer", row=len(lanes), col=1)
    figure.update_layout(coloraxis=sequential(16.0, "bits"))
    cursor(figure, len(record.reference.prompt_token_ids) + token, len(lanes))
    return label_figure(
        figure,
        f"Heatmaps: stored bits of {kind}s, {axis} by token, one a lane",
        {"position": "x"},
        span=OVER,
        words={"x": "position"},
    )


def _heat(plane: np.ndarray, axis: Axis, label: str, lane: dict[str, Any]) -> go.Heatmap:
    """One lane's tokens, pooled to as many columns as are told apart."""
    values, starts = pool_bins(plane, MAX_BINS, axis=1)
    single = values.shape[0] == 1
    rows = {} if single else {"layers": {"layer": "y"}, "heads": {"kv_head": "y"}}.get(axis, {})
    told = "" if single else f", {axis[:-1]} %{{y}}"
    return go.Heatmap(
        z=round_values(values, 2),
        x=starts,
        coloraxis="coloraxis",
        meta={"pick": {"position": "x", **rows}, **lane},
        hovertemplate=f"token %{{x}}{told}<br>%{{z:.2f}} bits<extra>{label}</extra>",
    )


def _plane(bits: np.ndarray, axis: Axis, record: Record) -> np.ndarray:
    """(L or 1, H or 1, T, C) -> (layers, KV heads or channels, T); one row where the bits do not depend on it. NaN
    where no layer holds the token any more, which counts in no mean."""
    over = {"layers": (1, 3), "heads": (0, 3), "channels": (0, 1)}[axis]
    held = _held(record, bits.shape[2])[:, None, :, None]
    if held.all():
        own = bits.mean(over)
    else:
        each, at = np.broadcast_arrays(bits.astype(np.float32), held)
        with np.errstate(invalid="ignore"):
            own = (each * at).sum(over) / at.sum(over)
    return own.T if axis == "channels" else own


def _held(record: Record, tokens: int) -> np.ndarray:
    """(layers, tokens) bool: what each layer's window has not left behind."""
    kept = np.array([kind.tokens(tokens) for kind in shape_of(record).kinds])
    return np.arange(tokens) >= tokens - kept[:, None]


def stored_bytes(record: Record) -> go.Figure:
    """Stored bytes of each lane by what they are for, keys and values apart, with the fp16 cache for scale."""
    lanes = [(i, lane, lane.memory) for i, lane in enumerate(record.lanes) if lane.memory is not None]
    figure = canvas(120 + 62 * (len(lanes) + 1), barmode="stack", bargap=0.25)
    names = [label_of(lane, 22) for _, lane, _ in lanes]
    rows = [[name, name] for name in names], ["K", "V"]
    axis = [[name for pair in rows[0] for name in pair], rows[1] * len(names)]
    for title, opacity, _ in GROUPS:
        sizes = [
            _needed(record, memory) * by_group(memory.bytes_by_part, kind).get(title, 0)
            for *_, memory in lanes
            for kind in ("key", "value")
        ]
        if any(sizes):
            figure.add_bar(
                y=axis,
                x=[round(s / 1e6, 4) for s in sizes],
                name=title,
                orientation="h",
                meta=of_rows([i for i, *_ in lanes for _ in range(2)]),
                marker=bars_of(record, [i for i, *_ in lanes for _ in range(2)], opacity),
                hovertemplate="%{x:.3g} MB<extra>" + title + "</extra>",
            )
    memories = [memory for *_, memory in lanes]
    if any(map(_as_they_are, memories)):
        _add_left_alone(figure, axis, memories, of_rows([i for i, *_ in lanes for _ in range(2)]))
    if memories:
        _add_fp16(figure, max(_fp16_bytes(record, memory) for memory in memories))
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(title_text="stored, MB")
    return label_figure(figure, "Stacked bars: stored megabytes of keys and values, one pair a lane")


def _add_left_alone(
    figure: go.Figure, axis: list[list[str]], memories: list[Memory], rows: dict[str, list[int]]
) -> None:
    """Windows and states, of which it is not said what is of keys and what of values."""
    figure.add_bar(
        y=axis,
        x=[round(_as_they_are(memory) / 2e6, 4) for memory in memories for _ in range(2)],
        name="windows and states as they are, half on each",
        orientation="h",
        meta=rows,
        marker={"color": with_alpha(NOISE, 0.25)},
        hovertemplate="%{x:.3g} MB<extra>half of windows and states</extra>",
    )


def _add_fp16(figure: go.Figure, size: float) -> None:
    figure.add_bar(
        y=[["FP16 cache"] * 2, ["K", "V"]],
        x=[round(size / 2e6, 4)] * 2,
        orientation="h",
        name="fp16",
        showlegend=False,
        marker={"color": with_alpha(NOISE, 0.5)},
        hovertemplate="%{x:.3g} MB<extra>fp16</extra>",
    )


def by_group(parts: dict[str, int], kind: str) -> dict[str, int]:
    """Bytes of keys or of values by group."""
    sums: dict[str, int] = {}
    for name, size in parts.items():
        if name.startswith(f"{kind}_"):
            group = group_of(name.removeprefix(f"{kind}_"))
            sums[group] = sums.get(group, 0) + size
    return sums


def group_of(part: str) -> str:
    """The group of a part; whatever a method stores beside codes and full-precision tokens is metadata."""
    for title, _, parts in GROUPS:
        if part in parts:
            return title
    return GROUPS[1][0]


def _as_they_are(memory: Memory) -> int:
    """Bytes of windows and states that a lane leaves alone."""
    return memory.window_bytes + memory.state_bytes


def _needed(record: Record, memory: Memory) -> float:
    """The share of what a lane stores that a cache needs, which drops what a window has left behind; 1 without
    windows."""
    stored = memory.stored_bytes
    if memory.whole_ratio is None or not stored:
        return 1.0
    return (memory.whole_ratio * _fp16_bytes(record, memory) - _as_they_are(memory)) / stored


def _fp16_bytes(record: Record, memory: Memory) -> float:
    """Of all that the model keeps of the tokens."""
    if memory.whole_ratio is not None:
        return shape_of(record).fp16_bytes(memory.tokens)
    return memory.stored_bytes / memory.kv_ratio if memory.kv_ratio else 0.0
