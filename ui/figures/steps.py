"""Maps that are means over steps, step by step: js/along.js makes the mean of some tokens from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.html.along_data import binary_json

MOST_BYTES = 64_000  # of all lanes' values in a figure, at two a value
CODES = 65_535
BY_STEP = {"score": "delta_mean", "attention": "attention_kl"}  # measures of which the run keeps steps


def by_steps(record: Record, arrays: Arrays, measure: str, index: int, lanes: int) -> dict[str, Any]:
    """``meta`` of one lane's heatmap of KV heads by layers; nothing where the measure is of the whole cache at the end
    of the run. ``lanes``: how many share the figure."""
    values = array(arrays, f"lane/{index}/{BY_STEP[measure]}") if measure in BY_STEP else None
    if values is None or not values.size:
        return {}
    by_step = values if measure == "attention" else np.moveaxis(values, -1, 0)  # (steps, layers, query heads)
    steps, layers, heads = by_step.shape
    kv_heads = record.environment.kv_heads
    grouped = by_step.astype(np.float64).reshape(steps, layers, kv_heads, -1).mean(-1).transpose(0, 2, 1)
    if measure == "attention":
        return of_steps(grouped, [(step, step + 1) for step in record.capture.attention_steps[:steps]])
    edges = _bins(steps, MOST_BYTES // (2 * lanes * layers * kv_heads))
    return of_steps(np.stack([grouped[start:end].mean(0) for start, end in edges]), edges)


def sink_steps(record: Record, arrays: Arrays, lanes: Sequence[int]) -> dict[str, Any]:
    """``meta`` of the heatmap of lanes by layers of what the first tokens gain, in percent points."""
    found = [array(arrays, f"lane/{index}/sink_mass") for index in lanes]
    rows = np.stack([100 * change.mean(-1) for change in found if change is not None], 1)  # (steps, lanes, layers)
    return of_steps(rows, [(step, step + 1) for step in record.capture.attention_steps[: len(rows)]])


def of_steps(values: np.ndarray, edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """``values`` (bins, rows, columns), each the mean of the steps from one edge to the other, as codes of ``scale``;
    signed ones as they are."""
    scale = float(values.max()) / CODES if values.size and values.min() >= 0 and values.max() > 0 else None
    held = binary_json(values, "f4") if scale is None else binary_json(np.round(values / scale), "u2")
    return {"steps": {"edges": list(edges), "shape": list(values.shape), "scale": scale or 1.0, "values": held}}


def _bins(steps: int, most: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, steps, min(steps, max(1, most)) + 1).astype(int).tolist()
    return list(zip(edges[:-1], edges[1:], strict=True))
