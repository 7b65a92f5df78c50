"""Where in the model a lane's damage at each token is largest."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record

PURE_SINK = 0.9  # of a head's attention, on the first tokens, mean over the steps looked at
Measure = Literal["attention", "score"]


@dataclass(frozen=True)
class WorstPlaces:
    """By scored position (positions,): layer and query head with the largest damage, how large it is, and whether that
    is KL of the attention, in nats, which was looked at in some steps, or else the mean |score delta|."""

    layer: np.ndarray
    head: np.ndarray
    value: np.ndarray
    looked: np.ndarray

    def measure(self, step: int) -> Measure:
        return "attention" if self.looked[step] else "score"


def worst_places(record: Record, arrays: Arrays, index: int) -> WorstPlaces | None:
    """Of one lane; None where the run kept no scores of it. A head that reads little but the first tokens is passed
    over, whatever its scores do, unless all are such."""
    delta = array(arrays, f"lane/{index}/delta_mean")
    if delta is None or not delta.size:
        return None
    reads = _reads(arrays, delta.shape[:2])
    layer, head, value = _largest(np.where(reads[..., None], delta, -1.0))
    looked = np.zeros(delta.shape[-1], dtype=bool)
    attention = array(arrays, f"lane/{index}/attention_kl")
    steps = [step for step in record.capture.attention_steps if step < looked.size]
    if attention is not None and len(attention) >= len(steps) > 0:
        there = np.moveaxis(np.where(reads, attention[: len(steps)], -1.0), 0, -1)
        looked[steps] = True
        layer[steps], head[steps], value[steps] = _largest(there)
    return WorstPlaces(layer, head, value, looked)


def _reads(arrays: Arrays, shape: tuple[int, ...]) -> np.ndarray:
    """(layers, query heads): heads that read more than the first tokens; all where none does, or nobody looked."""
    sinks = array(arrays, "reference/sink_mass")
    found = np.ones(shape, bool) if sinks is None or not sinks.size else sinks.mean(0) < PURE_SINK
    return found if found.any() else np.ones(shape, bool)


def _largest(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of (layers, heads, steps) by step."""
    flat = values.reshape(-1, values.shape[-1])
    at = flat.argmax(0)
    layer, head = np.unravel_index(at, values.shape[:2])
    return layer.copy(), head.copy(), flat.max(0).astype(np.float64)
