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
GROUND = ("errors", "frozen", "settings", "limits", "logs", "machine", "shape", "engines", "shipped")
WIDTH, BOX, HEIGHT, ROW, MARGIN = 1240, 112, 40, 92, 24
GAP, KNOT = 20, 12  # between boxes, and the room of an arrow that passes a row
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


Knot = tuple[str, str, int]  # where the arrow from one room to another passes a row


def threaded(arrows: networkx.DiGraph) -> tuple[networkx.DiGraph, list[list[str | Knot]]]:
    """Arrows cut at every row they pass, and the rows from the lowest up."""
    rows: list[list[str | Knot]] = [sorted(names) for names in networkx.topological_generations(arrows.reverse())]
    level = {name: number for number, names in enumerate(rows) for name in names}
    graph = networkx.DiGraph()
    graph.add_nodes_from(arrows)
    for a, b in sorted(arrows.edges):
        knots: list[str | Knot] = [(a, b, number) for number in range(level[a] - 1, level[b], -1)]
        for knot, number in zip(knots, range(level[a] - 1, level[b], -1), strict=True):
            rows[number].append(knot)
        networkx.add_path(graph, [a, *knots, b])
    return graph, rows


def positions(graph: networkx.DiGraph, rows: list[list[str | Knot]]) -> dict[str | Knot, tuple[float, float]]:
    """The middle of every box and knot: near what it imports, then near what imports it, a few times over."""
    across: dict[str | Knot, float] = {}
    for turn in range(8):
        up = turn % 2 == 0
        for names in rows if up else reversed(rows):
            near = {
                n: [across[m] for m in (graph.successors(n) if up else graph.predecessors(n)) if m in across]
                for n in names
            }
            names.sort(key=lambda n: (sum(near[n]) / len(near[n]) if near[n] else across.get(n, WIDTH / 2), str(n)))
            widths = [BOX + GAP if isinstance(name, str) else KNOT for name in names]
            spread = max(1.0, WIDTH / (sum(widths) + BOX)) ** 0.5
            at = (WIDTH - spread * sum(widths)) / 2
            for name, width in zip(names, widths, strict=True):
                across[name] = at + spread * width / 2
                at += spread * width
    return {
        name: (across[name], MARGIN + HEIGHT / 2 + ROW * (len(rows) - 1 - level))
        for level, names in enumerate(rows)
        for name in names
    }


def draw() -> str:
    """The picture as SVG text."""
    graph = rooms()
    ground = [name for name in graph if name.removeprefix("kvq_core.") in GROUND]
    graph.remove_nodes_from(ground)
    arrows = networkx.transitive_reduction(graph)
    threads, rows = threaded(arrows)
    places = positions(threads, rows)
    height = max(y for _, y in places.values()) + ROW + HEIGHT
    lines = [line([places[name] for name in way(threads, a, b)]) for a, b in sorted(arrows.edges)]
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


def way(threads: networkx.DiGraph, a: str, b: str) -> list[str | Knot]:
    """From one room to the other, knots between."""
    return [a, *sorted((n for n in threads if isinstance(n, tuple) and n[:2] == (a, b)), key=lambda n: -n[2]), b]


def line(points: list[tuple[float, float]]) -> str:
    """An arrow through all points: straight down beside the boxes of a row, bent between rows."""
    (x, y), *others = points
    path = f"M{x:.0f} {y + HEIGHT / 2:.0f}"
    for number, (x2, y2) in enumerate(others, 1):
        top, bottom = y + HEIGHT / 2, y2 - HEIGHT / 2 - 2 * (number == len(others))
        bend = (bottom - top) / 2
        path += f"C{x:.0f} {top + bend:.0f} {x2:.0f} {bottom - bend:.0f} {x2:.0f} {bottom:.0f}"
        if number < len(others):
            path += f"V{y2 + HEIGHT / 2:.0f}"
        x, y = x2, y2
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
