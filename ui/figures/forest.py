"""A study's lanes below each other: mean KLD over prompts with its interval, floors as lines."""

import math
from typing import Any

import plotly.graph_objects as go

from kvq_core.analysis.verdict import TIERS
from kvq_core.studies.result import StudyResult
from ui.figures.base import INK, canvas, decades, label_figure, of_lane
from ui.html.colors import NOISE, lane_color
from ui.html.escape import plot_safe, shorten
from ui.html.numbers import significant

ROW, LOW_ROW, MANY = 42, 24, 12  # px of a lane, of one of many, and lanes that are not yet many
ABOVE = 13  # px from a lane's point to the middle of its name, which stands over it where lanes are few
WIDEST = 2.0  # how far beyond the means an axis goes for intervals: of few prompts they can reach far beyond all else
_QUIET: dict[str, Any] = {"showarrow": False, "font": {"size": 11, "color": INK}}
FLOORS = {"storage_floor": "an fp16 cache", "kernel_floor": "another kernel"}

Line = dict[str, Any]


def scored_lanes(result: StudyResult, model: str) -> list[tuple[int, Line]]:
    """The lanes of a model that were scored, each with its number, which gives its colour."""
    lanes = [line for line in result.lines if line["model"] == model]
    return [(at, line) for at, line in enumerate(lanes) if line["kld_mean"] is not None]


def forest(result: StudyResult, model: str) -> go.Figure | None:
    """A row a lane, the closest on top."""
    found = sorted(scored_lanes(result, model), key=lambda held: held[1]["kld_mean"])
    edges = kld_edges(found)
    if edges is None:
        return None
    low, high = edges
    figure = canvas(
        112 + (ROW if len(found) <= MANY else LOW_ROW) * len(found), margin={"l": 12, "r": 16, "t": 52, "b": 46}
    )
    for row, (at, line) in enumerate(found):
        _row(figure, row, at, line, low, high)
    _floors(figure, found[0][1], low, high)
    _names(figure, [line["label"] for _, line in found])
    figure.update_xaxes(title_text="mean KLD over prompts, nats", type="log", **log_axis(low, high))
    figure.update_layout(showlegend=False)
    return label_figure(figure, "Forest plot: mean KLD of every lane with its 95 % interval, and noise floors")


def _names(figure: go.Figure, labels: list[str]) -> None:
    """Of few lanes over their rows, which leaves the width to the axis; of many beside them."""
    few = len(labels) <= MANY
    names = [plot_safe(shorten(label, 36 if few else 22)) for label in labels]
    for row, name in enumerate(names if few else ()):
        place = {"x": 0, "xref": "paper", "xanchor": "left", "y": row, "yshift": ABOVE}
        figure.add_annotation(text=name, showarrow=False, font={"size": 12, "color": INK}, **place)
    figure.update_yaxes(
        tickvals=list(range(len(labels))),
        ticktext=[f"{name} " for name in names],
        showticklabels=not few,
        range=[len(labels) - 0.4, -0.75 if few else -0.6],
        showgrid=False,
        zeroline=False,
        automargin=True,
    )


def _row(figure: go.Figure, row: int, at: int, line: dict[str, Any], low: float, high: float) -> None:
    """A lane's mean with its interval, and the 95th percentile of its prompts."""
    figure.add_scatter(
        x=[max(line["kld_mean"], low)],
        y=[row],
        error_x={**spread(line, low), "color": lane_color(at), "thickness": 2, "width": 5},
        mode="markers",
        marker={"size": 10, "color": lane_color(at)},
        meta=of_lane(at),
        hovertemplate=f"{hover_text(line)}<extra></extra>",
    )
    figure.add_scatter(
        x=[min(max(line["kld_p95"], low), high)],
        y=[row],
        mode="markers",
        marker={"size": 9, "symbol": "line-ns", "line": {"width": 2, "color": lane_color(at)}},
        meta=of_lane(at),
        hovertemplate=f"95th percentile of prompts: {significant(line['kld_p95'])}<extra></extra>",
    )


def kld_edges(found: list[tuple[int, Line]]) -> tuple[float, float] | None:
    """Ends of a logarithmic axis that holds all means with their intervals and the first thresholds."""
    names = ("kld_mean", "kld_low", "kld_p95")
    values = [line[name] for _, line in found for name in names if line[name] is not None and line[name] > 0]
    if not values:
        return None
    low, most = min([*values, TIERS[0].kld]) / 1.6, max([*values, TIERS[-2].kld]) * 1.6
    highs = [line["kld_high"] for _, line in found if line["kld_high"] is not None]
    return low, max([most, *(min(high * 1.2, most * WIDEST) for high in highs)])


def log_axis(low: float, high: float) -> dict[str, Any]:
    return {"range": [math.log10(low), math.log10(high)], **decades(low, high)}


def spread(line: Line, low: float, of: str = "kld") -> dict[str, Any]:
    """A point's interval as Plotly's error bar; none where the prompts are too few."""
    if line[f"{of}_low"] is None:
        return {"type": "data", "array": [0], "visible": False}
    mean = line[f"{of}_mean"]
    ends = [line[f"{of}_high"] - mean], [mean - max(line[f"{of}_low"], low)]
    return {"type": "data", "symmetric": False, "array": ends[0], "arrayminus": ends[1]}


def hover_text(line: Line) -> str:
    """A lane's mean with its interval, worst prompt and tier, for a hover."""
    ends = "" if line["kld_low"] is None else f" ({significant(line['kld_low'])} to {significant(line['kld_high'])})"
    tier = f"<br>{line['tier']} by its {line['tier_reason']}" if line["tier"] else ""
    worst = f"worst {plot_safe(shorten(line['worst_prompt'], 30))}: {significant(line['worst_kld'])}"
    return (
        f"{plot_safe(line['label'])}: {significant(line['kld_mean'])}{ends}<br>{line['prompts']} prompts; {worst}{tier}"
    )


def _floors(figure: go.Figure, line: Line, low: float, high: float) -> None:
    """Floors within the axis as lines; those below it by name at its left end."""
    below = []
    for name, words in FLOORS.items():
        floor = line[name]
        if floor is None or math.isnan(floor):
            continue
        if low < floor < high:
            figure.add_vline(floor, line={"color": NOISE, "width": 1.5, "dash": "dot"})
            across = math.log(floor / low) / math.log(high / low)
            side = "left" if across < 0.3 else "right" if across > 0.7 else "center"  # else it stands over the edge
            place = {"y": 0, "yref": "paper", "yanchor": "bottom", "xanchor": side}
            figure.add_annotation(text=words, x=math.log10(floor), **place, **_QUIET)
        else:
            below.append(f"floor of {words} {significant(floor, 2)}")
    if below:
        place = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
        figure.add_annotation(
            text="<br>".join(f"← {words}" for words in below), yshift=16, align="left", **place, **_QUIET
        )
