"""The page's design as data: ui/tokens.toml, read once, for the page, its figures, pictures and reports."""

import tomllib
from pathlib import Path
from typing import Literal

from kvq_core.frozen import Frozen

FILE = Path(__file__).parents[1] / "tokens.toml"
Scale = tuple[tuple[float, str], ...]
Ground = Literal["light", "dark"]


class Round(Frozen):
    """What tells lanes of one round of hues from those of another: in Plotly's words, then in CSS."""

    dash: str
    symbol: str
    pattern: str
    edge: str
    weave: str


class LaneColors(Frozen):
    light: tuple[str, ...]
    dark: tuple[str, ...]
    rounds: tuple[Round, ...]


class Scales(Frozen):
    """Of magnitudes, and of signed values."""

    sequential: Scale
    diverging: Scale


class Tokens(Frozen):
    """Colours as ``#rrggbb`` by name, on a light and on a dark ground; sizes in px, times in ms."""

    light: dict[str, str]
    dark: dict[str, str]
    lanes: LaneColors
    scales: dict[Ground, Scales]
    text: dict[str, float]
    space: dict[str, float]
    radius: dict[str, float]
    motion: dict[str, float]
    fonts: dict[str, tuple[str, ...]]


TOKENS = Tokens(**tomllib.loads(FILE.read_text(encoding="utf-8")))


def font(name: str) -> str:
    """A family as CSS, Plotly and SVG read it."""
    return ", ".join(TOKENS.fonts[name])


def dark_of() -> dict[str, str]:
    """The colour on a dark ground of every colour a figure has on a light one. Where two tokens share the light
    colour, the first one's."""
    pairs = [(color, TOKENS.dark[name]) for name, color in TOKENS.light.items()]
    pairs += zip(TOKENS.lanes.light, TOKENS.lanes.dark, strict=True)
    light, dark = TOKENS.scales["light"], TOKENS.scales["dark"]
    for name in ("sequential", "diverging"):
        pairs += [(one[1], other[1]) for one, other in zip(getattr(light, name), getattr(dark, name), strict=True)]
    return dict(reversed(pairs))


def stops(ground: Ground, scale: Literal["sequential", "diverging"] = "diverging") -> list[str]:
    """Colours of a scale from its lowest to its highest value, at equal distances."""
    return [color for _, color in getattr(TOKENS.scales[ground], scale)]
