"""What some tokens of an answer take: bytes of a token in fp16, and stored bits of each.

The figures of such tokens are computed in the browser, by js/span.js, from what ``ui.html.along_data`` sends; a test
holds them to tests/support/span_figures.py.
"""

import numpy as np

from kvq_core.analysis.scored import At
from kvq_core.record.arrays import Arrays
from kvq_core.record.memory import Memory


def fp16_token_bytes(memory: Memory) -> float:
    """Bytes of one token in an fp16 cache of the layers that the lane could quantize."""
    return memory.stored_bytes / memory.kv_ratio / memory.tokens if memory.kv_ratio and memory.tokens else 0.0


def token_bits(arrays: Arrays, at: At, kind: str) -> np.ndarray:
    """(tokens,) stored bits of an element of keys or values, mean over layers, heads and channels; empty where the run
    kept none."""
    found = np.asarray(arrays.get(f"lane/{at}/{kind}_bits", ()), dtype=np.float64)
    return found.mean((0, 1, 3)) if found.ndim == 4 else np.zeros(0)
