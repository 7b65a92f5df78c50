"""One layer and head in depth: attention rows at a token, channels, the sinks, error against context depth."""

import numpy as np
import plotly.graph_objects as go

from kvq_core.analysis.looks import attention_shares, captured_indices
from kvq_core.analysis.reached import key_counts, positions_read
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.base import (
    canvas,
    decade_scale,
    diverging,
    label_figure,
    label_of,
    lanes_with,
    line_of,
    of_lane,
    of_rows,
    round_values,
    sequential,
    symbols_of,
)
from ui.figures.damage import FRAME, ROW, rows_beside
from ui.figures.steps import sink_steps

FLOOR = 1e-3  # percent: attention is drawn on a log scale from here
DEPTHS = {
    "relative": (
        ("depth_key_error", 100, "relative key error, %"),
        ("depth_value_error", 100, "relative value error, %"),
    ),
    "score": (("depth_score_error", 1, "mean |Δ score|"),),
}


def attention_rows(record: Record, arrays: Arrays, layer: int, head: int, step: int) -> go.Figure | None:
    """Attention of one head at a step: the reference's row and every lane's, mass in each bin of positions; None of a
    step that was not looked at."""
    steps, place = record.capture.attention_steps, captured_indices(record, layer, head)
    at = steps.index(step) if step in steps else None
    rows = [(-1, "Full precision", "reference/attention_rows")]
    rows += [
        (i, label_of(lane, 20), f"lane/{i}/attention_rows")
        for i, lane in enumerate(record.lanes)
        if lane.status == "done"
    ]
    held = [(index, name, arrays[key]) for index, name, key in rows if key in arrays]
    if at is None or place is None or len(held) < 2:
        return None
    edges = np.asarray(record.capture.position_edges)
    there = edges[:-1] < key_counts(record, [record.capture.attention_steps[at] + 1])  # nobody reads what is to come
    mass = [100 * attention_shares(codes[at, place[0], place[1]])[there] for *_, codes in held]
    figure = canvas(FRAME + rows_beside(len(held) - 1)[1] * len(held))
    figure.add_heatmap(
        x=round_values(((edges[:-1] + edges[1:] - 1) / 2)[there], 1),
        y=[name for _, name, _ in held],
        z=round_values(np.log10(np.maximum(np.stack(mass), FLOOR)), 2),
        customdata=[[float(f"{share:.2g}") for share in row] for row in mass],
        coloraxis="coloraxis",
        ygap=3,
        name="attention",
        meta=of_rows([index for index, *_ in held]),
        hovertemplate="position %{x:.0f}: %{customdata} %<extra>%{y}</extra>",
    )
    info = record.capture
    where = f"layer {info.layers[place[0]]}, head {info.heads[place[1]]}, step {info.attention_steps[at]}"
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(title_text=f"key position ({where})", showgrid=False)
    figure.update_layout(coloraxis=decade_scale("attention, %", FLOOR, 100))
    said = f"Heatmap: attention over key positions, {where}, the reference and a row a lane"
    return label_figure(figure, said, {"key": "x"}, words={"x": "position"})


def channel_shares(record: Record, arrays: Arrays, kind: str, layer: int, kv_head: int) -> list[tuple[int, np.ndarray]]:
    """Per lane (channels,) share of the squared error of one head, in percent."""
    found = []
    for index, _, energy in lanes_with(record, arrays, f"{kind}_channel_error"):
        of_head = energy[layer, kv_head].astype(np.float64)
        if of_head.sum() > 0:
            found.append((index, 100 * of_head / of_head.sum()))
    return found


def channel_errors(record: Record, arrays: Arrays, kind: str, layer: int, kv_head: int) -> go.Figure | None:
    """Share of the squared error that each channel of a head carries, a row a lane; on top what the channel holds."""
    lanes = channel_shares(record, arrays, kind, layer, kv_head)
    if not lanes:
        return None
    indices = [i for i, _ in lanes]
    names = [label_of(record.lanes[i], 20) for i, _ in lanes]
    rows = [share for _, share in lanes]
    held = array(arrays, f"reference/{kind}_channel_energy")
    if held is not None:
        energy = held[layer, kv_head].astype(np.float64)
        indices = [-1, *indices]
        names, rows = ["energy held", *names], [100 * energy / max(energy.sum(), 1e-30), *rows]
    figure = canvas(FRAME + ROW * len(rows))
    figure.add_heatmap(
        z=round_values(np.stack(rows), 3),
        y=names,
        coloraxis="coloraxis",
        ygap=3,
        name=f"{kind}s",
        meta=of_rows(indices),
        hovertemplate="channel %{x}: %{z:.2g} %<extra>%{y}</extra>",
    )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(title_text=f"channel (layer {layer}, KV head {kv_head})", showgrid=False)
    figure.update_layout(coloraxis=sequential(float(np.stack(rows).max()), "share, %"))
    said = f"Heatmap: share of the squared {kind} error of each channel, one row a lane"
    return label_figure(figure, said, {"channel": "x"})


def sink_change(record: Record, arrays: Arrays) -> go.Figure | None:
    """Change of the attention on the first tokens, by layer: mean over heads and steps, a row a lane."""
    lanes = [(i, lane, 100 * change.mean((0, 2))) for i, lane, change in lanes_with(record, arrays, "sink_mass")]
    if not lanes:
        return None
    rows = np.stack([change for *_, change in lanes])
    figure = canvas(FRAME + rows_beside(len(lanes))[1] * len(lanes))
    figure.add_heatmap(
        z=round_values(rows, 3),
        y=[label_of(lane, 20) for _, lane, _ in lanes],
        coloraxis="coloraxis",
        xgap=1,
        ygap=3,
        name="sink mass change",
        meta={**of_rows([i for i, *_ in lanes]), **sink_steps(record, arrays, [i for i, *_ in lanes])},
        hovertemplate="layer %{x}: %{z:+.2f} points<extra>%{y}</extra>",
    )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(title_text="layer", showgrid=False)
    figure.update_layout(coloraxis=diverging(float(np.abs(rows).max()), "% points"))
    return label_figure(
        figure, "Heatmap: change of attention on the sink tokens by layer, one row a lane", {"layer": "x"}
    )


def depth_error(record: Record, arrays: Arrays, measure: str) -> go.Figure | None:
    """Error in each bucket of key position, mean over layers and heads: does it grow with depth?"""
    if len(record.capture.depth_edges) < 2:
        return None
    edges = np.asarray(positions_read(record, record.capture.depth_edges), dtype=np.float64)
    centres = (edges[:-1] + edges[1:] - 1) / 2
    kinds = DEPTHS.get(measure, DEPTHS["relative"])
    figure = canvas(330, yaxis={"title": {"text": kinds[0][2].replace("key error", "error")}, "rangemode": "tozero"})
    drawn = False
    for (name, factor, what), dash in zip(kinds, ("solid", "dash"), strict=False):
        for index, lane, values in lanes_with(record, arrays, name):
            figure.add_scatter(
                x=centres,
                y=round_values(factor * values[..., : len(centres)].mean((0, 1))),
                mode="lines+markers",
                legendgroup=str(index),
                name=label_of(lane, 20),
                showlegend=dash == "solid",
                meta=of_lane(index),
                line=line_of(record, index, 1.8, dash=dash),
                marker=symbols_of(record, index, 5),
                hovertemplate=f"position %{{x:.0f}}: %{{y:.3g}}<extra>{label_of(lane)}, {what}</extra>",
            )
            drawn = True
    figure.update_xaxes(title_text="key position" + (" (keys solid, values dashed)" if len(kinds) > 1 else ""))
    return label_figure(figure, "Curves: error against the depth of the context, one a lane") if drawn else None
