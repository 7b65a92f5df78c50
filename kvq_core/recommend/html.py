"""The recommendation on one page, as HTML that needs nothing beside itself: the answer, its figure, what it rests on,
and the map of layers: a row a format and tensor, a column a layer, darker where it costs more alone.
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import floor, log10

from kvq_core.recommend.constraints import Advice, LaneCandidate
from kvq_core.recommend.markdown import HEADER, address, cells, question, sections
from kvq_core.recommend.policies import Grounds
from kvq_core.recommend.sensitivity import Score
from kvq_core.sizing.units import size_text

WIDTH, LEFT, ROW, TOP, BOTTOM = 720, 210, 18, 6, 34
LEAST, MOST = (238, 243, 250), (11, 98, 196)  # colours of the cheapest and of the costliest cell
DECADES = 3  # below the costliest cell: what costs less is as pale as the cheapest
TICK = 5  # layers between two numbers below


def layers_figure(found: Grounds) -> str:
    """An SVG in a figure; nothing where layers were not scored."""
    top = max((score.kld_mean for score in found.scores), default=0.0)
    if top <= 0:
        return ""
    rows = list(dict.fromkeys((score.format, score.tensor) for score in found.scores))
    layers = 1 + max(score.layer for score in found.scores)
    step, height = (WIDTH - LEFT - 4) / layers, TOP + ROW * len(rows) + BOTTOM
    cells = "".join(_cell(score, rows.index((score.format, score.tensor)), step, top) for score in found.scores)
    names = "".join(
        f'<text x="{LEFT - 8}" y="{TOP + ROW * at + 13}" text-anchor="end">{escape(f"{name}, {tensor}")}</text>'
        for at, (name, tensor) in enumerate(rows)
    )
    ticks = "".join(
        f'<text x="{LEFT + step * (at + 0.5):.1f}" y="{TOP + ROW * len(rows) + 16}" text-anchor="middle">{at}</text>'
        for at in range(0, layers, TICK)
    )
    said = (
        f"Mean KLD of one layer alone, all else fp16, over {found.scored} prompts: darkest {top:.2g} nats, palest "
        f"{top / 10**DECADES:.1g} or less."
    )
    view = f'viewBox="0 0 {WIDTH} {height - 14}" role="img" aria-label="{said}" font-size="11" fill="#3a424c"'
    return f"<figure><svg {view}>{cells}{names}{ticks}</svg><figcaption>{said}</figcaption></figure>"


def _cell(score: Score, row: int, step: float, top: float) -> str:
    share = max(0.0, 1 + log10(max(score.kld_mean, 1e-30) / top) / DECADES)
    color = ",".join(str(round(a + (b - a) * share)) for a, b in zip(LEAST, MOST, strict=True))
    return (
        f'<rect x="{LEFT + step * score.layer:.1f}" y="{TOP + ROW * row}" width="{step - 1:.1f}" height="{ROW - 2}" '
        f'fill="rgb({color})"><title>layer {score.layer}: {score.kld_mean:.2g} nats</title></rect>'
    )


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 70, 40, 12
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;"
    "background:#fff}h1{font-size:1.5rem}pre{background:#f2f4f6;padding:.7rem;overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.85rem}td,th{padding:.2rem .6rem;text-align:left;"
    "border-bottom:1px solid #d5d9de}figure{margin:1rem 0}svg{max-width:100%}"
)


def as_html(found: Advice, grounds: Grounds | None = None, page: str | None = None, decision: str | None = None) -> str:
    """``grounds``: what it rests on, where that is at hand; ``page``: where links open runs, and the ``decision`` of
    that id."""
    parts = [f"<h1>{escape(found.answer)}</h1>"]
    if found.flags:
        parts.append(f"<pre>{escape(found.flags)}</pre>")
    parts += [_list("", found.reasons), _paragraph(found.separates), _figure(found)]
    parts += [_list("Warnings", found.warnings), _list("What would help", found.helps), _table(found.front)]
    parts += [_grounds(title, head, rows) for title, head, rows in sections(grounds)]
    parts.append("" if grounds is None else layers_figure(grounds))
    parts += [
        _worst(found, page),
        _list("Not tested", found.untested),
        _paragraph(question(found, found.model, found.study)),
    ]
    parts.append(_whole(page, decision))
    title = escape(f"Which KV cache for {found.model}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "\n".join(filter(None, parts))
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n'


def _paragraph(text: str | None) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _list(title: str, lines: Sequence[str]) -> str:
    told = "".join(f"<li>{escape(line)}</li>" for line in lines)
    head = f"<h2>{escape(title)}</h2>" if title else ""
    return f"{head}<ul>{told}</ul>" if told else ""


def _worst(found: Advice, page: str | None) -> str:
    """Each the link of its run, where the page's address is known."""

    def run(link: str, id: str) -> str:
        return f"run {id}" if page is None else f'<a href="{escape(address(page, link))}">run {id}</a>'

    told = (f"<li>{escape(e.prompt)}: {e.kld:.3g} nats, {run(e.link, escape(e.run))}</li>" for e in found.worst)
    return f"<h2>Worst prompts</h2><ul>{''.join(told)}</ul>" if found.worst else ""


def _whole(page: str | None, decision: str | None) -> str:
    if page is None or decision is None:
        return ""
    return f'<p><a href="{escape(address(page, f"?decide={decision}"))}">All of it on the page</a></p>'


def _table(front: Sequence[LaneCandidate]) -> str:
    return _rows(HEADER, [cells(each) for each in front])


def _grounds(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<h2>{escape(title)}</h2>{_rows(head, rows)}"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    told = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{titles}</tr>{''.join(f'<tr>{row}</tr>' for row in told)}</table>"


def _figure(found: Advice) -> str:
    """Mean KLD with its interval against bytes, the front joined; nothing where no lane has a loss above 0."""
    shown = [each for each in found.front if each.kld_mean and each.bytes]
    if not shown:
        return ""
    scale = _Scale(shown)
    front = sorted((each for each in shown if each.front), key=lambda each: each.bytes or 0)
    line = " ".join(f"{scale.x(each.bytes or 0):.1f},{scale.y(each.kld_mean or 0):.1f}" for each in front)
    names = {each.label: at for at, each in enumerate(front)}
    marks = "".join(mark for each in shown for mark in scale.mark(each, each.label == found.label, names))
    joined = f'<polyline points="{line}" fill="none" stroke="#8a93a0" stroke-dasharray="4 3"/>'
    said = "Mean KLD in nats with 95 % intervals against the bytes of the cache; the line joins the front."
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}" font-size="11"'
    return f"<figure><svg {view}>{scale.axes()}{joined}{marks}</svg><figcaption>{said}</figcaption></figure>"


class _Scale:
    """Bytes to the right, KLD up on a logarithmic axis."""

    def __init__(self, shown: Sequence[LaneCandidate]):
        self.most = max(each.bytes or 0 for each in shown) * 1.05
        lows = [each.kld_low or each.kld_mean or 0 for each in shown]
        highs = [each.kld_high or each.kld_mean or 0 for each in shown]
        self.low = floor(log10(min(low for low in lows if low > 0)))
        self.high = floor(log10(max(highs))) + 1

    def x(self, nbytes: float) -> float:
        return LEFT + nbytes / self.most * (WIDTH - LEFT - 90)

    def y(self, kld: float) -> float:
        place = (log10(max(kld, 10.0**self.low)) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - place * (HEIGHT - BOTTOM - TOP)

    def axes(self) -> str:
        rows = [
            f'<line x1="{LEFT}" x2="{WIDTH - 90}" y1="{self.y(10.0**e):.1f}" y2="{self.y(10.0**e):.1f}" '
            f'stroke="#e3e6ea"/><text x="{LEFT - 8}" y="{self.y(10.0**e) + 4:.1f}" text-anchor="end">1e{e}</text>'
            for e in range(self.low, self.high + 1)
        ]
        marks = [
            f'<text x="{self.x(self.most * part / 4):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{size_text(round(self.most * part / 4), 3)}</text>"
            for part in range(5)
        ]
        return "".join([*rows, *marks])

    def mark(self, each: LaneCandidate, chosen: bool, names: dict[str, int]) -> Iterator[str]:
        """Its point and interval, and its name where it is on the front: above and below in turn."""
        x, y = self.x(each.bytes or 0), self.y(each.kld_mean or 0)
        color = "#0b62c4" if chosen else "#5b6470" if each.why_not is None else "#b4bac2"
        if each.kld_low is not None and each.kld_high is not None:
            ends = f'y1="{self.y(each.kld_low):.1f}" y2="{self.y(each.kld_high):.1f}"'
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{color}"/>'
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if chosen else 3}" fill="{color}"/>'
        if each.label in names:
            below = 15 if names[each.label] % 2 else -6
            yield f'<text x="{x + 7:.1f}" y="{y + below:.1f}" fill="#3a424c">{escape(each.label)}</text>'
