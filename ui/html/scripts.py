"""What a browser does by itself: one function in parts that share their names, and nothing global but window.kvq."""

import json
from collections.abc import Mapping
from pathlib import Path

from ui.html.copying import COPIED
from ui.html.tokens import dark_of, stops

PARTS = (
    *(
        "ground",
        "shades",
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
        "picture",
        "take",
        "cards",
        "land",
        "study",
        "lists",
        "opens",
    ),
    *("decide", "numbers", "interval", "span", "rates", "along", "worst", "words", "replay", "tokens", "page"),
)
FRAMED = ("shades", "numbers", "span", "words", "replay", "frame")  # of a page that shows words or replay alone
ALONE = (*("shades", "glossary", "numbers", "interval", "span", "along", "worst", "words", "replay"), "tokens", "alone")
_SCALES = {
    "DIVERGING": stops("light"),
    "DIVERGING_DARK": stops("dark"),
    "SEQUENTIAL": stops("light", "sequential"),
    "SEQUENTIAL_DARK": stops("dark", "sequential"),
}


def part(name: str) -> str:
    """The script of one part."""
    return (Path(__file__).parents[1] / "js" / f"{name}.js").read_text("utf-8")


def _given(values: Mapping[str, object]) -> list[str]:
    return [f"  const {name} = {json.dumps(value)};" for name, value in values.items()]


PAGE_JS = "\n".join(
    ["() => {", *_given({"DARK": dark_of(), **_SCALES}), f"  const copied = {COPIED};", *map(part, PARTS), "}"]
)
FRAME_JS = "\n".join(["(() => {", *_given(_SCALES), *map(part, FRAMED), "})();"])
ALONE_JS = "\n".join(["(() => {", *_given(_SCALES), *map(part, ALONE), "})();"])  # of a run that is a file
