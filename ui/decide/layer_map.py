"""What each layer costs alone as a map of buttons, and under it what is seen of the layers before any run."""

import math

from kvq_core.recommend.policies import SIGNS, Grounds, LayerSigns, predicts
from kvq_core.recommend.sensitivity import Score
from ui.html.escape import SHADES, safe
from ui.html.numbers import plural, significant

TOLD = 3  # correlations that are told
NOTHING = (
    "Layers were not scored one by one: they are where inspection names layers at risk, or where no lane will do. "
    "The command line scores them any time: python -m kvq_core layers."
)


def map_html(found: Grounds) -> str:
    """Two rows a format, keys and values, a cell a layer; cells are numbered as the scores are."""
    if not found.scores:
        return f'<p class="absent">{safe(NOTHING)}</p>{_signs_alone(found)}'
    layers = 1 + max(score.layer for score in found.scores)
    scale = _Scale(found.scores)
    numbered = {(s.format, s.tensor, s.layer): (at, s) for at, s in enumerate(found.scores)}
    formats = list(dict.fromkeys(score.format for score in found.scores))
    rows = "".join(
        _row(format, tensor, [numbered[format, tensor, layer] for layer in range(layers)], scale)
        for format in formats
        for tensor in ("keys", "values")
    )
    said = f"KLD of single layers: {plural(len(formats), 'format')}, keys and values apart, {plural(layers, 'layer')}"
    return (
        f'<div class="scroll"><div class="layer-map" style="--layers:{layers}" role="group" aria-label="{safe(said)}">'
        f"{rows}{_signs(found.signs)}{_axis(layers)}</div></div>{scale.legend}{_predicts(found)}"
    )


class _Scale:
    """KLD on a logarithmic scale of shades."""

    def __init__(self, scores: tuple[Score, ...]):
        known = [score.kld_mean for score in scores if score.kld_mean > 0]
        self.low, self.high = (min(known), max(known)) if known else (1e-6, 1e-5)

    def shade(self, kld: float) -> int:
        if kld <= 0 or self.high <= self.low:
            return 0
        part = math.log(kld / self.low) / math.log(self.high / self.low)
        return round(SHADES * min(1.0, max(0.0, part)))

    @property
    def legend(self) -> str:
        parts = "".join(f'<i class="k{k}"></i>' for k in range(SHADES + 1))
        return (
            f'<p class="muted map-scale"><span>{significant(self.low, 2)}</span>'
            f'<span class="shades" aria-hidden="true">{parts}</span><span>'
            f"{significant(self.high, 2)} nats, logarithmic; choose a cell to open it</span></p>"
        )


def _row(format: str, tensor: str, cells: list[tuple[int, Score]], scale: _Scale) -> str:
    made = "".join(_cell(at, score, scale, first=at == 0) for at, score in cells)
    return f'<span class="row-name">{safe(format)}<small>{tensor}</small></span>{made}'


def _cell(at: int, score: Score, scale: _Scale, first: bool) -> str:
    ends = "" if score.kld_low is None else f" ({significant(score.kld_low, 2)} to {significant(score.kld_high, 2)})"
    said = f"{score.format}, {score.tensor} of layer {score.layer}: {significant(score.kld_mean, 2)} nats{ends}"
    return (
        f'<button type="button" class="cell k{scale.shade(score.kld_mean)}" data-cell="{at}" title="{safe(said)}" '
        f'aria-label="{safe(said)}" tabindex="{0 if first else -1}"></button>'
    )


def _axis(layers: int) -> str:
    step = 1 if layers <= 12 else 5 if layers <= 40 else 10
    ticks = "".join(
        f'<span class="tick" style="grid-column:{layer + 2}">{layer}</span>' for layer in range(0, layers, step)
    )
    return f'<span class="row-name muted">layer</span>{ticks}'


def _signs(signs: tuple[LayerSigns, ...]) -> str:
    """A row of bars a sign that is known, and a mark where inspection sees a risk."""
    rows = []
    for name, words in SIGNS.items():
        values = [getattr(each, name) for each in signs]
        known = [value for value in values if value is not None]
        if known and max(known) > 0:
            bars = "".join(_bar(value, max(known), words, at) for at, value in enumerate(values))
            rows.append(f'<span class="row-name sign">{safe(words)}</span>{bars}')
    if any(each.at_risk for each in signs):
        marks = "".join(
            f'<span class="risk" title="layer {each.layer}: at risk">{"▲" if each.at_risk else ""}</span>'
            for each in signs
        )
        rows.append(f'<span class="row-name sign">at risk</span>{marks}')
    return "".join(rows)


def _bar(value: float | None, most: float, words: str, layer: int) -> str:
    if value is None:
        return '<span class="bar"></span>'
    height = 100 * math.sqrt(max(0.0, value) / most)
    said = f"layer {layer}: {words} {significant(value, 2)}"
    return f'<span class="bar" title="{safe(said)}"><i style="height:{height:.0f}%"></i></span>'


def _signs_alone(found: Grounds) -> str:
    if not found.signs:
        return ""
    rows = _signs(found.signs)
    layers = len(found.signs)
    inside = f'<div class="layer-map" style="--layers:{layers}">{rows}{_axis(layers)}</div>'
    return f'<div class="scroll" tabindex="0">{inside}</div>' if rows else ""


def _predicts(found: Grounds) -> str:
    told = predicts(found)[:TOLD]
    if not told:
        return ""
    said = "; ".join(f"{each.words} with keys in {each.format} {each.rho:+.2f}" for each in told)
    return f'<p class="muted">What goes along with it, rank correlation over layers: {safe(said)}.</p>'
