"""Layers whose keys carry a constant: a mean before RoPE that is large beside what differs between tokens."""

import numpy as np

from kvq_core.record.arrays import Arrays, array

# Between the layers of the second test model whose quantization alone costs much (10 and more) and all layers of the
# bundled one (3.2 and less); see docs/inspect.md.
LARGE = 4.0


def constant_sizes(mean: np.ndarray, centred: np.ndarray) -> np.ndarray:
    """Of every layer, the norm of the mean over the root of the squared rest, heads together: (layers,).

    mean (layers, kv_heads) and centred (layers, kv_heads, head_dim) as the record's ``mean/key_pre`` and
    ``centred/key_pre``: norms times the root of the tokens, singular values.
    """
    rest = np.square(centred.astype(np.float64)).sum((1, 2))
    return np.sqrt(np.square(mean.astype(np.float64)).sum(1) / np.maximum(rest, 1e-30))


def constant_layers(arrays: Arrays) -> dict[int, float]:
    """Layers of a run whose constant is LARGE or larger, each with its size; none where that was not captured."""
    mean, centred = array(arrays, "mean/key_pre"), array(arrays, "centred/key_pre")
    if mean is None or centred is None or not centred.any():
        return {}
    return {layer: float(size) for layer, size in enumerate(constant_sizes(mean, centred)) if size >= LARGE}
