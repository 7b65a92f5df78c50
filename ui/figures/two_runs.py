"""Figures of two runs beside each other: one scale for both, one selection."""

from collections.abc import Sequence

import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.base import canvas, label_figure, plot_label
from ui.figures.damage import damage_grid
from ui.figures.rate import LONG_TICKS, points
from ui.figures.texts import FLIPS_AT, kld_strips
from ui.html.colors import lane_color

Run = tuple[Record, Arrays]
Pair = tuple[go.Figure | None, go.Figure | None]


def there(layer: int, one: Record, other: Record) -> int:
    """The layer of another model that lies as deep as one of this one; the same of a model as deep."""
    mine, theirs = one.environment.layers, other.environment.layers
    return layer if mine == theirs else round(layer * (theirs - 1) / max(1, mine - 1))


def grids_of(one: Run, other: Run, layer: int, kv_head: int) -> Pair:
    """Relative key errors by layer and KV head, on the larger of the two scales."""
    heads = min(kv_head, other[0].environment.kv_heads - 1)
    drawn = (
        damage_grid(*one, "relative", "key", layer, kv_head),
        damage_grid(*other, "relative", "key", there(layer, one[0], other[0]), heads),
    )
    tops = [figure.layout.coloraxis.cmax for figure in drawn if figure is not None]
    for figure in filter(None, drawn):
        figure.update_layout(coloraxis_cmax=max(tops))
    return _apart(*drawn)


def strips_of(one: Run, other: Run, token: int) -> Pair:
    """KLD of every token, on the larger of the two scales."""
    drawn = kld_strips(*one, token), kld_strips(*other, min(token, max(0, len(other[0].reference.token_ids) - 1)))
    tops = [figure.layout.yaxis.range[1] for figure in drawn if figure is not None]
    for figure in filter(None, drawn):
        figure.update_yaxes(range=[0, max(tops)])
        for dots in figure.select_traces({"type": "scatter"}):  # flips, as high above both runs' bars
            dots.y = [FLIPS_AT * max(tops)] * len(dots.x)
    return _apart(*drawn)


def rates_of(runs: Sequence[Run]) -> go.Figure | None:
    """KLD against stored bits, a point a lane: the first run's full, the second's hollow, the same lane in one hue."""
    figure, labels = (
        canvas(340, yaxis={"type": "log", "dtick": 1, "title": {"text": "mean KLD, nats"}}),
        [lane.label for lane in runs[0][0].lanes],
    )
    drawn = False
    for name, (record, arrays), symbol in zip("AB", runs, ("circle", "circle-open"), strict=True):
        for index, bits, kld in points(record, arrays, "kld"):
            label = record.lanes[index].label
            hue = lane_color(labels.index(label) if label in labels else record.number(index))
            shown = plot_label(f"{name}: {label}")
            figure.add_scatter(
                x=[bits],
                y=[max(kld, 1e-9)],
                mode="markers",
                name=shown,
                marker={"size": 12, "color": hue, "symbol": symbol, "line": {"width": 2, "color": hue}},
                hovertemplate=f"%{{x:.2f}} bits: {kld:.3g} nats<extra>{shown}</extra>",
            )
            drawn = True
    figure.update_xaxes(title_text="stored bits an element")
    figure.update_layout(showlegend=False, margin_l=LONG_TICKS)
    said = "Scatter: mean KLD against stored bits of both runs, A full and B hollow"
    return label_figure(figure, said) if drawn else None


def _apart(one: go.Figure | None, other: go.Figure | None) -> Pair:
    """The second run's lanes are not those of the page's legend, and a click in it selects nothing of the first."""
    if other is not None:
        other.for_each_trace(lambda trace: trace.update(meta=None))
        other.update_layout(meta={**other.layout.meta, "pick": None})
    return one, other
