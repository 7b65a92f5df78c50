"""Which stored runs make way: the oldest when the store is full, and those nobody shared when they are too old."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Quota:
    """What a store may hold; None: no limit."""

    size: int | None = None  # bytes of everything under its root
    days: float | None = None  # age of a run that is not shared

    def __bool__(self) -> bool:
        return self.size is not None or self.days is not None


@dataclass(frozen=True)
class StoredRun:
    """A stored run as the limits see it."""

    id: str
    size: int  # bytes of all its files
    created: datetime  # UTC
    shared: bool = False


@dataclass(frozen=True)
class Usage:
    """What a store holds: finished runs, and bytes of everything under its root."""

    runs: int
    size: int
    oldest: datetime | None
    newest: datetime | None


def runs_to_remove(
    runs: Iterable[StoredRun], excess: int, limits: Quota, now: datetime, stays: Callable[[str], bool]
) -> list[StoredRun]:
    """The runs to remove, so that those too old go and ``excess`` bytes are freed if that is possible.

    The oldest go first, and shared ones only when no other is left; what ``stays`` names never goes. It is asked for as
    few runs as possible.
    """
    going = []
    for run in sorted(runs, key=lambda run: (run.shared, run.created)):
        if (excess > 0 or _too_old(run, limits, now)) and not stays(run.id):
            going.append(run)
            excess -= run.size
    return going


def _too_old(run: StoredRun, limits: Quota, now: datetime) -> bool:
    return limits.days is not None and not run.shared and now - run.created > limits.days * DAY


def seconds(text: bytes) -> float | None:
    """Seconds of the epoch; None where the text says none."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if isfinite(found) else None


def moment(created: str) -> datetime | None:
    """A record's time of creation; None where it is none."""
    try:
        found = datetime.fromisoformat(created)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
