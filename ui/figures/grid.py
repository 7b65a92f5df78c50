"""Key formats against value formats, where a run's lanes are such a grid."""

import math

import numpy as np
import plotly.graph_objects as go

from kvq_core.analysis.grid import grid_of
from kvq_core.record.fields import LaneRecord, Record
from ui.figures.base import bar, canvas, label_figure, label_of
from ui.figures.text_differs import differs
from ui.html.colors import SEQUENTIAL
from ui.html.numbers import percent, significant


def format_grid(record: Record) -> go.Figure | None:
    """Mean KLD of every cell on one scale, a cell a lane."""
    grid = grid_of(record)
    if grid is None:
        return None
    klds = [[_kld(record, at) for at in row] for row in grid.cells]
    known = [kld for row in klds for kld in row if kld is not None and kld > 0]
    if not known:
        return None
    low, high = math.log10(min(known)), math.log10(max(known))
    figure = canvas(90 + 44 * len(grid.keys))
    figure.add_heatmap(
        x=[f"V {name}" for name in grid.values],
        y=[f"K {name}" for name in grid.keys],
        z=np.array([[math.nan if not kld else math.log10(kld) for kld in row] for row in klds], np.float32),
        text=[["" if kld is None else significant(kld, 2) for kld in row] for row in klds],
        texttemplate="%{text}",
        customdata=[[_told(record, at) for at in row] for row in grid.cells],
        hovertemplate="%{y}, %{x}: mean KLD %{text} nats<br>%{customdata}<extra></extra>",
        coloraxis="coloraxis",
        xgap=2,
        ygap=2,
    )
    ticks = sorted({math.floor(low), *range(math.ceil(low), math.floor(high) + 1)})
    axis = {"tickvals": ticks, "ticktext": [f"{10.0**tick:g}" for tick in ticks]}
    scale = {"colorscale": list(SEQUENTIAL), "cmin": low, "cmax": max(high, low + 0.1)}
    figure.update_layout(coloraxis={**scale, "colorbar": {**bar("nats"), **axis}})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False)
    return label_figure(figure, "Heatmap of mean KLD, key formats by value formats", opens=True, cells=grid.cells)


def _kld(record: Record, at: int | None) -> float | None:
    metrics = None if at is None else record.lanes[at].metrics
    return None if metrics is None else metrics.kld_mean


def _told(record: Record, at: int | None) -> str:
    if at is None:
        return ""
    lane: LaneRecord = record.lanes[at]
    assert lane.memory is not None and lane.metrics is not None
    declared = " (declared)" if lane.memory.declared else ""
    flips = "" if lane.metrics.flip_rate is None else f", flips {percent(lane.metrics.flip_rate, 1)}"
    width = f"{(lane.memory.key_bits + lane.memory.value_bits) / 2:.2f} bits an element{declared}{flips}"
    return f"{label_of(lane)}: {width}<br>{differs(record, at)}"
