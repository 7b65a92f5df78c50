"""Where attention scores moved: layer x head for every lane, and step x position for one head."""

import numpy as np
import plotly.graph_objects as go

from kvq_core.record import Record
from ui.colors import lane_color
from ui.figures.base import Arrays, array, diverging, label_of, lanes_with, rounded, sequential, stacked_rows


def damage_overview(record: Record, arrays: Arrays) -> go.Figure | None:
    """Mean |score delta| of every layer and query head, a lane below the other, on one scale."""
    lanes = [(i, lane, d.mean(-1)) for i, lane, d in lanes_with(record, arrays, "delta_mean")]
    if not lanes:
        return None
    figure = stacked_rows([label_of(lane) for _, lane, _ in lanes], 86, [lane_color(i) for i, _, _ in lanes])
    for row, (_, lane, mean) in enumerate(lanes, 1):
        heat = go.Heatmap(
            z=rounded(mean.T), coloraxis="coloraxis", xgap=1, ygap=1, name=label_of(lane),
            hovertemplate="layer %{x}, head %{y}<br>mean |Δ| %{z:.3f}<extra>" + label_of(lane) + "</extra>",
        )  # fmt: skip
        figure.add_trace(heat, row, 1)
        figure.update_yaxes(title_text="head", autorange="reversed", showgrid=False, row=row, col=1)
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="layer", row=len(lanes), col=1)
    top = max(float(np.quantile(mean, 0.995)) for *_, mean in lanes)
    figure.update_layout(coloraxis=sequential(top, "mean |Δ score|"))
    return figure


def worst_head(record: Record, arrays: Arrays) -> tuple[int, int]:
    """Layer and query head with the largest mean delta of any lane; (0, 0) where nothing was captured."""
    best, place = -1.0, (0, 0)
    for _, _, delta in lanes_with(record, arrays, "delta_mean"):
        mean = delta.mean(-1)
        if mean.max() > best:
            best = float(mean.max())
            place = tuple(map(int, np.unravel_index(mean.argmax(), mean.shape)))
    return place[0], place[1]


def score_map(record: Record, arrays: Arrays, layer: int, head: int) -> go.Figure | None:
    """Signed score deltas of one head, step x position, every lane on one diverging scale."""
    info = record.capture
    if not info.layers or not info.heads or head not in info.heads:
        return None
    kept = min(info.layers, key=lambda m: abs(m - layer))
    m, q = info.layers.index(kept), info.heads.index(head)
    lanes = [
        (i, lane, _delta(arrays, i, m, q))
        for i, lane in enumerate(record.lanes)
        if lane.status == "done" and f"lane/{i}/delta_map" in arrays
    ]
    if not lanes:
        return None
    figure = stacked_rows([label_of(lane) for _, lane, _ in lanes], 104, [lane_color(i) for i, _, _ in lanes])
    for row, (_, lane, delta) in enumerate(lanes, 1):
        heat = go.Heatmap(
            z=rounded(delta, 3), x=_centres(info.position_edges), y=_centres(info.step_edges), coloraxis="coloraxis",
            hovertemplate="step %{y:.0f}, position %{x:.0f}<br>Δ %{z:+.3f}<extra>" + label_of(lane) + "</extra>",
        )  # fmt: skip
        figure.add_trace(heat, row, 1)
        figure.update_yaxes(title_text="step", autorange="reversed", showgrid=False, row=row, col=1)
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text=f"key position (layer {kept}, query head {head})", row=len(lanes), col=1)
    top = max(float(np.quantile(np.abs(delta), 0.999)) for *_, delta in lanes)
    figure.update_layout(coloraxis=diverging(top, "Δ q·k/√d"))
    return figure


def _delta(arrays: Arrays, lane: int, m: int, q: int) -> np.ndarray:
    """(steps, positions) in score units; one head is cut out before it is widened from int8."""
    codes = np.asarray(arrays[f"lane/{lane}/delta_map"][m, q], dtype=np.float32)
    scale = array(arrays, f"lane/{lane}/delta_scale")
    return codes * (1.0 if scale is None else float(scale[m, q]))


def _centres(edges: list[int]) -> np.ndarray:
    points = np.asarray(edges, dtype=np.float32)
    return (points[:-1] + points[1:] - 1) / 2
