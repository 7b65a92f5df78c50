"""Colours with a meaning: a lane keeps its colour and its mark everywhere, magnitudes and signed values have one scale
each. Figures are made of the colours of a light ground; the browser draws them in those of a dark one."""

from dataclasses import dataclass

from ui.html.tokens import TOKENS, Scale

LANES = TOKENS.lanes.light
ROUNDS = TOKENS.lanes.rounds
REFERENCE, NOISE, ACCENT, INK = (TOKENS.light[name] for name in ("reference", "noise", "accent", "mute"))
GRID, MARK, BERRY, MOSS, BRONZE = (TOKENS.light[name] for name in ("grid", "mark", "berry", "moss", "bronze"))
SEQUENTIAL, DIVERGING = TOKENS.scales["light"].sequential, TOKENS.scales["light"].diverging
SEQUENTIAL_DARK = TOKENS.scales["dark"].sequential


@dataclass(frozen=True)
class LaneMark:
    """How lane ``number`` of a run, from 0, is told from the others: its hue, and from the ninth lane on also a dash, a
    symbol of points and a texture of areas, in Plotly's words."""

    color: str
    dash: str
    symbol: str
    pattern: str


def lane_mark(number: int) -> LaneMark:
    found = ROUNDS[number // len(LANES) % len(ROUNDS)]
    return LaneMark(lane_color(number), found.dash, found.symbol, found.pattern)


def lane_color(number: int) -> str:
    """Hue of lane ``number``, the same in cards, curves, bars and legends."""
    return LANES[number % len(LANES)]


def rgb(color: str) -> tuple[int, int, int]:
    """``#rrggbb`` as three numbers."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21, as WCAG 2.2 defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    shares = (value / 255 for value in rgb(color))
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def with_alpha(color: str, alpha: float) -> str:
    """The colour at an opacity, as CSS and Plotly both read it."""
    return "rgba({}, {}, {}, {:g})".format(*rgb(color), alpha)


def at(scale: Scale, x: float) -> str:
    """Colour of ``x`` in 0 .. 1 on a scale."""
    x = min(1.0, max(0.0, x))
    for (low, start), (high, end) in zip(scale, scale[1:], strict=False):
        if x <= high:
            part = (x - low) / (high - low)
            mixed = (round(a + (b - a) * part) for a, b in zip(rgb(start), rgb(end), strict=True))
            return "#{:02x}{:02x}{:02x}".format(*mixed)
    return scale[-1][1]
