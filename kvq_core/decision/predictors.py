"""What captures show of a layer, each as one number a layer: what may foretell what quantizing it costs."""

from collections.abc import Callable

import numpy as np

from kvq_core.analysis.foretells import by_layer, mean_by_layer
from kvq_core.analysis.key_constants import constant_sizes
from kvq_core.record.arrays import Arrays, array

OF_CHANNELS = 4  # one direction in so many is of the subspace; what lies beyond is the spectrum's tail
Predictor = Callable[[Arrays, int], np.ndarray | None]  # arrays and a lane's number -> (layers,), or not captured


def _of(name: str) -> Predictor:
    return lambda arrays, at: mean_by_layer(arrays, at, name)


def _shown(measure: str) -> Predictor:
    return lambda arrays, at: by_layer(arrays, at, measure)


def _spectrum_tail(arrays: Arrays, at: int) -> np.ndarray | None:
    """Share of the size of a head's centred keys that lies beyond its strongest directions, mean over heads."""
    values = array(arrays, "centred/key_post")
    if values is None:
        return None
    squares = np.square(values.astype(np.float64))
    kept = squares[..., : squares.shape[-1] // OF_CHANNELS].sum(-1) / np.maximum(squares.sum(-1), 1e-30)
    return np.asarray(np.sqrt(np.clip(1 - kept, 0, 1)).mean(1))


def _query_deviation(arrays: Arrays, at: int) -> np.ndarray | None:
    found = array(arrays, "subspace/deviation_prompt")
    return None if found is None else np.asarray(found[..., (found.shape[-1] - 1) // OF_CHANNELS].mean(1), np.float64)


def _key_bias(arrays: Arrays, at: int) -> np.ndarray | None:
    found = array(arrays, "pairs/key_bias")
    return None if found is None else np.sqrt(np.square(found.astype(np.float64)).sum((1, 2)))


def _key_constant(arrays: Arrays, at: int) -> np.ndarray | None:
    mean, centred = array(arrays, "mean/key_pre"), array(arrays, "centred/key_pre")
    return None if mean is None or centred is None else constant_sizes(mean, centred)


SHOWN = {  # by measure of the view Where, the predictor that it is
    "relative": "key_and_value_error",
    "score": "score_error_own_query",
    "attention": "attention_kl",
    "output": "output_error",
}
# Of a lane's whole run, as the view Where shows it, mean over heads and steps; the last four are of the prompt alone.
PREDICTORS: dict[str, tuple[str, Predictor]] = {
    "key_error": ("relative key error", _of("key_error")),
    "value_error": ("relative value error", _of("value_error")),
    "key_and_value_error": ("sum of key and value error", _shown("relative")),
    "score_error": ("score error by the keys alone", _of("uncentred_by_keys")),
    "score_error_centred": ("score error by the keys alone, modulo a constant per query", _of("delta_by_keys")),
    "score_error_own_query": ("score error with the lane's own query", _shown("score")),
    "attention_kl": ("KL of the attention", _shown("attention")),
    "weighted_value_error": ("attention-weighted value error", _of("value_weighted")),
    "output_error": ("relative error of the attention output", _shown("output")),
    "spectrum_tail": ("keys beyond a quarter of their directions", _spectrum_tail),
    "query_deviation": ("queries beyond a quarter of their directions", _query_deviation),
    "key_bias": ("norm of the key bias", _key_bias),
    "key_constant": ("constant of the keys over what differs", _key_constant),
}
