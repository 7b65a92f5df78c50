"""What a selected token reads: the prompt's words by the attention that a lane gains and loses there, and the caches as
they stood at every step. js/words.js tints the words, js/replay.js moves the steps."""

from typing import Any

import numpy as np

from kvq_core.analysis.prompt_text import prompt_texts
from kvq_core.analysis.replay import Kind, Movement, movement
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.damage import captured_indices
from ui.html.along_data import as_json, equal_runs, packed
from ui.html.escape import bare, safe

MODES = (
    ("change", "what the lane gains and loses"),
    ("lane", "what the lane reads"),
    ("reference", "what full precision reads"),
)
KEYS = "Arrow keys move the scrubber; p and n go to the worst tokens."


def reading_html(record: Record, arrays: Arrays, layer: int, head: int) -> str:
    """Of one layer and query head, plain where they were not looked at; nothing of a run without scored lanes."""
    lanes = [at for at, lane in enumerate(record.lanes) if lane.status == "done"]
    last = len(record.reference.token_ids) - 1
    if not lanes or last < 1:
        return '<p class="absent">No lane of this run was scored.</p>'
    options = "".join(f'<option value="{at}">{safe(record.lanes[at].label)}</option>' for at in lanes)
    modes = "".join(f'<option value="{name}">{shown}</option>' for name, shown in MODES)
    rows = "".join(_row(record, at) for at in lanes)
    return (
        '<div id="reading"><div class="replay" role="group" aria-label="Replay of the answer">'
        '<button type="button" class="plain-button" data-replay="play">Play</button>'
        '<button type="button" class="plain-button" data-replay="-1" aria-label="One token back">‹</button>'
        '<button type="button" class="plain-button" data-replay="1" aria-label="One token on">›</button>'
        f'<label>Token<input type="range" id="replay-token" min="1" max="{last}" step="1"></label>'
        "<output></output></div>"
        f'<div class="reading-controls"><label>Lane<select id="reading-lane">{options}</select></label>'
        f'<label>Tint by<select id="reading-mode">{modes}</select></label></div>'
        '<p class="reading-said" role="status"></p>'
        '<div class="tokens reading-text" tabindex="0" role="group" aria-label="Prompt and answer"></div>'
        '<h3 class="figure-title">The caches while this token was chosen</h3>'
        '<p class="muted">Keys above, values below, from the first token of the prompt on; more bits stand out more. '
        f"{KEYS}</p>"
        f'<div class="replay-rows">{rows}</div><p class="muted replay-note"></p>'
        f'<div id="reading-data" hidden>{as_json(reading_data(record, arrays, layer, head, lanes))}</div></div>'
    )


def _row(record: Record, at: int) -> str:
    return (
        f'<div class="replay-row lane-{record.number(at)}" data-of="{at}"><span class="name"><i class="swatch"></i>'
        f"{safe(record.lanes[at].label)}</span>"
        f'<canvas data-cache="{at}" role="img" aria-label="Bits of every token in the cache"></canvas>'
        f'<span class="replay-numbers"></span></div>'
    )


def reading_data(record: Record, arrays: Arrays, layer: int, head: int, lanes: list[int]) -> dict[str, Any]:
    """Texts of the position bins, attention in them by step that was looked at, and how the lanes' caches moved."""
    place = captured_indices(record, layer, head) if "reference/attention_rows" in arrays else None
    return {
        "run": record.id,
        "asked": [layer, head],
        "prompt": len(record.reference.prompt_token_ids),
        "steps": record.capture.attention_steps if place else [],
        "edges": record.capture.position_edges if place else _even(record),
        "texts": _texts(record, record.capture.position_edges if place else _even(record)),
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


_KINDS: tuple[Kind, ...] = ("key", "value")
BINS = 240  # where the run has no bins of its own


def _even(record: Record) -> list[int]:
    tokens = len(record.reference.prompt_token_ids) + len(record.reference.token_ids) - 1
    return np.unique(np.linspace(0, tokens, min(tokens, BINS) + 1).astype(int)).tolist()


def _texts(record: Record, edges: list[int]) -> list[str]:
    """The text of each bin; a character of several tokens stands where it ends."""
    prompt, answer = len(record.reference.prompt_token_ids), record.reference.tokens
    asked = prompt_texts(record, [min(edge, prompt) for edge in edges])
    return [
        bare(text + "".join(answer[max(0, start - prompt) : max(0, end - prompt)]))
        for text, start, end in zip(asked, edges[:-1], edges[1:], strict=True)
    ]


def _rows(arrays: Arrays, name: str, place: tuple[int, int] | None) -> dict[str, str] | None:
    rows = arrays.get(f"{name}/attention_rows")
    return None if rows is None or place is None else packed(np.asarray(rows[:, place[0], place[1]]), "u1")


def _moves(found: Movement | None) -> dict[str, Any] | None:
    if found is None:
        return None
    wide = found.packed is not None and found.packed.size and int(found.packed.max()) > 65_535
    return {
        "bits": equal_runs(np.round(found.bits, 3)),
        "sink": found.sink,
        "packed": None if found.packed is None else packed(found.packed, "f4" if wide else "u2"),
        "rewritten": found.rewritten,
    }
