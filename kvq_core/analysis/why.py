"""What a lane's damage comes from: how much of its KLD goes when a part of its cache is kept in fp16, in one batch.

Gains need not add up: two parts may do damage that neither does alone, or the same damage twice. What is left is told
as unexplained, and never shared out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvq_core.errors import SpecError
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record

Kind = Literal["tensors", "layers", "windows"]
KIB = 1024
OWN_WINDOWS = "Its full-precision windows are the smallest its method has, so what they save cannot be told."


@dataclass(frozen=True)
class Cause:
    """A part of the cache that was kept in fp16, or, of ``windows``, no longer was.

    ``gain``: nats a token of mean KLD that go with it, of windows those that they save, with the standard error of the
    paired differences; ``more_bytes``: what that takes beside the lane as it is.
    """

    label: str
    kind: Kind
    kld: float
    gain: float
    se: float
    more_bytes: int

    @property
    def per_kib(self) -> float | None:
        """Nats a KiB; None where it takes none."""
        return self.gain * KIB / self.more_bytes if self.more_bytes > 0 else None


@dataclass(frozen=True)
class Why:
    """Of one lane: its mean KLD in this batch and as it was recorded, which differ by what the batch's size moves, and
    its causes."""

    lane: str
    kld: float
    recorded: float
    causes: tuple[Cause, ...]
    own_windows: bool = False  # whether it has windows, and its methods no smaller ones

    def of(self, kind: Kind) -> tuple[Cause, ...]:
        return tuple(cause for cause in self.causes if cause.kind == kind)

    def unexplained(self, kind: Kind) -> float | None:
        """Mean KLD that the parts of a kind do not explain one by one, negative where they explain some of it twice;
        None where there are none."""
        parts = self.of(kind)
        return self.kld - sum(cause.gain for cause in parts) if parts else None

    @property
    def ranked(self) -> tuple[Cause, ...]:
        """What to keep in fp16, the most gained for a byte first; what gains less than two standard errors is none."""
        worth = [c for c in self.causes if c.kind != "windows" and c.per_kib is not None and c.gain > 2 * c.se]
        return tuple(sorted(worth, key=lambda cause: -(cause.per_kib or 0.0)))


def why(parent: LaneRecord, record: Record, arrays: Arrays, kinds: Mapping[str, Kind]) -> Why:
    """From a run added for it: its first lane is the parent's as it is, the others one cause each, by whose label
    ``kinds`` has its kind; what has none there is told of by another version.

    Raises SpecError where the lane itself failed, or nothing was scored.
    """
    from scipy.stats import sem

    itself, *parts = record.lanes
    if itself.metrics is None or itself.memory is None or not itself.metrics.n_scored or parent.metrics is None:
        raise SpecError(f"Nothing was measured of {parent.label}: {itself.error or 'no position was scored'}.")
    kld, size = _kld(arrays, 0), _bytes(itself)
    found = []
    for at, lane in enumerate(parts, 1):
        kind = kinds.get(lane.label)
        if lane.status != "done" or lane.memory is None or kind is None:
            continue
        differs = (kld - _kld(arrays, at)) * (-1 if kind == "windows" else 1)
        se = float(sem(differs)) if len(differs) > 1 else 0.0
        more = (_bytes(lane) - size) * (-1 if kind == "windows" else 1)
        found.append(Cause(lane.label, kind, float(_kld(arrays, at).mean()), float(differs.mean()), se, more))
    return Why(parent.label, float(kld.mean()), parent.metrics.kld_mean or 0.0, tuple(found))


def _kld(arrays: Arrays, at: int) -> np.ndarray:
    return np.asarray(arrays[f"lane/{at}/kld"], dtype=np.float64)


def _bytes(lane: LaneRecord) -> int:
    assert lane.memory is not None
    return sum(lane.memory.bytes_by_part.values())
