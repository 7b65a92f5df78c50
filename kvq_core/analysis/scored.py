"""What was scored of a lane, from a run's arrays, and its tail."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record

At = int | Literal["noise", "kernel"]  # a lane by its index, or a floor
P99, P999 = 99.0, 99.9  # percent
TAIL_FROM = 10_000  # pooled positions from which ten lie beyond the 99.9th percentile; below, it is one or the other
CONFIDENCE = 0.95  # of intervals
UNSCORED = "the answer is one token, which the prompt alone decides, so nothing was scored; ask for 2 tokens or more"


def pooled(arrays: Arrays, at: At, name: str) -> np.ndarray:
    """A column (positions,) in float64 of all that is scored: given answers of a conversation, then the generated one;
    empty where nothing was. What is not finite stays so."""
    parts = (arrays.get(f"lane/{at}/{place}{name}", ()) for place in ("turns_", ""))
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def has_steps(record: Record) -> bool:
    """Whether a token of the answer was fed, so that lanes were scored on the next one; else UNSCORED."""
    return len(record.reference.token_ids) > 1


@dataclass(frozen=True)
class Tail:
    """A high percentile of KLD in nats with its interval; an end is None where all positions are too few for it."""

    rank: float  # in percent
    value: float
    low: float | None
    high: float | None

    @property
    def name(self) -> str:
        return f"p{self.rank:g}"

    @property
    def interval(self) -> str:
        """Its ends in words; empty where one is open."""
        if self.low is None or self.high is None:
            return ""
        return f"{100 * CONFIDENCE:g} % interval {self.low:.2g} to {self.high:.2g}"


def tail(kld: np.ndarray) -> Tail | None:
    """Which percentile the tail of these positions is told by, and what it is: the 99.9th from TAIL_FROM positions on,
    below the 99th; None without positions.

    Its interval is that of order statistics: how many of n positions lie below a percentile is binomial, whatever their
    distribution.
    """
    if not len(kld):
        return None
    from scipy.special import bdtr

    rank = P999 if len(kld) >= TAIL_FROM else P99
    below = bdtr(np.arange(len(kld) + 1.0), len(kld), rank / 100)  # P(at most k positions lie below)
    outside = (1 - CONFIDENCE) / 2
    first = int(np.searchsorted(below, outside, side="right"))  # as the first-th smallest, counted from 1
    last = int(np.searchsorted(below, 1 - outside)) + 1
    ordered = np.sort(kld)
    low = float(ordered[first - 1]) if first >= 1 else None
    high = float(ordered[last - 1]) if last <= len(kld) else None
    return Tail(rank, float(np.percentile(kld, rank)), low, high)
