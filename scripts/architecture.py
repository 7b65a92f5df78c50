"""Draw docs/architecture.svg from the code: rooms as boxes, each above all that it imports, arrows along imports.

``python scripts/architecture.py`` writes the picture; tests/test_docs.py fails when it is not what this draws. Arrows
that others imply are left out; what every room may import is a strip at the bottom.
"""

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
GROUND = ("errors", "settings", "limits", "logs", "machine", "events")
WIDTH, BOX, HEIGHT, ROW, MARGIN = 1120, 118, 44, 84, 24
COLORS = {"kvq_core": "#2563eb", "ui": "#0f766e", "kernels": "#b45309"}


def room(module: str) -> str | None:
    """The room of a dotted name, as its folder or loose module is called; None outside the project."""
    top, *rest = module.split(".")
    if top == "kvq_kernels":
        return "kernels"
    if top not in ("kvq_core", "ui") or not rest or rest[0].startswith("__"):
        return None
    known = (ROOT / top / rest[0]).is_dir() or (ROOT / top / f"{rest[0]}.py").is_file()
    return f"{top}.{rest[0]}" if known else None


def imported(file: Path) -> Iterator[str]:
    """Dotted names a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms() -> networkx.DiGraph:
    """An arrow from each room to every room it imports."""
    graph = networkx.DiGraph()
    for top in ("kvq_core", "ui"):
        for file in sorted((ROOT / top).rglob("*.py")):
            own = room(".".join(file.relative_to(ROOT).with_suffix("").parts))
            if own is not None:
                graph.add_node(own)
                graph.add_edges_from(
                    (own, other) for name in imported(file) if (other := room(name)) not in (None, own)
                )
    return graph


def placed(graph: networkx.DiGraph) -> dict[str, tuple[float, float]]:
    """The middle of every box: as low as its imports allow, near what it imports."""
    places: dict[str, tuple[float, float]] = {}
    levels = list(networkx.topological_generations(graph.reverse()))
    for level, names in enumerate(levels):
        near = {n: [places[m][0] for m in graph.successors(n) if m in places] for n in names}
        order = sorted(names, key=lambda n: (sum(near[n]) / len(near[n]) if near[n] else WIDTH / 2, n))
        for at, name in enumerate(order):
            places[name] = (WIDTH * (at + 1) / (len(order) + 1), MARGIN + HEIGHT / 2 + ROW * (len(levels) - 1 - level))
    return places


def draw() -> str:
    """The picture as SVG text."""
    graph = rooms()
    ground = [name for name in graph if name.removeprefix("kvq_core.") in GROUND]
    graph.remove_nodes_from(ground)
    arrows = networkx.transitive_reduction(graph)
    places = placed(graph)
    height = max(y for _, y in places.values()) + ROW + HEIGHT
    lines = [line(places[a], places[b]) for a, b in sorted(arrows.edges)]
    boxes = [box(name, *places[name]) for name in sorted(graph)]
    names = ", ".join(sorted(name.removeprefix("kvq_core.") for name in ground))
    strip = (
        f'<text x="{WIDTH / 2}" y="{height - MARGIN}" text-anchor="middle" font-size="13" fill="#64748b">'
        f"everybody's ground: {escape(names)}</text>"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            'font-family="system-ui, sans-serif" role="img" aria-label="Rooms of the code and the way imports point">',
            f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="#f8fafc"/>',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#94a3b8"/></marker></defs>',
            *lines,
            *boxes,
            strip,
            "</svg>",
            "",
        ]
    )


def line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    top, bottom = y1 + HEIGHT / 2, y2 - HEIGHT / 2 - 2
    bend = (bottom - top) / 2
    path = f"M{x1:.0f} {top:.0f}C{x1:.0f} {top + bend:.0f} {x2:.0f} {bottom - bend:.0f} {x2:.0f} {bottom:.0f}"
    return f'<path d="{path}" fill="none" stroke="#94a3b8" stroke-width="1.2" marker-end="url(#tip)"/>'


def box(name: str, x: float, y: float) -> str:
    top, _, own = name.rpartition(".")
    color = COLORS[top or name]
    return (
        f'<rect x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{BOX}" height="{HEIGHT}" rx="6" fill="#fff" '
        f'stroke="{color}" stroke-width="1.5"/><text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" font-size="14" '
        f'fill="{color}">{escape(("ui." if top == "ui" else "") + own)}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
