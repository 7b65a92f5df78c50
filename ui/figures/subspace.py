"""Keys are only ever read through queries: how much of a key error lies where the queries look."""

import numpy as np
import plotly.graph_objects as go

from kvq_core.analysis.looks import cosines_at
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.base import bars_of, canvas, label_figure, label_of, lanes_with, line_of, of_lane, of_rows, round_values
from ui.html.colors import ACCENT, BERRY, BRONZE, INK, MOSS, REFERENCE

# The four subspaces of SQuat's Figure 2
KINDS = (
    ("all", "all tokens", BERRY, "dash"),
    ("prompt", "prompt only", ACCENT, "solid"),
    ("same_kind", "another prompt of its kind", MOSS, "dashdot"),
    ("other_kind", "another kind", BRONZE, "dot"),
)


def deviation(record: Record, arrays: Arrays, layer: int, rank: int) -> go.Figure | None:
    """Mean distance of normalized queries from the top-r subspace: the layer chosen, its KV heads averaged."""
    figure = canvas(300, yaxis={"title": {"text": "deviation of queries"}, "rangemode": "tozero"})
    drawn = False
    for kind, name, color, dash in KINDS:
        values = array(arrays, f"subspace/deviation_{kind}")
        if values is None:
            continue
        mean = values[layer].mean(0)
        figure.add_scatter(
            x=np.arange(mean.size),
            y=round_values(mean),
            mode="lines",
            name=name,
            line={"color": color, "width": 2, "dash": dash},
            hovertemplate="rank %{x}: %{y:.3f}<extra>" + name + "</extra>",
        )
        drawn = True
    _mark(figure, rank)
    figure.update_xaxes(title_text=f"rank r (layer {layer})")
    return label_figure(figure, "Curves: deviation of queries from the subspace, by rank") if drawn else None


def error_inside(record: Record, arrays: Arrays, layer: int, rank: int) -> go.Figure | None:
    """Share of each lane's squared key error inside the top-r query subspace, against r."""
    lanes = list(lanes_with(record, arrays, "key_error_energy"))
    if not lanes:
        return None
    figure = canvas(300, yaxis={"title": {"text": "key error inside, %"}, "range": [0, 102]})
    dim = lanes[0][2].shape[-1]
    figure.add_scatter(
        x=[0, dim],
        y=[0, 100],
        mode="lines",
        name="evenly spread",
        hoverinfo="skip",
        line={"color": INK, "width": 1, "dash": "dot"},
    )
    for index, lane, spread in lanes:
        inside = 100 * inside_share(spread[layer]).mean(0)
        figure.add_scatter(
            x=np.arange(inside.size),
            y=round_values(inside, 2),
            mode="lines",
            name=label_of(lane),
            meta=of_lane(index),
            line=line_of(record, index),
            hovertemplate="rank %{x}: %{y:.1f} %<extra>" + label_of(lane) + "</extra>",
        )
    _mark(figure, rank)
    figure.update_xaxes(title_text=f"rank r (layer {layer})")
    return label_figure(figure, "Curves: share of the squared key error inside the subspace, by rank, one a lane")


def error_split(record: Record, arrays: Arrays, rank: int) -> go.Figure | None:
    """Relative key error of each lane inside and outside the top-r subspace, over all layers and heads."""
    rows = split_errors(record, arrays, rank)
    if not rows:
        return None
    names = [label_of(record.lanes[i], 22) for i, _, _ in rows]
    figure = canvas(110 + 46 * len(rows), barmode="group", bargap=0.3)
    for at, (name, opacity) in enumerate(((f"inside the top {rank}", 1.0), ("outside", 0.35)), 1):
        figure.add_bar(
            y=names,
            x=[round(100 * row[at], 3) for row in rows],
            name=name,
            orientation="h",
            meta=of_rows([i for i, *_ in rows]),
            marker=bars_of(record, [i for i, *_ in rows]),
            opacity=opacity,
            hovertemplate="%{y}: %{x:.3g} %<extra>" + name + "</extra>",
        )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(title_text="‖ΔK‖ / ‖K‖, %")
    return label_figure(figure, f"Bars: key error inside and outside the top {rank} query directions, one pair a lane")


def split_errors(record: Record, arrays: Arrays, rank: int) -> list[tuple[int, float, float]]:
    """Per lane its index and the key error inside and outside the top-r query subspace, relative to each layer's keys,
    means over layers: at the rank of the scorecard's in-subspace error, inside is that number."""
    keys = array(arrays, "reference/key_channel_energy")
    if keys is None:
        return []
    whole, rows = np.maximum(keys.astype(np.float64).sum((1, 2)), 1e-30), []
    for index, _, spread in lanes_with(record, arrays, "key_error_energy"):
        energies = np.maximum(spread.astype(np.float64), 0).sum(1)  # (layers, directions)
        parts = (energies[:, :rank], energies[:, rank:])
        inside, outside = (float(np.sqrt(part.sum(-1) / whole).mean()) for part in parts)
        rows.append((index, inside, outside))
    return rows


def inside_share(spread: np.ndarray) -> np.ndarray:
    """(..., D) energies -> (..., D + 1) share inside the top-r directions, r = 0 .. D."""
    energies = np.maximum(spread.astype(np.float64), 0)
    total = np.maximum(energies.sum(-1, keepdims=True), 1e-30)
    held = np.cumsum(energies, -1) / total
    return np.concatenate([np.zeros_like(held[..., :1]), held], -1)


def angles(record: Record, arrays: Arrays, layer: int, kv_head: int, rank: int, pair: str) -> go.Figure | None:
    """Principal angles between two top-r subspaces of a head: of queries and keys, or of keys and a lane's keys."""
    own = _angles(record, arrays, layer, kv_head, rank, pair, None)
    rows = [] if own is None else [(-1, "Full precision", {"color": REFERENCE, "width": 2.4}, own)]
    for index, lane in enumerate(record.lanes):
        if (found := _angles(record, arrays, layer, kv_head, rank, pair, index)) is not None:
            rows.append((index, label_of(lane, 20), line_of(record, index, 1.4), found))
    if not rows:
        return None
    figure = canvas(300, yaxis={"title": {"text": "angle, degrees"}, "range": [0, 92], "dtick": 30})
    for index, name, style, line in rows:
        figure.add_scatter(
            x=np.arange(1, line.size + 1),
            y=round_values(line, 2),
            mode="lines+markers",
            name=name,
            meta=of_lane(index),
            line=style,
            marker={"size": 5},
            hovertemplate="angle %{x}: %{y:.1f}°<extra>" + name + "</extra>",
        )
    figure.update_xaxes(title_text=f"angle of the top {rank} (layer {layer}, KV head {kv_head})")
    return label_figure(figure, f"Curves: principal angles of the top-{rank} subspaces, one a lane")


def _angles(
    record: Record, arrays: Arrays, layer: int, kv_head: int, rank: int, pair: str, lane: int | None
) -> np.ndarray | None:
    """(rank,) degrees of the reference or of a lane: as the run kept them, or of a look at that layer; else None."""
    ranks = record.capture.angle_ranks
    kept = array(arrays, f"subspace/angles_{pair}" if lane is None else f"lane/{lane}/angles_{pair}")
    if kept is not None and rank in ranks:
        return kept[layer, kv_head, ranks.index(rank), :rank]
    cosines = cosines_at(record, layer, pair, lane)
    if cosines is None:
        return None
    found = np.linalg.svd(cosines[kv_head, :rank, :rank].astype(np.float64), compute_uv=False)
    return np.rad2deg(np.arccos(np.clip(found, 0, 1)))


def _mark(figure: go.Figure, rank: int) -> None:
    figure.add_vline(rank, line={"color": INK, "width": 1, "dash": "dot"})
