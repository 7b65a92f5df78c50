"""The prompt as lanes read it through their own caches: what that costs, along it."""

import numpy as np
import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.base import canvas, decades, label_figure, label_of, lanes_with, line_of, of_lane, round_values

BINS = 120  # a lane's line has no more points than these


def prompt_kld(record: Record, arrays: Arrays) -> go.Figure | None:
    """Mean KLD along the prompt, a line a lane, the worst position of each bin told; None where no lane read it
    through its cache."""
    positions, lanes = array(arrays, "prompt/positions"), list(lanes_with(record, arrays, "prompt_kld"))
    if positions is None or not lanes:
        return None
    bins = np.array_split(np.arange(positions.size), min(BINS, positions.size))
    centres = [float(positions[own].mean()) for own in bins]
    figure, drawn = canvas(280), []
    for index, lane, kld in lanes:
        means = np.array([kld[own].mean() for own in bins])
        drawn += [mean for mean in means.tolist() if mean > 0]
        figure.add_scatter(
            x=round_values(np.array(centres), 6),
            y=round_values(means),
            text=[_worst(positions[own], kld[own]) for own in bins],
            mode="lines" if len(bins) > 1 else "markers",
            name=label_of(lane),
            meta=of_lane(index),
            line=line_of(record, index, 1.5),
            hovertemplate="position %{x:.0f}: mean %{y:.3g} nats%{text}<extra>" + label_of(lane) + "</extra>",
        )
    if not drawn:
        return None
    figure.update_xaxes(title_text="position in the prompt")
    figure.update_yaxes(title_text="KLD, nats", type="log", **decades(min(drawn), max(drawn) * 1.01))
    return label_figure(
        figure, "Mean KLD along the prompt, a line a lane that read it through its own cache", words={"x": "position"}
    )


def _worst(positions: np.ndarray, kld: np.ndarray) -> str:
    at = int(kld.argmax())
    return f"<br>worst {kld[at]:.3g} at {positions[at]}" if kld.size > 1 else ""
