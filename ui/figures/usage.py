"""How stored bits are spent beside the map: codes, latent channels, outliers, symmetric groups; and longer contexts."""

import numpy as np
import plotly.graph_objects as go

from kvq_core.analysis.context_growth import growths
from kvq_core.analysis.plans import shape_of
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.base import (
    canvas,
    color_of,
    label_figure,
    label_of,
    lane_rows,
    lanes_with,
    line_of,
    of_lane,
    round_values,
    sequential,
)
from ui.html.colors import NOISE

SHARES = {"symmetric": "symmetric groups, %", "outlier": "outliers, %"}
THIN = ", thin: with codebooks"
FULL = 16.0  # bits of an fp16 element
CONTEXTS = np.unique(np.round(np.logspace(2, 6, 49)).astype(int))


def code_usage(record: Record, arrays: Arrays, kind: str, layer: int, kv_head: int) -> go.Figure | None:
    """How often each code of a codebook is used in one head, most frequent first; what stays at 0 is dead."""
    lanes = list(lanes_with(record, arrays, f"{kind}_code_counts"))
    if not lanes:
        return None
    figure = canvas(320, yaxis={"title": {"text": "share of codes, %"}, "rangemode": "tozero"})
    for index, lane, counts in lanes:
        of_head = counts[layer, kv_head]
        shares = 100 * of_head / np.maximum(of_head.sum(-1, keepdims=True), 1)
        mean = np.sort(shares, -1)[:, ::-1].mean(0)
        figure.add_scatter(
            x=np.arange(1, mean.size + 1),
            y=round_values(mean, 3),
            mode="lines",
            name=label_of(lane),
            meta=of_lane(index),
            line=line_of(record, index, shape="hv"),
            hovertemplate="code of rank %{x}: %{y:.2g} %<extra>" + label_of(lane) + "</extra>",
        )
    figure.update_xaxes(title_text=f"code by use (layer {layer}, KV head {kv_head})")
    return label_figure(figure, f"Curves: how often each {kind} code is used, one a lane")


def dead_codes(arrays: Arrays, lane: int, kind: str) -> float | None:
    """Share of a lane's codes that nothing uses, over all heads and codebooks of the layers that have any."""
    counts = array(arrays, f"lane/{lane}/{kind}_code_counts")
    if counts is None or not counts.any():
        return None
    coded = counts[counts.any((1, 2, 3))]  # a layer that the lane leaves alone has no codes
    return float((coded == 0).mean())


def latent_bits(record: Record, arrays: Arrays, layer: int) -> go.Figure | None:
    """Code bits of every latent channel; 0 is a dropped one."""
    lanes = list(lanes_with(record, arrays, "key_latent_bits"))
    if not lanes:
        return None
    figure = canvas(320, yaxis={"title": {"text": "code bits"}, "rangemode": "tozero"})
    for index, lane, widths in lanes:
        line = widths[layer]
        figure.add_scatter(
            x=np.arange(1, line.size + 1),
            y=round_values(line, 2),
            mode="lines",
            name=label_of(lane),
            meta=of_lane(index),
            line=line_of(record, index, shape="hv"),
            hovertemplate="latent channel %{x}: %{y:.3g} bits<extra>" + label_of(lane) + "</extra>",
        )
    figure.update_xaxes(title_text=f"latent channel, strongest first (layer {layer})")
    return label_figure(figure, "Steps: code bits of every latent channel, one line a lane")


def shares(record: Record, arrays: Arrays, what: str, kind: str) -> go.Figure | None:
    """Share of outliers or of symmetric groups, layer x KV head, a lane below the other."""
    lanes = [(i, lane, 100 * v) for i, lane, v in lanes_with(record, arrays, f"{kind}_{what}_share")]
    if not lanes:
        return None
    height = max(120 // len(lanes), 13 * record.environment.kv_heads)  # the colour bar's unit needs 120 px
    figure = lane_rows(
        [label_of(lane) for _, lane, _ in lanes], height, [color_of(record, i) for i, *_ in lanes], gap=26
    )
    for row, (index, lane, values) in enumerate(lanes, 1):
        heat = go.Heatmap(
            z=round_values(values.T, 3),
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            name=label_of(lane),
            meta=of_lane(index),
            hovertemplate="layer %{x}, KV head %{y}: %{z:.2g} %<extra>" + label_of(lane) + "</extra>",
        )
        figure.add_trace(heat, row, 1)
        figure.update_yaxes(title_text="head" if row == 1 else "", autorange="reversed", showgrid=False, row=row, col=1)
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="layer", row=len(lanes), col=1)
    top = max(float(values.max()) for *_, values in lanes)
    figure.update_layout(coloraxis=sequential(top, SHARES[what]))
    return label_figure(figure, f"Heatmaps: share of {SHARES[what]}, one a lane", {"layer": "x", "kv_head": "y"})


def bits_by_length(record: Record) -> go.Figure | None:
    """Effective bits of keys and values against context length; thin with model-wide codebooks counted."""
    found = {index: growth for index, growth in growths(record).items() if growth is not None}
    shape, contexts = shape_of(record), CONTEXTS.tolist()
    figure = canvas(320, xaxis={"type": "log"}, yaxis={"title": {"text": "bits an element"}, "range": [0, FULL + 0.6]})
    drawn, shared_too = False, any(growth.shared_bytes for growth in found.values())
    for index, growth in found.items():
        own = [(n, bits) for n in contexts if (bits := growth.mean_bits(shape, n)) is not None]
        for shared in (False, True) if growth.shared_bytes else (False,):
            line = [bits + (growth.shared_bits(shape, n) if shared else 0.0) for n, bits in own]
            name = label_of(record.lanes[index]) + (", codebooks counted" if shared else "")
            figure.add_scatter(
                x=np.array([n for n, _ in own]),
                y=round_values(np.asarray(line), 3),
                mode="lines",
                name=name,
                showlegend=not shared,
                meta=of_lane(index),
                line=line_of(record, index, 1.0 if shared else 2.0),
                hovertemplate="%{x:,} tokens: %{y:.2f} bits<extra>" + name + "</extra>",
            )
            drawn = True
    if not drawn or (stored := record.lanes[min(found)].memory) is None:
        return None
    figure.add_vline(stored.tokens, line={"color": NOISE, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text=f"tokens (dotted: this run{THIN if shared_too else ''})")
    return label_figure(figure, "Curves: effective bits against context length, one a lane")
