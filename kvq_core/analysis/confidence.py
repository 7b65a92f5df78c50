"""KLD by how sure the reference is of its next token: where it is sure, a small distance changes no token."""

from dataclasses import dataclass

import numpy as np

from kvq_core.analysis.scored import At
from kvq_core.record.arrays import Arrays

EDGES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)  # of the reference's top probability


@dataclass(frozen=True)
class Bucket:
    """Scored positions at which the reference's top probability is from ``low`` to ``high``, which belongs to the next
    bucket but for 1. KLD in nats; no figures where it has no position."""

    low: float
    high: float
    share: float  # of all scored positions
    mean: float | None
    median: float | None
    flips: float | None  # as a share of its positions

    @property
    def name(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def by_confidence(arrays: Arrays, at: At) -> tuple[Bucket, ...]:
    """The buckets of a lane over the positions of the generated answer, or continuation; empty where none is scored."""
    names = (f"lane/{at}/kld", f"lane/{at}/same_top", "reference/topk_probs")
    if any(name not in arrays for name in names):
        return ()
    kld, same, probs = (np.asarray(arrays[name], dtype=np.float64) for name in names)
    if not len(kld) or len(kld) != len(probs):
        return ()
    of = np.clip(np.searchsorted(EDGES, probs[:, 0], side="right") - 1, 0, len(EDGES) - 2)
    return tuple(_bucket(place, kld[of == place], same[of == place], len(kld)) for place in range(len(EDGES) - 1))


def _bucket(place: int, kld: np.ndarray, same: np.ndarray, scored: int) -> Bucket:
    low, high, share = EDGES[place], EDGES[place + 1], len(kld) / scored
    if not len(kld):
        return Bucket(low, high, share, None, None, None)
    return Bucket(low, high, share, float(kld.mean()), float(np.median(kld)), float((same == 0).mean()))
