"""What the browser is given of a run to tint its words and to replay its answer, as JSON: texts of the position bins,
attention in them, and how the lanes' caches moved. js/words.js and js/replay.js read it."""

from typing import Any

import numpy as np

from kvq_core.analysis.looks import captured_indices
from kvq_core.analysis.prompt_text import prompt_texts
from kvq_core.analysis.replay import Kind, Movement, movement
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.along_data import binary_json, equal_runs
from ui.html.escape import bare

_KINDS: tuple[Kind, ...] = ("key", "value")
BINS = 240  # where the run has no bins of its own


def scored_lanes(record: Record) -> list[int]:
    return [at for at, lane in enumerate(record.lanes) if lane.status == "done"]


def reading_data(record: Record, arrays: Arrays, layer: int, head: int, lanes: list[int]) -> dict[str, Any]:
    """Texts of the position bins, attention in them by step that was looked at, and how the lanes' caches moved."""
    place = captured_indices(record, layer, head) if "reference/attention_rows" in arrays else None
    return {
        "run": record.id,
        "asked": [layer, head],
        "prompt": len(record.reference.prompt_token_ids),
        "steps": record.capture.attention_steps if place else [],
        "edges": record.capture.position_edges if place else _even(record),
        "texts": reading_texts(record, record.capture.position_edges if place else _even(record)),
        "reference": _rows(arrays, "reference", place),
        "lanes": [
            {
                "of": at,
                "label": bare(record.lanes[at].label),
                "rows": _rows(arrays, f"lane/{at}", place),
                **{kind: _moves(movement(record, arrays, at, kind)) for kind in _KINDS},
            }
            for at in lanes
        ],
    }


def _even(record: Record) -> list[int]:
    tokens = len(record.reference.prompt_token_ids) + len(record.reference.token_ids) - 1
    return np.unique(np.linspace(0, tokens, min(tokens, BINS) + 1).astype(int)).tolist()


def reading_texts(record: Record, edges: list[int]) -> list[str]:
    """The text of each bin; a character of several tokens stands where it ends."""
    prompt, answer = len(record.reference.prompt_token_ids), record.reference.tokens
    asked = prompt_texts(record, [min(edge, prompt) for edge in edges])
    return [
        bare(text + "".join(answer[max(0, start - prompt) : max(0, end - prompt)]))
        for text, start, end in zip(asked, edges[:-1], edges[1:], strict=True)
    ]


def _rows(arrays: Arrays, name: str, place: tuple[int, int] | None) -> dict[str, str] | None:
    rows = arrays.get(f"{name}/attention_rows")
    return None if rows is None or place is None else binary_json(np.asarray(rows[:, place[0], place[1]]), "u1")


def _moves(found: Movement | None) -> dict[str, Any] | None:
    if found is None:
        return None
    wide = found.packed is not None and found.packed.size and int(found.packed.max()) > 65_535
    return {
        "bits": equal_runs(np.round(found.bits, 3)),
        "sink": found.sink,
        "packed": None if found.packed is None else binary_json(found.packed, "f4" if wide else "u2"),
        "rewritten": found.rewritten,
    }
