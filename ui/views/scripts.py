"""What a browser does by itself: one function in parts that share their names, and nothing global but window.kvq."""

import json
from pathlib import Path

from ui.html.copying import COPIED
from ui.html.tokens import dark_of, stops

PARTS = (
    *(
        "ground",
        "plots",
        "rows",
        "legend",
        "glossary",
        "tabs",
        "tour",
        "waiting",
        "toy",
        "editor",
        "methods",
        "turns",
        "act",
        "take",
        "cards",
        "study",
        "lists",
    ),
    *("decide", "numbers", "interval", "span", "rates", "along", "worst", "words", "replay", "page"),
)
_COLORS = {
    "DARK": dark_of(),
    "DIVERGING": stops("light"),
    "DIVERGING_DARK": stops("dark"),
    "SEQUENTIAL": stops("light", "sequential"),
    "SEQUENTIAL_DARK": stops("dark", "sequential"),
}
_GIVEN = [f"  const {name} = {json.dumps(value)};" for name, value in _COLORS.items()]
_GIVEN += [f"  const copied = {COPIED};"]


def part(name: str) -> str:
    """The script of one part."""
    return (Path(__file__).parents[1] / "js" / f"{name}.js").read_text("utf-8")


PAGE_JS = "\n".join(["() => {", *_GIVEN, *map(part, PARTS), "}"])
