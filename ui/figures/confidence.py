"""KLD by how sure the reference is of its next token."""

from typing import Any

import plotly.graph_objects as go

from kvq_core.analysis.confidence import Bucket, by_confidence
from kvq_core.analysis.floors import floors
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.base import canvas, decades, label_figure, label_of, line_of, of_lane
from ui.html.colors import REFERENCE
from ui.html.numbers import percent, significant

DASHES = ("dot", "dash")  # of the floors


def confidence(record: Record, arrays: Arrays) -> go.Figure | None:
    """Mean KLD in five buckets of the reference's top probability, a line a lane and a dashed one a floor."""
    shown: list[tuple[str, int | None, dict[str, Any], tuple[Bucket, ...]]] = [
        (label_of(record.lanes[i]), i, line_of(record, i), by_confidence(arrays, i)) for i in range(len(record.lanes))
    ]
    for (at, lane), dash in zip(floors(record).items(), DASHES, strict=False):
        shown.append((label_of(lane), None, {"color": REFERENCE, "dash": dash}, by_confidence(arrays, at)))
    means = [bucket.mean for *_, buckets in shown for bucket in buckets if bucket.mean and bucket.mean > 0]
    if not means:
        return None
    figure = canvas(300)
    for label, index, line, buckets in shown:
        _line(figure, label, index, line, buckets)
    some = next(buckets for *_, buckets in shown if buckets)
    figure.update_xaxes(
        title_text="the reference's top probability",
        categoryorder="array",
        categoryarray=[bucket.name for bucket in some],
        tickvals=[bucket.name for bucket in some],
        ticktext=[f"{bucket.low:g}–{bucket.high:g}".replace("0.", ".") for bucket in some],
        tickangle=0,
    )
    figure.update_yaxes(title_text="mean KLD, nats", type="log", **decades(min(means), max(means) * 1.01))
    figure.update_layout(margin={"l": 72, "r": 12, "t": 12, "b": 46})
    return label_figure(figure, "Mean KLD by the reference's top probability, a line a lane")


def _line(figure: go.Figure, label: str, index: int | None, line: dict[str, Any], buckets: tuple[Bucket, ...]) -> None:
    # of the oldest runs, rounding left floors a hair below 0, which has no place on a logarithmic axis
    held = [bucket for bucket in buckets if bucket.mean and bucket.mean > 0]
    said = [
        f"{percent(b.share)} of positions, median {significant(b.median, 2)}, flips {percent(b.flips, 1)}" for b in held
    ]
    figure.add_scatter(
        x=[bucket.name for bucket in held],
        y=[float(bucket.mean or 0) for bucket in held],
        text=said,
        name=label,
        mode="lines+markers",
        line=line,
        meta={} if index is None else of_lane(index),
        hovertemplate="top probability %{x}<br>mean KLD %{y:.3g} nats<br>%{text}" + f"<extra>{label}</extra>",
    )


def confidence_rows(record: Record, arrays: Arrays) -> list[list[object]]:
    """The same as numbers: see ui.views.export."""
    places = [*((lane.label, at) for at, lane in floors(record).items())]
    places += [(lane.label, index) for index, lane in enumerate(record.lanes)]
    axes = ("the reference's top probability", "measure")
    return [
        [label, bucket.name, name, value, *axes, unit]
        for label, at in places
        for bucket in by_confidence(arrays, at)
        for name, value, unit in (
            ("positions", bucket.share, "share of positions"),
            ("mean KLD", bucket.mean, "nats"),
            ("median KLD", bucket.median, "nats"),
            ("flips", bucket.flips, "share of its positions"),
        )
        if value is not None
    ]
