"""Where a cache hurts: layer x KV head for every lane, and one head step by step."""

from typing import Literal

import numpy as np
import plotly.graph_objects as go

from kvq_core.analysis.key_constants import constant_layers
from kvq_core.analysis.looks import captured_indices
from kvq_core.analysis.reached import key_counts, positions_read, step_edges
from kvq_core.analysis.worst import PURE_SINK
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record
from ui.figures.base import (
    as_int8,
    color_of,
    cursor,
    diverging,
    label_figure,
    label_of,
    lane_rows,
    lanes_with,
    of_lane,
    round_values,
    sequential,
)
from ui.figures.steps import by_steps
from ui.html.colors import ACCENT, MARK

Kind = Literal["key", "value"]
ROW, FRAME = 26, 92  # px of a lane's row in a heatmap of lanes, and of what is around its rows
MAP_ROW, MAP_GAP, MAP_FRAME = 84, 26, 80  # px of a lane's row in the score map, between two, and around them
HEADING = 66  # px of what stands above the second of two figures in one column
OVER = {"axis": "y", "of": "step"}  # what is marked in the score map, see js/along.js
CONSTANT = "constant"  # what lines are called below layers whose keys carry one
BELOW = 3  # px between a row and that line
# measure -> (array, unit, factor to the unit, what it is): those of keys and values apart, those of both together
MEASURES: dict[str, dict[str, tuple[str, str, float, str]]] = {
    "relative": {
        "key": ("key_error", "‖ΔK‖/‖K‖, %", 100, "relative key error"),
        "value": ("value_error", "‖ΔV‖/‖V‖, %", 100, "relative value error"),
    },
    "score": {"key": ("delta_mean", "mean |Δ score|", 1, "mean score error, centred per row")},
    "attention": {"key": ("attention_kl", "KL, nats", 1, "KL of the attention, lane against reference")},
    "output": {"value": ("output_relative", "‖ΔO‖/‖O‖, %", 100, "relative error of the attention output")},
}


def grid_values(record: Record, arrays: Arrays, measure: str, kind: Kind) -> list[tuple[int, np.ndarray]]:
    """Per lane (layers, KV heads) in the measure's unit; query heads that share a KV head are averaged."""
    if kind not in MEASURES[measure]:
        return []
    name, _, factor, _ = MEASURES[measure][kind]
    found = []
    for index, _, values in lanes_with(record, arrays, name):
        mean = values.mean(-1) if name == "delta_mean" else values.mean(0) if values.ndim == 3 else values
        layers, heads = mean.shape[0], record.environment.kv_heads
        found.append((index, factor * mean.reshape(layers, heads, -1).mean(-1)))
    return found


def damage_grid(record: Record, arrays: Arrays, measure: str, kind: Kind, layer: int, kv_head: int) -> go.Figure | None:
    """Layer x KV head, a lane below the other, on one scale; a click selects the cell."""
    lanes = grid_values(record, arrays, measure, kind)
    if not lanes:
        return None
    _, unit, _, what = MEASURES[measure][kind]
    names = [label_of(record.lanes[i]) for i, _ in lanes]
    heads = record.environment.kv_heads
    high = max(34, 13 * min(heads, 16))
    figure = lane_rows(names, high, [color_of(record, i) for i, _ in lanes], gap=26)
    for row, (name, (index, values)) in enumerate(zip(names, lanes, strict=True), 1):
        heat = go.Heatmap(
            z=round_values(values.T),
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            name=name,
            meta={**of_lane(index), **by_steps(record, arrays, measure, index, len(lanes))},
            hovertemplate=f"layer %{{x}}, KV head %{{y}}<br>%{{z:.3g}} {unit.rpartition(', ')[2]}<extra>{name}</extra>",
        )
        figure.add_trace(heat, row, 1)
        figure.update_yaxes(
            title_text="head" if row == 1 else "",
            autorange="reversed",
            showgrid=False,
            dtick=max(1, heads // 4),
            row=row,
            col=1,
        )
        if kind == "key":
            _underline_constants(figure, arrays, row, -BELOW / high)
        box = {"x0": layer - 0.5, "x1": layer + 0.5, "y0": kv_head - 0.5, "y1": kv_head + 0.5}
        figure.add_shape(type="rect", **box, line={"color": ACCENT, "width": 2}, row=row, col=1)
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="layer", row=len(lanes), col=1)
    top = max(float(np.quantile(values, 0.995)) for _, values in lanes)
    figure.update_layout(coloraxis=sequential(top, unit))
    return label_figure(figure, f"Heatmaps of the {what}, layer by KV head, one a lane", {"layer": "x", "kv_head": "y"})


def _underline_constants(figure: go.Figure, arrays: Arrays, row: int, y: float) -> None:
    """A line below every layer whose keys carry a constant; what it means is in the view's words."""
    number = "" if row == 1 else str(row)
    for layer in constant_layers(arrays):
        figure.add_shape(
            type="line",
            name=CONSTANT,
            x0=layer - 0.4,
            x1=layer + 0.4,
            y0=y,
            y1=y,
            xref=f"x{number}",
            yref=f"y{number} domain",
            line={"color": MARK, "width": 3},
        )


def worst_head(record: Record, arrays: Arrays) -> tuple[int, int]:
    """Layer and query head with the largest mean delta of any lane; (0, 0) where nothing was captured."""
    best, place = -1.0, (0, 0)
    for _, _, delta in lanes_with(record, arrays, "delta_mean"):
        mean = delta.mean(-1)
        if mean.max() > best:
            best = float(mean.max())
            layer, head = np.unravel_index(mean.argmax(), mean.shape)
            place = int(layer), int(head)
    return place


def clearest_head(record: Record, arrays: Arrays) -> tuple[int, int]:
    """Layer and query head where the run's damage is best seen: of those whose maps were kept, the one whose attention
    changed most in any lane, its scores where attention was not looked at. A head that reads little but the first
    tokens shows nothing, whatever its scores do. (0, 0) where nothing was captured.
    """
    for name, steps in (("attention_kl", 0), ("delta_mean", -1)):
        lanes = [values.mean(steps) for _, _, values in lanes_with(record, arrays, name)]
        if lanes:
            break
    else:
        return 0, 0
    damage = np.max(lanes, axis=0)
    seen = np.zeros(damage.shape, bool)
    kept = (record.capture.layers or range(damage.shape[0]), record.capture.heads or range(damage.shape[1]))
    seen[np.ix_(*map(list, kept))] = True
    sinks = array(arrays, "reference/sink_mass")
    if sinks is not None and sinks.size:
        reads = sinks.mean(0) < PURE_SINK
        seen = seen & reads if (seen & reads).any() else seen
    layer, head = np.unravel_index(np.where(seen, damage, -1).argmax(), damage.shape)
    return int(layer), int(head)


def rows_beside(lanes: int) -> tuple[int, int]:
    """Heights in px of a lane's row in the score map, and in each of the two heatmaps of lanes that stand one above the
    other beside it, the first with the reference's row too: both columns end together, whatever the number of lanes."""
    rows, frames = 2 * lanes + 1, 2 * FRAME + HEADING
    gaps = MAP_FRAME + MAP_GAP * (lanes - 1)
    high = max(MAP_ROW, round((frames + ROW * rows - gaps) / lanes))
    return high, max(ROW, round((gaps + high * lanes - frames) / rows))


def score_map(
    record: Record, arrays: Arrays, layer: int, head: int, step: int = 0, centred: bool = True
) -> go.Figure | None:
    """Signed score deltas of one head, step x position, every lane on one diverging scale."""
    place = captured_indices(record, layer, head)
    if place is None:
        return None
    lanes = _deltas(record, arrays, place, centred)
    if not lanes:
        return None
    info, (steps, positions) = record.capture, _edges(record)
    top = max(float(np.nanquantile(np.abs(delta), 0.999)) for *_, delta in lanes)
    titles, colors = [label_of(lane) for _, lane, _ in lanes], [color_of(record, index) for index, _, _ in lanes]
    figure = lane_rows(titles, rows_beside(len(lanes))[0], colors, gap=MAP_GAP)
    for row, (index, lane, delta) in enumerate(lanes, 1):
        heat = go.Heatmap(
            z=as_int8(delta, top),
            x=_centres(positions),
            y=_centres(steps),
            coloraxis="coloraxis",
            name=label_of(lane),
            meta=of_lane(index),
            hovertemplate="step %{y:.0f}, position %{x:.0f}<br>Δ %{z:+.2g}<extra>" + label_of(lane) + "</extra>",
        )
        figure.add_trace(heat, row, 1)
        figure.update_yaxes(title_text="step" if row == 1 else "", autorange="reversed", showgrid=False, row=row, col=1)
    figure.update_xaxes(showgrid=False)
    where = f"key position (layer {info.layers[place[0]]}, query head {info.heads[place[1]]})"
    figure.update_xaxes(title_text=where, row=len(lanes), col=1)
    figure.update_layout(coloraxis=diverging(top, "Δ score" + ("" if centred else ", uncentred")))
    cursor(figure, step, len(lanes), axis="y")
    return label_figure(
        figure,
        "Heatmaps of signed score deltas, step by key position, one a lane",
        {"step": "y", "key": "x"},
        scale=top / 127,
        span=OVER,
        words={"x": "position", "y": "step"},
    )


def _deltas(
    record: Record, arrays: Arrays, place: tuple[int, int], centred: bool
) -> list[tuple[int, LaneRecord, np.ndarray]]:
    """Of every lane that has them."""
    return [
        (i, lane, _delta(record, arrays, i, *place, centred))
        for i, lane in enumerate(record.lanes)
        if lane.status == "done" and f"lane/{i}/delta_map" in arrays
        if centred or f"lane/{i}/delta_offset" in arrays
    ]


def _delta(record: Record, arrays: Arrays, lane: int, m: int, q: int, centred: bool) -> np.ndarray:
    """(steps, positions) in score units, NaN at positions a step cannot see yet; one head is cut out before it is
    widened from int8."""
    steps, positions = _edges(record)
    held = arrays[f"lane/{lane}/delta_map"][m, q, : len(steps) - 1, : len(positions) - 1]
    codes = np.asarray(held, dtype=np.float32)
    scale = array(arrays, f"lane/{lane}/delta_scale")
    delta = codes * (1.0 if scale is None else float(scale[m, q]))
    info = record.capture
    reached = np.asarray(positions[:-1])[None, :] < key_counts(record, steps[1:])[:, None]
    delta = np.where(reached, delta, np.nan)
    offset = array(arrays, f"lane/{lane}/delta_offset")
    if centred or offset is None:
        return delta
    of_steps = offset[info.layers[m], info.heads[q]]
    edges = np.minimum(steps[:-1], max(0, of_steps.size - 1))
    widths = np.maximum(1, np.diff([*edges, of_steps.size]))
    return delta + (np.add.reduceat(of_steps, edges) / widths)[:, None]


def _edges(record: Record) -> tuple[list[int], list[int]]:
    """Edges of the map's bins of steps and of positions, as far as the answer came."""
    return step_edges(record), positions_read(record, record.capture.position_edges)


def _centres(edges: list[int]) -> np.ndarray:
    points = np.asarray(edges, dtype=np.float32)
    return (points[:-1] + points[1:] - 1) / 2
