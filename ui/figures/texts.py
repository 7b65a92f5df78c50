"""The followed text position by position: KLD of every lane, its flips, and those near a tie."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record
from ui.figures.base import (
    color_of,
    cursor,
    label_figure,
    label_of,
    lane_rows,
    lanes_with,
    of_lane,
    round_values,
)
from ui.html.colors import with_alpha

HEADROOM = 1.2  # of the scale over the highest bar
FLIPS_AT = 0.9  # of the scale
OVER = {"axis": "x", "of": "token"}  # what is marked in the figure, see js/along.js


def kld_strips(record: Record, arrays: Arrays, token: int) -> go.Figure | None:
    """KLD of every scored token, a lane below the other on one scale; flips as dots, hollow where the reference itself
    was near a tie."""
    lanes = list(lanes_with(record, arrays, "kld"))
    if not lanes:
        return None
    margin = array(arrays, "reference/margin")
    figure = lane_rows([label_of(lane) for _, lane, _ in lanes], 52, [color_of(record, i) for i, *_ in lanes], gap=26)
    top = max(float(kld.max()) for *_, kld in lanes) or 1.0
    for row, (index, lane, kld) in enumerate(lanes, 1):
        tokens = np.arange(1, kld.size + 1)
        figure.add_bar(
            x=tokens,
            y=round_values(kld),
            name=label_of(lane),
            meta=of_lane(index),
            marker={"color": with_alpha(color_of(record, index), 0.75)},
            hovertemplate="token %{x}: %{y:.3g} nats<extra>" + label_of(lane) + "</extra>",
            row=row,
            col=1,
        )
        for name, at, fill in flips(lane, arrays, index, margin):
            dots = _dots(tokens[at], FLIPS_AT * HEADROOM * top, label_of(lane), name, color_of(record, index), fill)
            figure.add_scatter(**dots, meta=of_lane(index), row=row, col=1)
        figure.update_yaxes(range=[0, HEADROOM * top], nticks=3, row=row, col=1)
    figure.update_yaxes(title_text="KLD, nats", row=1, col=1)
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="token of the followed text", row=len(lanes), col=1)
    figure.update_layout(showlegend=False, bargap=0.15)
    cursor(figure, token, len(lanes))
    return label_figure(
        figure,
        "Bars: KLD of every token, one row a lane; dots mark flips",
        {"token": "x"},
        span=OVER,
        words={"x": "token"},
    )


def _dots(tokens: np.ndarray, height: float, lane: str, name: str, color: str, fill: bool) -> dict[str, Any]:
    """A kind of flips of a lane, above its bars."""
    return {
        "x": tokens,
        "y": np.full(len(tokens), height),
        "mode": "markers",
        "name": f"{lane}, {name}",
        "marker": {
            "size": 7,
            "color": color if fill else "rgba(0,0,0,0)",
            "line": {"color": color, "width": 1.5},
        },
        "hovertemplate": f"token %{{x}}: {name}<extra>{lane}</extra>",
    }


def flips(
    lane: LaneRecord, arrays: Arrays, index: int, margin: np.ndarray | None
) -> list[tuple[str, np.ndarray, bool]]:
    """(name, mask over scored positions, filled) of real flips and of those near a tie of the reference."""
    same = array(arrays, f"lane/{index}/same_top")
    if same is None:
        return []
    flipped = same == 0
    edge = lane.metrics.near_tie_margin if lane.metrics else 0.0
    ties = margin <= edge if margin is not None and margin.shape == flipped.shape else np.zeros_like(flipped)
    found = [("flip", flipped & ~ties, True), ("flip near a tie of the reference", flipped & ties, False)]
    return [part for part in found if part[1].any()]
