"""Long context in a study: what is recalled by depth and length, a small map a lane, and KLD along the text."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvq_core.studies.result import StudyResult
from ui.figures.base import apply_style, canvas, label_figure, of_lane, sequential
from ui.figures.forest import log_axis, spread
from ui.html.colors import REFERENCE, lane_color
from ui.html.escape import plot_safe, shorten
from ui.html.numbers import percent
from ui.html.tokens import TOKENS

ACROSS = 4  # maps beside each other
HEIGHT, NAME = 320, 14  # px: of the curves, and of a name at the end of one
WRITTEN = 4  # lengths up to which cells carry their numbers
LOST = "lost, %"

Line = dict[str, Any]


def recall_maps(result: StudyResult, model: str) -> go.Figure | None:
    """Depth against length, full precision first: how much of its right answers each lane loses (of full precision, how
    many of all tasks it does not answer). Blank where full precision answers none."""
    lines = [line for line in result.recall if line["model"] == model]
    if not lines:
        return None
    labels = list(dict.fromkeys(line["label"] for line in lines))
    own = {label: [line for line in lines if line["label"] == label] for label in labels}
    lengths = sorted({line["words"] for line in lines})
    depths = sorted({line["depth"] for line in lines})
    across = min(ACROSS, 1 + len(labels))
    down = math.ceil((1 + len(labels)) / across)
    titles = ["Full precision", *(plot_safe(shorten(label, 24)) for label in labels)]
    height = 46 + 24 * len(depths)
    gap = 62 / (down * height + 62 * (down - 1)) if down > 1 else 0
    figure = make_subplots(down, across, subplot_titles=titles, vertical_spacing=gap, horizontal_spacing=0.06)
    for number, (name, held) in enumerate(
        [("reference", own[labels[0]]), *(("right", own[label]) for label in labels)]
    ):
        place = {"row": 1 + number // across, "col": 1 + number % across}
        figure.add_trace(_map(name, held, lengths, depths), **place)
        axis = {"tickvals": list(range(len(depths))), "ticktext": [percent(depth) for depth in depths]}
        figure.update_yaxes(autorange="reversed", showticklabels=place["col"] == 1, **axis, **place)
        figure.update_xaxes(tickvals=list(range(len(lengths))), ticktext=[f"{length:,}" for length in lengths], **place)
    apply_style(figure, down * height + 62 * (down - 1) + 70, margin={"l": 64, "r": 12, "t": 28, "b": 46})
    for at, note in enumerate(figure.layout.annotations):
        note.update(font={"size": 12, "color": lane_color(at - 1) if at else REFERENCE})
    figure.update_layout(coloraxis=sequential(100, LOST), plot_bgcolor=TOKENS.light["line"])
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showgrid=False, zeroline=False)
    figure.update_xaxes(title_text="words of the text", row=down, col=1)
    figure.update_yaxes(title_text="depth", row=1, col=1)
    return label_figure(figure, "Maps of what is recalled by depth and length of the text, one a lane")


def _map(name: str, held: list[Line], lengths: list[int], depths: list[float]) -> go.Heatmap:
    cells = {(line["depth"], line["words"]): line for line in held}
    z = np.full((len(depths), len(lengths)), np.nan, dtype=np.float32)
    said = [["" for _ in lengths] for _ in depths]
    for row, depth in enumerate(depths):
        for column, words in enumerate(lengths):
            line = cells.get((depth, words))
            if line is None or line[name] is None:
                continue
            z[row, column] = round(100 * (1 - line[name]), 1)
            of = line["asked"] if name == "reference" else line["counted"]
            said[row][column] = f"{round(line[name] * of)} of {of}"
    return go.Heatmap(
        x=list(range(len(lengths))),
        y=list(range(len(depths))),
        z=z,
        text=said,
        texttemplate="%{text}" if len(lengths) <= WRITTEN else None,
        hovertemplate="%{text} right<extra></extra>",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
    )


def kld_by_position(result: StudyResult, model: str) -> go.Figure | None:
    """Mean KLD over prompts by the power of two at which a position lies, a line a lane with its name at the end."""
    lines = [line for line in result.positions if line["model"] == model]
    known = [line["kld_mean"] for line in lines if line["kld_mean"] > 0]
    if not known:
        return None
    low, high = min(known) / 2, max(known) * 2
    figure = canvas(HEIGHT, margin={"l": 64, "r": 130, "t": 12, "b": 46})
    named = _with_room(lines, (HEIGHT - 58) / math.log(high / low))
    for at, label in enumerate(dict.fromkeys(line["label"] for line in lines)):
        own = [line for line in lines if line["label"] == label and line["kld_mean"] > 0]
        bars = [spread(line, low) for line in own]
        figure.add_scatter(
            x=[line["first"] for line in own],
            y=[line["kld_mean"] for line in own],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [bar["array"][0] for bar in bars],
                "arrayminus": [bar.get("arrayminus", [0])[0] for bar in bars],
                "thickness": 1.2,
                "width": 4,
            },
            mode="lines+markers+text",
            text=["" for _ in own[:-1]] + [plot_safe(shorten(label, 18)) if label in named else ""] * bool(own),
            textposition="middle right",
            cliponaxis=False,
            line={"color": lane_color(at), "width": 1.8},
            meta=of_lane(at),
            customdata=[line["prompts"] for line in own],
            hovertemplate="from position %{x}: mean %{y:.3g} nats, %{customdata} prompts<extra>"
            + plot_safe(label)
            + "</extra>",
        )
    firsts = sorted({line["first"] for line in lines})
    figure.update_xaxes(title_text="position, from", type="log", tickvals=firsts, ticktext=[f"{at:,}" for at in firsts])
    figure.update_yaxes(title_text="mean KLD over prompts, nats", type="log", **log_axis(low, high))
    figure.update_layout(showlegend=False)
    return label_figure(figure, "Mean KLD by log2 of the position, a line a lane")


def _with_room(lines: list[Line], px: float) -> set[str]:
    """Lanes whose names fit at the end of their curves, the closest first; a hover names the others. ``px``: a unit of
    ln KLD."""
    ends = {line["label"]: math.log(line["kld_mean"]) for line in lines if line["kld_mean"] > 0}
    named: dict[str, float] = {}
    for label, end in sorted(ends.items(), key=lambda held: held[1]):
        if all(abs(end - other) * px >= NAME for other in named.values()):
            named[label] = end
    return set(named)
