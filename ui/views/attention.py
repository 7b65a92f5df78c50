"""What a token reads, in the prompt's own words, and the caches step by step."""

from kvq_core.analysis.looks import keeps, most_steps_at
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.figure_menu import UNKEPT
from ui.html.looks import from_memory, look_html, whole_layer
from ui.html.reading import TINTS, reading_html
from ui.selection import Selection
from ui.views.reading_rows import cache_rows, words_rows
from ui.views.view import Drawing, Lines, View, create_page, create_words


def create_attention() -> View:
    return View("attention", create_words(), [create_page(["look-words"], ["words-read"])], compute, ("layer", "head"))


def compute(record: Record, arrays: Arrays, at: Selection) -> Drawing:
    seen = most_steps_at(record, arrays, at.layer, at.head)
    steps = 0 if seen is None else len(seen[0].capture.attention_steps)
    scored = max(0, len(record.reference.token_ids) - 1)
    missing = "" if steps == scored else "attention at every token" if steps else whole_layer(at.layer)
    own = keeps(record, at.layer, at.head) and len(record.capture.attention_steps) == scored
    unkept = not own and from_memory(record, at.layer)
    html = {
        "look-words": look_html(record, arrays, at.layer, at.head, missing, own),
        "words-read": reading_html(*(seen or (record, arrays)), at.layer, at.head, UNKEPT if unkept else ""),
    }
    lines = seen or (record, arrays)
    tables = Lines({"words": lambda: words_rows(*lines, at), "replay": lambda: list(cache_rows(*lines, at))})
    return Drawing(_said(record, at, steps, scored), html=html, tables=tables)


def _said(record: Record, at: Selection, steps: int, scored: int) -> str:
    """Whose attention it is, and what of it was kept."""
    where = f"layer {at.layer}, query head {at.head}"
    if not steps:
        return f"Attention of {where} was not kept in this run. The caches still move, as their windows say."
    part = "at every step" if steps == scored else f"looked at in {steps} of {scored} steps"
    return f"Attention of {where}, {part}. {TINTS}"
