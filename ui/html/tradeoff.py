"""Mean KLD against bytes in plain markup: tiers as bands, floors named at the edge, a point and an interval a lane.

No figure of Plotly's: it is there with the first answer, before that script is, and its words keep their size on a
phone.
"""

import math
from dataclasses import dataclass

from kvq_core.analysis.floors import floors
from kvq_core.analysis.scored import pooled
from kvq_core.analysis.verdict import TIERS, mean_interval
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.escape import safe, shorten
from ui.html.glossary import term
from ui.html.numbers import percent, significant

HEIGHT, LINE = 236, 15  # px: of the plot, and between two labels
CLOSE = 6  # percent of the width: a point so near on the right takes the room of a label
TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True, order=True)
class Point:
    """A lane: its index, label, share of an fp16 cache's bytes, mean KLD in nats with the ends of its interval."""

    lane: int
    label: str
    ratio: float
    kld: float
    low: float
    high: float
    number: int  # in the whole run


def points(record: Record, arrays: Arrays) -> list[Point]:
    """Of the lanes that were scored and moved at all."""
    found = []
    for index, lane in enumerate(record.lanes):
        kld = pooled(arrays, index, "kld")
        if lane.status != "done" or lane.memory is None or not len(kld) or not math.isfinite(mean := float(kld.mean())):
            continue
        low, high = mean_interval(kld.tobytes()) if len(kld) > 1 else (mean, mean)
        if mean > 0:
            found.append(Point(index, lane.label, lane.memory.kv_ratio, mean, low, high, record.number(index)))
    return found


def tradeoff(record: Record, arrays: Arrays, floor_words: str) -> str:
    """The plot; nothing where no lane can be placed."""
    found = points(record, arrays)
    if not found:
        return ""
    scale = _Scale(found)
    widest = max(1.0, *(point.ratio for point in found))
    marks = "".join(_mark(point, scale, widest) for point in found)
    said = "; ".join(
        f"{point.label}: KLD {significant(point.kld, 2)}, {percent(point.ratio)} of the bytes" for point in found
    )
    ticks = "".join(
        f'<span style="top:{scale.percent(value):.2f}%">{value:g}</span>' for value in TICKS if scale.holds(value)
    )
    across = "".join(
        f'<span style="left:{100 * part / widest:.1f}%">{percent(part)}</span>' for part in (0, 0.25, 0.5, 0.75, 1)
    )
    inside = _bands(scale) + ticks_box("down", ticks) + marks + _labels(found, scale, widest)
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


def _bands(scale: _Scale) -> str:
    tops = [scale.percent(tier.kld) if math.isfinite(tier.kld) else 0.0 for tier in TIERS]
    ends = [100.0, *tops[:-1]]
    return "".join(
        f'<div class="band {tier.tone}" style="top:{top:.2f}%;height:{end - top:.2f}%">'
        f"<span>{safe(tier.word)}</span></div>"
        for tier, top, end in zip(TIERS, tops, ends, strict=True)
    )


def _mark(point: Point, scale: _Scale, widest: float) -> str:
    top, end = scale.percent(point.high), scale.percent(max(point.low, 1e-12))
    left = 100 * point.ratio / widest
    place = f'lane-{point.number}" data-of="{point.lane}" style="left:{left:.2f}%;'
    return (
        f'<i class="whisker {place}top:{top:.2f}%;height:{end - top:.2f}%"></i>'
        f'<i class="point {place}top:{scale.percent(point.kld):.2f}%"></i>'
    )


def _labels(found: list[Point], scale: _Scale, widest: float) -> str:
    """Beside the points, on the side with room, those of a side each on a line of their own."""
    placed = sorted((scale.percent(p.kld) * HEIGHT / 100, 100 * p.ratio / widest, p) for p in found)
    last: dict[str, float] = {}
    shown = ""
    for top, left, point in placed:
        crowded = any(0 < x - left < CLOSE and abs(y - top) < LINE for y, x, _ in placed)
        side = "left" if left > 55 or crowded else "right"
        last[side] = min(max(top, last.get(side, -LINE) + LINE), HEIGHT - LINE)
        shown += (
            f'<span class="point-label {side}" data-of="{point.lane}" style="left:{left:.2f}%;top:{last[side]:.0f}px">'
            f"{safe(shorten(point.label, 24))}</span>"
        )
    return shown


def _floors(record: Record, scale: _Scale, words: str) -> str:
    """Floors that lie in the plot as lines, and all of them by name at its lower edge."""
    lines = "".join(
        f'<i class="floor-line" style="top:{scale.percent(m.kld_mean):.2f}%"></i>'
        for lane in floors(record).values()
        if (m := lane.metrics) and m.kld_mean and scale.holds(m.kld_mean)
    )
    return f'{lines}<span class="floor-words">{"" if lines else "↓ "}{safe(words)}</span>'
