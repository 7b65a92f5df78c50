"""What a token reads, in the prompt's own words, and the caches step by step."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvq_core.analysis.looks import attention_shares, captured_indices, keeps, most_steps_at
from kvq_core.analysis.reached import key_counts
from kvq_core.analysis.replay import movement
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.base import label_of
from ui.html.figure_menu import UNKEPT
from ui.html.looks import from_memory, look_html, whole_layer
from ui.html.reading import TINTS, reading_html
from ui.html.reading_data import reading_texts, scored_lanes
from ui.selection import Selection
from ui.views.view import Drawing, Lines, View, create_page, create_words

_KINDS = ("key", "value")
_WORDS = ["position", "text", "share of the attention"]
_CACHE = ["position", "token", "bits an element"]


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


def words_rows(record: Record, arrays: Arrays, at: Selection) -> list[list[Any]]:
    """Shares of the attention by the words of the prompt and of the answer so far, in full precision and of each lane,
    at the selected token; none where that was not looked at."""
    steps, place = record.capture.attention_steps, captured_indices(record, at.layer, at.head)
    if place is None or at.step not in steps or "reference/attention_rows" not in arrays:
        return []
    edges, texts = record.capture.position_edges, reading_texts(record, record.capture.position_edges)
    there = key_counts(record, [at.step + 1])[0]  # the token that this step reads last among them
    rows = [("Full precision", "reference"), *((label_of(record.lanes[i]), f"lane/{i}") for i in scored_lanes(record))]

    def shares(codes: np.ndarray) -> np.ndarray:
        return attention_shares(codes[steps.index(at.step), place[0], place[1]])

    return [
        [name, edge, text, share, *_WORDS]
        for name, of in rows
        if (codes := arrays.get(f"{of}/attention_rows")) is not None
        for edge, text, share in zip(edges, texts, shares(codes).tolist(), strict=False)
        if edge < there
    ]


def cache_rows(record: Record, arrays: Arrays, at: Selection) -> Iterator[list[Any]]:
    """Bits of every token in each lane's cache when the selected token was chosen, of keys and of values."""
    for index in scored_lanes(record):
        for kind in _KINDS:
            found = movement(record, arrays, index, kind)  # type: ignore[arg-type]
            if found is None:
                continue
            for position, bits in enumerate(np.round(found.at(at.step), 3).tolist()):
                yield [f"{label_of(record.lanes[index])}, {kind}s", position, at.token, bits, *_CACHE]
