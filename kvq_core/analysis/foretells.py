"""Measures of where a lane's damage is, and the one that is shown and sorted by first: of those that no other beats
on a model at foretelling what the layers of a lane cost alone, intervals apart, the best on the mean over both models.
``benchmarks/predict.py`` measures it, docs/numbers.md has the table, and a test holds FIRST to it.
"""

import numpy as np

from kvq_core.record.arrays import Arrays, array

FIRST = "score"
MEASURES = {
    "relative": ("relative error of keys and values together", ("key_error", "value_error")),
    "score": ("mean score error", ("delta_mean",)),
    "attention": ("KL of the attention", ("attention_kl",)),
    "output": ("relative error of the attention output", ("output_relative",)),
}  # by name in words, and of which arrays of a lane it is the sum
_STEPS_FIRST = ("attention_kl", "delta_by_keys", "uncentred_by_keys")


def mean_by_layer(arrays: Arrays, at: int, name: str) -> np.ndarray | None:
    """(layers,) of an array of lane ``at``, the mean over all its other axes; None where it was not captured."""
    found = array(arrays, f"lane/{at}/{name}")
    if found is None or not found.size:
        return None
    layers = int(name in _STEPS_FIRST)
    return np.asarray(np.moveaxis(found, layers, 0).reshape(found.shape[layers], -1).mean(1), np.float64)


def measure_by_layer(arrays: Arrays, at: int, measure: str = FIRST) -> np.ndarray | None:
    """(layers,) of a measure of lane ``at``; None where it was not captured."""
    found = [mean_by_layer(arrays, at, name) for name in MEASURES[measure][1]]
    known = [part for part in found if part is not None]
    return np.sum(known, axis=0) if len(known) == len(found) else None
