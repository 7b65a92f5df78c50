"""Colours with a meaning: a lane keeps its colour everywhere, magnitudes and signed values have one scale each."""

# Okabe-Ito, safe for colour-blind readers; its yellow is darkened so that a line of it can be seen on white.
LANES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b5a400", "#8a8a8a")
REFERENCE = "#5b6472"
NOISE = "#98a2b3"
ACCENT = "#3450d1"

SEQUENTIAL = ((0.0, "#ffffff"), (0.25, "#fde0dd"), (0.5, "#fa9fb5"), (0.75, "#c51b8a"), (1.0, "#49006a"))
SEQUENTIAL_DARK = ((0.0, "#171c27"), (0.25, "#3b2149"), (0.5, "#7d2a72"), (0.75, "#d14a96"), (1.0, "#fcc5d4"))
DIVERGING = ((0.0, "#542788"), (0.25, "#998ec3"), (0.5, "#f7f7f7"), (0.75, "#f1a340"), (1.0, "#b35806"))

Scale = tuple[tuple[float, str], ...]


def lane_color(index: int) -> str:
    """Colour of lane ``index``, the same in cards, curves, bars and legends."""
    return LANES[index % len(LANES)]


def rgb(color: str) -> tuple[int, int, int]:
    """``#rrggbb`` as three numbers."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


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
