"""Mean KLD against bytes in plain markup: floors named at the edge, a point and an interval a lane.

No figure of Plotly's: it is there with the first answer, before that script is, and its words keep their size on a
phone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvq_core.analysis.floors import floors
from kvq_core.analysis.scored import pooled
from kvq_core.analysis.verdict import TIERS, mean_interval, verdict
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.escape import safe, shorten
from ui.html.glossary import term
from ui.html.numbers import percent, significant

HEIGHT, LINE = 236, 15  # px: of the plot, and between two labels
NUDGES = (0, -6, 6, -11, 11)  # px that a label may stand below its point
DOT, DOT_WIDE, GAP, LETTER = 5, 1.2, 1.4, 1.9  # half a point in px; it, its space and a letter in percent of the width
OVER = 10  # percent of the width that a label may stand out: over the ticks of the axis
TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True, order=True)
class Point:
    """A lane: its place among those that are drawn, None of another, its label, the share of an fp16 cache's bytes that
    it holds, host copy included, its mean KLD in nats with the ends of its interval, and its verdict."""

    lane: int | None
    label: str
    ratio: float
    kld: float
    low: float
    high: float
    number: int  # in the whole run
    verdict: str


def points(record: Record, arrays: Arrays, drawn: Sequence[int] | None = None) -> list[Point]:
    """Of the lanes that were scored and moved at all; ``drawn``: the numbers of those with cards, None: all have."""
    found, places = [], {number: at for at, number in enumerate(range(len(record.lanes)) if drawn is None else drawn)}
    for index, lane in enumerate(record.lanes):
        kld = pooled(arrays, index, "kld")
        if lane.status != "done" or lane.memory is None or not len(kld) or not math.isfinite(mean := float(kld.mean())):
            continue
        low, high = mean_interval(kld.tobytes()) if len(kld) > 1 else (mean, mean)
        if mean > 0:
            number = record.number(index)
            ends, word = (mean, low, high), verdict(record, arrays, index).word
            found.append(Point(places.get(number), lane.label, lane.memory.held_ratio, *ends, number, word))
    return found


def tradeoff(record: Record, arrays: Arrays, floor_words: str, drawn: Sequence[int] | None = None) -> str:
    """The plot of all lanes, those that are not ``drawn`` fainter; nothing where no lane can be placed."""
    found = points(record, arrays, drawn)
    if not found:
        return ""
    scale = _Scale(found)
    widest = max(1.0, *(point.ratio for point in found))
    marks = "".join(_mark(point, scale, widest) for point in found)
    said = "; ".join(
        f"{point.label}: KLD {significant(point.kld, 2)}, {percent(point.ratio)} of the bytes, {point.verdict}"
        for point in found
    )
    ticks = "".join(
        f'<span style="top:{scale.percent(value):.2f}%">{significant(value, 1)}</span>'
        for value in TICKS
        if scale.holds(value)
    )
    across = "".join(
        f'<span style="left:{100 * part / widest:.1f}%">{percent(part)}</span>' for part in (0, 0.25, 0.5, 0.75, 1)
    )
    inside = ticks_box("down", ticks) + marks + _labels(found, scale, widest)
    return (
        f'<figure class="tradeoff"><div class="field" style="height:{HEIGHT}px" role="img" aria-label="{safe(said)}">'
        f"{inside}{_floors(record, scale, floor_words)}"
        f"</div>{ticks_box('across', across)}<figcaption>{term('KLD', 'mean KLD, nats')} against "
        f"{term('bytes', 'bytes of an fp16 cache')}</figcaption></figure>"
    )


def ticks_box(kind: str, ticks: str) -> str:
    return f'<div class="ticks-{kind}" aria-hidden="true">{ticks}</div>'


class _Scale:
    """Logarithmic, from the top down, wide enough for every interval and the first threshold."""

    def __init__(self, found: list[Point]) -> None:
        edges = [math.log10(max(value, 1e-9)) for p in found for value in (p.kld, max(p.low, p.kld / 10), p.high)]
        first, last = math.log10(TIERS[0].kld), math.log10(TIERS[-2].kld)
        self.low = min(*edges, first) - 0.35
        self.high = max(*edges, last) + 0.25

    def percent(self, value: float) -> float:
        """Where a value stands, in percent of the height; outside at the edge."""
        at = (self.high - math.log10(max(value, 1e-12))) / (self.high - self.low)
        return 100 * min(1.0, max(0.0, at))

    def holds(self, value: float) -> bool:
        return self.low < math.log10(value) < self.high


def _mark(point: Point, scale: _Scale, widest: float) -> str:
    top, end = scale.percent(point.high), scale.percent(max(point.low, 1e-12))
    left = 100 * point.ratio / widest
    kind = f"lane-{point.number}" if point.lane is not None else "undrawn"
    place = f'{kind}"{_of(point)} style="left:{left:.2f}%;'
    reach = f'<i class="whisker {place}top:{top:.2f}%;height:{end - top:.2f}%"></i>' if point.lane is not None else ""
    title = safe(f"{point.label}: {point.verdict}")
    return f'{reach}<i class="point {place}top:{scale.percent(point.kld):.2f}%" title="{title}"></i>'


def _of(point: Point) -> str:
    """Whose a mark is, for the legend; a lane that is not drawn has no switch there."""
    return "" if point.lane is None else f' data-of="{point.lane}"'


def _labels(found: list[Point], scale: _Scale, widest: float) -> str:
    """Beside their points, where they cover no point or other label; least KLD first. In a crowd the others
    go without: their colours are in the legend, and the pointer tells their names."""
    dots = [_Box.around(scale.percent(p.kld) * HEIGHT / 100, 100 * p.ratio / widest) for p in found]
    taken, shown = [*dots], ""
    named = [pair for pair in zip(found, dots, strict=True) if pair[0].lane is not None]
    for point, dot in sorted(named, key=lambda pair: pair[0].kld):
        name = shorten(point.label, 24)
        sides = ("left", "right") if dot.middle > 55 else ("right", "left")
        places = [(side, dot.beside(side, by, len(name))) for by in NUDGES for side in sides]
        free = ((side, box) for side, box in places if box.inside and not any(map(box.meets, taken)))
        if (place := next(free, None)) is None:
            continue
        side, box = place
        taken.append(box)
        shown += (
            f'<span class="point-label {side}"{_of(point)} style="left:{dot.middle:.2f}%;'
            f'top:{box.top + LINE / 2:.0f}px">{safe(name)}</span>'
        )
    return shown


@dataclass(frozen=True)
class _Box:
    """What a point or a label takes: px from the top, percent of the width."""

    top: float
    bottom: float
    left: float
    right: float

    @classmethod
    def around(cls, top: float, left: float) -> "_Box":
        return cls(top - DOT, top + DOT, left - DOT_WIDE, left + DOT_WIDE)

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2

    @property
    def inside(self) -> bool:
        return self.top >= 0 and self.bottom <= HEIGHT and self.left >= -OVER and self.right <= 100 + OVER / 2

    def beside(self, side: str, by: float, letters: int) -> "_Box":
        """A label so far below its point, and as long as its letters."""
        middle, wide = (self.top + self.bottom) / 2 + by, letters * LETTER
        left = self.right + GAP if side == "right" else self.left - GAP - wide
        return _Box(middle - LINE / 2, middle + LINE / 2, left, left + wide)

    def meets(self, other: "_Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def _floors(record: Record, scale: _Scale, words: str) -> str:
    """Floors that lie in the plot as lines, and all of them by name at its lower edge."""
    lines = "".join(
        f'<i class="floor-line" style="top:{scale.percent(m.kld_mean):.2f}%"></i>'
        for lane in floors(record).values()
        if (m := lane.metrics) and m.kld_mean and scale.holds(m.kld_mean)
    )
    return f'{lines}<span class="floor-words">{"" if lines else "↓ "}{safe(words)}</span>'
