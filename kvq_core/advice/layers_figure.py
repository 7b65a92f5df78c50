"""The map of layers for the report: a row a format and tensor, a column a layer, darker where it costs more alone."""

from html import escape
from math import log10

from kvq_core.advice.grounds import Grounds
from kvq_core.decision.scores import Score

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
