"""What tells lanes apart in static pictures beside their hues: symbols of points, dashes of lines, textures of bars."""

from math import cos, pi, sin

DASHES = {"dot": "2 3", "dash": "6 4", "dashdot": "6 3 2 3", "longdash": "10 5", "longdashdot": "10 4 2 4"}
# A tile of 6 px of each of Plotly's patterns; the dot is a line of no length.
TILES = {
    "/": "M0 6L6 0",
    "\\": "M0 0L6 6",
    "x": "M0 0L6 6M0 6L6 0",
    "-": "M0 3H6",
    "|": "M3 0V6",
    "+": "M0 3H6M3 0V6",
    ".": "M3 3h.01",
}
# Corners of each symbol on the unit circle, in quarter turns from the right, downwards.
CORNERS: dict[str, tuple[float, ...]] = {
    "square": (0.5, 1.5, 2.5, 3.5),
    "diamond": (0, 1, 2, 3),
    "triangle-up": (3, 0.33, 1.67),
    "triangle-down": (1, 2.33, 3.67),
    "hexagon": (0.33, 1, 1.67, 2.33, 3, 3.67),
}
ARMS = {"cross": (0, 1, 2, 3), "x": (0.5, 1.5, 2.5, 3.5), "star": (3, 3.8, 0.6, 1.4, 2.2)}


def dash(name: str | None) -> str:
    """``stroke-dasharray`` of a dash by Plotly's name or lengths; nothing of a solid line."""
    if name in (None, "solid"):
        return ""
    return f' stroke-dasharray="{DASHES.get(str(name), str(name).replace("px", "").replace(",", " "))}"'


def symbol(name: str, x: float, y: float, radius: float, color: str, rim: str = "") -> str:
    """A point as SVG; ``-open`` names are outlines."""
    shape, hollow, _ = name.partition("-open")
    fill = "none" if hollow else color
    if shape in ARMS:
        ends = [_turn(at, x, y, 1.15 * radius) for at in ARMS[shape]]
        path = "".join(f"M{x:.1f} {y:.1f}L{end}" for end in ends)
        return f'<path d="{path}" stroke="{color}" stroke-width="{radius * 0.7:.1f}"/>'
    stroke = f' stroke="{rim or color}"' if rim or hollow else ""
    if shape not in CORNERS:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}"{stroke}/>'
    path = "L".join(_turn(at, x, y, 1.15 * radius) for at in CORNERS[shape])
    return f'<path d="M{path}Z" fill="{fill}"{stroke}/>'


def _turn(quarters: float, x: float, y: float, radius: float) -> str:
    angle = quarters * pi / 2
    return f"{x + radius * cos(angle):.1f} {y + radius * sin(angle):.1f}"


def texture(pattern: str) -> tuple[str, str]:
    """Definition of a texture, and the fill that refers to it; empty where there is none. Ids are the whole page's, and
    the same texture is the same wherever it is defined."""
    if pattern not in TILES:
        return "", ""
    name = f"texture-{list(TILES).index(pattern)}"
    tile = f'<path d="{TILES[pattern]}" stroke="#ffffff" stroke-width="1.6" stroke-linecap="round"/>'
    return (
        f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse">{tile}</pattern>',
        f"url(#{name})",
    )
