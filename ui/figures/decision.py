"""A decision's lanes as KLD against the bytes of their caches, and what policies cost by budget and engine."""

import plotly.graph_objects as go

from kvq_core.recommend.constraints import Advice, LaneCandidate
from kvq_core.recommend.policies import Grounds
from ui.figures.base import INK, canvas, label_figure
from ui.figures.forest import log_axis
from ui.figures.pareto import MARGIN, LanePoint, kld_against_bytes
from ui.html.colors import ACCENT, BERRY, BRONZE, MARK, MOSS, NOISE, REFERENCE
from ui.html.escape import plot_safe, shorten
from ui.html.numbers import significant, size

UNITS = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3))
NAMED = 8  # lanes on the front that carry their names
HUES = (ACCENT, BERRY, MOSS, BRONZE, MARK)


def decision_front(found: Advice) -> go.Figure | None:
    """Every lane with its interval, the front as a line; the answer and its runner-up stand out, and what may not be
    had is pale."""
    word, unit = _unit(found.plain_bytes)
    shown = [(each, each.bytes / unit, each.kld_mean) for each in found.front if each.kld_mean and each.bytes]
    front = [(place, kld) for each, place, kld in shown if each.front]
    first, few = (found.label, found.runner_up), len(front) <= NAMED
    points = [
        _point(each, place, found, each.front and (few or each.label in first or each.why_not is None))
        for each, place, _ in sorted(shown, key=lambda one: one[0].label in first)
    ]
    plain = found.plain_bytes / unit
    title = f"{word} of the cache for {found.batch} x {found.context:,} tokens"
    figure = kld_against_bytes(points, front, title, max([plain, *(point.place for point in points)]))
    if figure is None:
        return None
    figure.add_vline(plain, line={"color": NOISE, "width": 1.2, "dash": "dash"})
    place = {"x": plain, "y": 0, "yref": "paper", "yanchor": "bottom", "xanchor": "right"}
    figure.add_annotation(text="fp16 ", showarrow=False, font={"size": 11, "color": INK}, **place)
    return figure.update_layout(showlegend=False)


def _unit(nbytes: float) -> tuple[str, float]:
    """A unit in which the axis has numbers that people read."""
    return next((each for each in UNITS if nbytes >= each[1]), UNITS[-1])


def _point(each: LaneCandidate, place: float, found: Advice, named: bool) -> LanePoint:
    best, second = each.label == found.label, each.label == found.runner_up
    color = ACCENT if best else BERRY if second else REFERENCE if each.why_not is None else NOISE
    symbol = "diamond" if each.policy else "circle" if each.why_not is None else "circle-open"
    why = f"<br>{plot_safe(shorten(each.why_not, 90))}" if each.why_not else ""
    interval = f" ({significant(each.kld_low)} to {significant(each.kld_high)})" if each.kld_low is not None else ""
    return LanePoint(
        place,
        {**dict(each), "kld_p95": None},
        f"{plot_safe(each.label)}: {significant(each.kld_mean)} nats{interval}<br>{size(each.bytes or 0)}{why}",
        {"size": 14 if best else 10 if second else 7, "color": color, "symbol": symbol},
        named,
        1.6 if best else 1,
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
