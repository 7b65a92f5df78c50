"""A decision's lanes as KLD against the bytes of their caches, and what policies cost by budget and engine."""

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from kvq_core.analysis.verdict import TIERS
from kvq_core.recommend.constraints import Advice, LaneCandidate
from kvq_core.recommend.policies import Grounds
from ui.figures.base import INK, canvas, label_figure
from ui.figures.forest import log_axis
from ui.html.colors import ACCENT, BERRY, BRONZE, MARK, MOSS, NOISE, REFERENCE
from ui.html.escape import plot_safe, shorten
from ui.html.numbers import significant, size

HEIGHT, LINE = 360, 15  # px: of the figure, and between two labels
MARGIN = {"l": 64, "r": 20, "t": 14, "b": 48}
INNER = HEIGHT - MARGIN["t"] - MARGIN["b"]
UNITS = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3))
NAMED = 8  # lanes on the front that carry their names
HUES = (ACCENT, BERRY, MOSS, BRONZE, MARK)


def decision_front(found: Advice) -> go.Figure | None:
    """Every lane with its interval, the front as a line; the answer and its runner-up stand out, and what may not be
    had is pale."""
    shown = [each for each in found.front if each.kld_mean and each.bytes]
    if not shown:
        return None
    low, high = _edges(shown)
    word, unit = _unit(found.plain_bytes)
    figure = canvas(HEIGHT, margin=MARGIN)
    front = [each for each in shown if each.front]
    figure.add_scatter(
        x=[(each.bytes or 0) / unit for each in front],
        y=[max(each.kld_mean or 0, low) for each in front],
        mode="lines",
        hoverinfo="skip",
        line={"color": REFERENCE, "width": 1.2, "shape": "hv", "dash": "dot"},
    )
    for each in sorted(shown, key=lambda one: one.label in (found.label, found.runner_up)):
        _point(figure, each, found, low, unit)
    widest = max(found.plain_bytes, *(each.bytes or 0 for each in shown)) / unit
    _labels(figure, [each for each in front if _named(each, front, found)], unit, widest, low, high)
    figure.add_vline(found.plain_bytes / unit, line={"color": NOISE, "width": 1.2, "dash": "dash"})
    place = {"x": found.plain_bytes / unit, "y": 0, "yref": "paper", "yanchor": "bottom", "xanchor": "right"}
    figure.add_annotation(text="fp16 ", showarrow=False, font={"size": 11, "color": INK}, **place)
    title = f"{word} of the cache for {found.batch} x {found.context:,} tokens"
    figure.update_xaxes(title_text=title, range=[0, 1.04 * widest], zeroline=False)
    figure.update_yaxes(title_text="mean KLD over prompts, nats", type="log", **log_axis(low, high))
    figure.update_layout(showlegend=False)
    return label_figure(figure, "Scatter: mean KLD of every lane with its 95 % interval against its cache's bytes")


def _unit(nbytes: float) -> tuple[str, float]:
    """A unit in which the axis has numbers that people read."""
    return next((each for each in UNITS if nbytes >= each[1]), UNITS[-1])


def _edges(shown: Sequence[LaneCandidate]) -> tuple[float, float]:
    means = [each.kld_mean for each in shown if each.kld_mean]
    lows = [each.kld_low for each in shown if each.kld_low]
    highs = [each.kld_high for each in shown if each.kld_high]
    low = min([*means, *lows, TIERS[0].kld]) / 1.5
    return low, max([*means, TIERS[0].kld, *(min(high, 2 * max(means)) for high in highs)]) * 1.5


def _point(figure: go.Figure, each: LaneCandidate, found: Advice, low: float, unit: float) -> None:
    best, second = each.label == found.label, each.label == found.runner_up
    color = ACCENT if best else BERRY if second else REFERENCE if each.why_not is None else NOISE
    mean = max(each.kld_mean or 0, low)
    ends: tuple[list[float], list[float]] = [], []
    if each.kld_low is not None and each.kld_high is not None:
        ends = [each.kld_high - mean], [mean - max(each.kld_low, low)]
    why = f"<br>{plot_safe(shorten(each.why_not, 90))}" if each.why_not else ""
    interval = f" ({significant(each.kld_low)} to {significant(each.kld_high)})" if each.kld_low is not None else ""
    figure.add_scatter(
        x=[(each.bytes or 0) / unit],
        y=[mean],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": ends[0],
            "arrayminus": ends[1],
            "visible": bool(ends[0]),
            "color": color,
            "thickness": 1.6 if best else 1,
            "width": 4 if best else 2,
        },
        mode="markers",
        cliponaxis=False,
        marker={"size": 14 if best else 10 if second else 7, "color": color, "symbol": _symbol(each)},
        hovertemplate=(
            f"{plot_safe(each.label)}: {significant(each.kld_mean)} nats{interval}<br>{size(each.bytes or 0)}{why}"
            "<extra></extra>"
        ),
    )


def _symbol(each: LaneCandidate) -> str:
    return "diamond" if each.policy else "circle" if each.why_not is None else "circle-open"


def _named(each: LaneCandidate, front: Sequence[LaneCandidate], found: Advice) -> bool:
    return each.label in (found.label, found.runner_up) or len(front) <= NAMED or each.why_not is None


def _labels(
    figure: go.Figure, named: Sequence[LaneCandidate], unit: float, widest: float, low: float, high: float
) -> None:
    """Names beside the points, each on a line of its own."""
    last: dict[str, float] = {}
    for each in sorted(named, key=lambda one: -(one.kld_mean or 0)):
        kld = max(each.kld_mean or 0, low)
        top = INNER * math.log(high / kld) / math.log(high / low)
        place = (each.bytes or 0) / unit
        side = "right" if place > 0.6 * widest else "left"  # the end of the label that is at the point
        free = min(max(top - 8, last.get(side, -LINE) + LINE), INNER - 6)
        last[side] = free
        figure.add_annotation(
            text=plot_safe(shorten(each.label, 24)),
            x=(each.bytes or 0) / unit,
            y=math.log10(kld),
            xanchor=side,
            xshift=-10 if side == "right" else 10,
            yshift=top - free,
            showarrow=False,
            font={"size": 12, "color": INK},
        )


def policy_fronts(found: Grounds) -> go.Figure | None:
    """The least predicted loss by bits an element: free, and inside what each engine loads; dashed: only an open pull
    request reads such a map."""
    shown = [front for front in found.fronts if any(point.predicted > 0 for point in front.points)]
    if not shown:
        return None
    figure = canvas(300, margin={**MARGIN, "r": 12})
    low = min(point.predicted for front in shown for point in front.points if point.predicted > 0) / 1.5
    high = max(point.predicted for front in shown for point in front.points) * 1.5
    for number, front in enumerate(shown):
        color = REFERENCE if front.engine is None else HUES[(number - 1) % len(HUES)]
        points = [point for point in front.points if point.predicted > 0]
        figure.add_scatter(
            x=[point.bits for point in points],
            y=[point.predicted for point in points],
            mode="lines+markers",
            name=plot_safe(front.title if front.version is None else f"{front.title} {front.version}"),
            line={"color": color, "width": 1.8, "shape": "hv"},
            marker={"size": 6, "color": color},
            hovertemplate="%{x:.2f} bits: %{y:.3g} nats predicted<extra>" + plot_safe(front.title) + "</extra>",
        )
    figure.update_xaxes(title_text="bits an element, keys and values", zeroline=False)
    figure.update_yaxes(title_text="predicted KLD, nats", type="log", **log_axis(low, high))
    figure.update_layout(showlegend=True, height=320 + 18 * len(shown), legend={"orientation": "h", "y": -0.24})
    figure.update_layout(legend_yanchor="top", margin_b=70 + 18 * len(shown))
    return label_figure(figure, "Lines: predicted KLD of the best policy of layers by bits, one line an engine")
