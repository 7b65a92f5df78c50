"""What a token reads as lines of a file: attention in the prompt's words, and the caches as they stood there."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvq_core.analysis.looks import attention_shares, captured_indices
from kvq_core.analysis.reached import key_counts
from kvq_core.analysis.replay import movement
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.base import label_of
from ui.html.reading_data import reading_texts, scored_lanes
from ui.selection import Selection

_KINDS = ("key", "value")
_WORDS = ["position", "text", "share of the attention"]
_CACHE = ["position", "token", "bits an element"]


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
