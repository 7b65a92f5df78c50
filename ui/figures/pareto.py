"""Mean KLD against bytes, each lane with its interval, and the front: of a study's lanes, and of a decision's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from kvq_core.studies.result import StudyResult
from ui.figures.base import INK, canvas, label_figure, of_lane
from ui.figures.forest import Line, hover_text, kld_edges, log_axis, scored_lanes, spread
from ui.figures.rate import draw_front, front
from ui.html.colors import REFERENCE, lane_color
from ui.html.escape import plot_safe, shorten
from ui.html.numbers import significant

HEIGHT, LINE = 340, 15  # px: of the figure, and between two labels
MARGIN = {"l": 64, "r": 16, "t": 12, "b": 46}
CLOSE = 0.2  # of the width: a point so near on the right takes the room of a label
AXIS = 0.3  # of the width, up to which a label on the left would stand on the axis
NAMED = 10  # lanes from which on only those on the front carry their names, where these have room
WIDE, LETTER = 560, 6.4  # px: of the points' ground on a narrow page, and of a letter
NARROWEST = 240  # px: of that ground on a telephone
LONGEST = 22  # letters of a name
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")  # of files


@dataclass(frozen=True)
class _Sizes:
    """What stands on the axis of bytes: a field of a study's lines by ``scale``, in ``unit``; ``least``: that the axis
    reaches to."""

    field: str
    scale: float
    unit: str
    title: str
    least: float


SHARES = _Sizes("kv_ratio", 0.01, "% of the bytes", "bytes, % of an fp16 cache", 100)
WHOLE = _Sizes("total_bytes", 1e9, "GB", "weights and cache, GB", 0)


@dataclass(frozen=True)
class LanePoint:
    """A lane: ``place`` on the axis of bytes, in its unit; ``line``: its mean KLD in nats and the ends of its interval,
    as a study's lines have them; ``named``: whether its name is to stand beside it where names have room."""

    place: float
    line: Line
    hover: str
    marker: dict[str, Any]  # Plotly's: color, size, symbol
    named: bool = True
    thickness: float = 1.5  # px of the interval
    meta: Any = None


def kld_against_bytes(
    points: Sequence[LanePoint], front: Sequence[tuple[float, float]], title: str, widest: float
) -> go.Figure | None:
    """Mean KLD over prompts with its interval against bytes, and the ``front`` of (bytes, KLD) as a line; the axis of
    bytes, in the unit that its ``title`` says, reaches to ``widest``. None where no lane has a KLD above 0."""
    if (edges := kld_edges([(0, point.line) for point in points])) is None:
        return None
    (low, high), figure = edges, canvas(HEIGHT, margin=MARGIN)
    draw_front(figure, [(place, max(kld, low)) for place, kld in front])
    dots = [(point.place / widest, max(point.line["kld_mean"], low)) for point in points]
    for point, (_, kld) in zip(points, dots, strict=True):
        error = {"color": point.marker["color"], "thickness": point.thickness, "width": 4}
        figure.add_scatter(
            x=[point.place],
            y=[kld],
            error_y={**spread(point.line, low), **error},
            mode="markers",
            cliponaxis=False,
            marker=point.marker,
            showlegend=False,
            meta=point.meta,
            hovertemplate=f"{point.hover}<extra></extra>",
        )
    held = [(*dot, point.line["label"]) for point, dot in zip(points, dots, strict=True) if point.named]
    held = [each for each in held if len(points) <= NAMED or _has_room(each, dots, low, high)]
    _labels(figure, held, widest, low, high)
    figure.update_xaxes(title_text=title, range=[0, 1.04 * widest], zeroline=False)
    figure.update_yaxes(title_text="mean KLD over prompts, nats", type="log", **log_axis(low, high))
    return label_figure(figure, "Scatter: mean KLD over prompts against bytes, a point a lane with its 95 % interval")


def pareto(result: StudyResult, model: str) -> go.Figure | None:
    """A study's lanes against bytes as a share of an fp16 cache's; of files that are scored against the logits of one
    reference all lanes of all files, against the bytes of weights and cache."""
    sizes = WHOLE if result.one_reference else SHARES
    models = result.models if result.one_reference else [model]
    every = [held for each in models for held in scored_lanes(result, each)]
    found = [(at, line) for at, line in every if line[sizes.field] is not None]
    places = [(at, line[sizes.field] / sizes.scale, line["kld_mean"]) for at, (_, line) in enumerate(found)]
    best = front(places)
    named = {place for place, *_ in best} if len(found) > NAMED else {place for place, *_ in places}
    points = [
        LanePoint(
            place,
            line,
            f"{hover_text(line)}<br>{significant(place, 3)} {sizes.unit}",
            {"size": 10, "color": lane_color(at), "symbol": SYMBOLS[models.index(line["model"]) % len(SYMBOLS)]},
            number in named,
            meta=of_lane(at),
        )
        for (at, line), (number, place, _) in zip(found, places, strict=True)
    ]
    widest = max(sizes.least, *(place for _, place, _ in places), 0)
    figure = kld_against_bytes(points, [(place, kld) for _, place, kld in best], sizes.title, widest)
    if figure is not None and len(models) > 1:
        _files(figure, models)
    return figure


def _files(figure: go.Figure, models: Sequence[str]) -> None:
    """Which mark a file's lanes have, above the figure."""
    for symbol, model in zip(SYMBOLS, models, strict=False):
        name, marker = plot_safe(shorten(model, 40)), {"symbol": symbol, "size": 9, "color": REFERENCE}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, showlegend=True)
    legend = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}
    figure.update_layout(showlegend=True, legend=legend, margin={"t": 36})


def _has_room(held: tuple[float, float, str], dots: list[tuple[float, float]], low: float, high: float) -> bool:
    """Whether a name fits on the side of its point that ``_labels`` takes, and on none of the other points."""
    across, kld, label = held
    px = (HEIGHT - MARGIN["t"] - MARGIN["b"]) / math.log(high / low)
    width = (9 + LETTER * len(shorten(label, LONGEST))) / WIDE
    near = [x - across for x, other in dots if abs(math.log(other / kld)) * px < LINE and (x, other) != (across, kld)]
    if _side(across, any(0 < apart < CLOSE for apart in near)) == "right":
        return across - width >= 0 and not any(-width < apart < 0 for apart in near)
    return across + width <= 1.04 and not any(0 < apart < width for apart in near)


def _labels(figure: go.Figure, held: list[tuple[float, float, str]], widest: float, low: float, high: float) -> None:
    """Names beside the points, (share of the width, KLD, label) each, those of a side each on a line of its own."""
    inner = HEIGHT - MARGIN["t"] - MARGIN["b"]
    placed = [(inner * math.log(high / kld) / math.log(high / low), across, kld, label) for across, kld, label in held]
    last: dict[str, float] = {}
    for top, across, kld, label in sorted(placed):
        crowded = any(0 < x - across < CLOSE and abs(y - top) < LINE for y, x, *_ in placed)
        side = _side(across, crowded)  # the end of the label that is at the point
        free = min(max(top - 8, last.get(side, -LINE) + LINE), inner - 6)
        last[side] = free
        longest = min(LONGEST, int((across * NARROWEST - 9) / LETTER)) if side == "right" else LONGEST  # up to the axis
        figure.add_annotation(
            text=plot_safe(shorten(label, longest)),
            x=across * widest,
            y=math.log10(kld),
            xanchor=side,
            xshift=-9 if side == "right" else 9,
            yshift=top - free,
            showarrow=False,
            font={"size": 12, "color": INK},
        )


def _side(across: float, crowded: bool) -> str:
    return "right" if across > 0.55 or (crowded and across > AXIS) else "left"
