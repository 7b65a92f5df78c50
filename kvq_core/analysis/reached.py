"""How far an answer came: captures hold room for as many tokens as were asked for, and one that ends before leaves
zeros there, which are no measurement."""

from collections.abc import Sequence

import numpy as np

from kvq_core.record.fields import Record


def steps_taken(record: Record) -> int:
    """Decode steps of the forced rows: of every token of the answer but the last, which nobody reads."""
    return max(1, len(record.reference.token_ids) - 1)


def key_counts(record: Record, steps: Sequence[int]) -> np.ndarray:
    """Key positions that are there after so many steps: the prompt and what was written."""
    return len(record.reference.prompt_token_ids) + np.asarray(steps)


def step_edges(record: Record) -> list[int]:
    """Edges of the score map's bins of steps, up to the last that was taken."""
    return _cut(record.capture.step_edges, steps_taken(record))


def positions_read(record: Record, edges: list[int]) -> list[int]:
    """``edges`` of bins of positions, up to the last token that was read."""
    return _cut(edges, int(key_counts(record, [steps_taken(record)])[0]))


def _cut(edges: list[int], end: int) -> list[int]:
    return [*(edge for edge in edges[:-1] if edge < end), min(end, edges[-1])] if edges else []
