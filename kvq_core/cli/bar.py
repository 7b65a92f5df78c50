"""The progress bar of the commands that take a while."""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from kvq_core.machine.interrupt import raise_lost
from kvq_core.machine.progress import Progress

if TYPE_CHECKING:
    from kvq_core.models import LoadedModel

EVERY_S = 30.0  # between two lines of a timed bar where stderr is no terminal
Result = TypeVar("Result")


class Bar:
    """A bar on stderr that vanishes when the work ends; nothing at all where stderr is a file or a pipe.

    Call it with how far the work is; it raises a Ctrl-C that was lost. ``timed``: with its rate and the time left,
    counted anew for each thing that is done, and where stderr is no terminal a line now and then. ``went_on``: what a
    Ctrl-C says is kept.
    """

    def __init__(self, timed: bool = False):
        self.timed, self.doing = timed, ""
        self.went_on: Callable[[], str] | None = None
        self.began, self.first, self.told = 0.0, 0, 0.0

    def __enter__(self) -> "Bar":
        from tqdm import tqdm

        shape = None if self.timed else "{desc} {bar} {n_fmt}/{total_fmt}"
        self.bar = tqdm(disable=None, leave=False, file=sys.stderr, bar_format=shape)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.bar.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self.went_on is not None:
            raise KeyboardInterrupt(self.went_on())

    def __call__(self, now: Progress) -> None:
        raise_lost()
        if now.doing != self.doing:
            self.doing, self.first = now.doing, now.done
            self.began = self.told = time.monotonic()
            if self.timed:
                self.bar.reset(now.total)
        self.bar.total, self.bar.n, self.bar.unit_scale = now.total, now.done, now.total >= 1_000_000
        self.bar.set_description_str(now.doing)
        if self.timed and not sys.stderr.isatty():
            self._line(now)

    def _line(self, now: Progress) -> None:
        at = time.monotonic()
        if at - self.told < EVERY_S:
            return
        self.told = at
        left = (at - self.began) / max(1, now.done - self.first) * (now.total - now.done)
        rest = f", about {timedelta(seconds=round(left))} left" if now.done > self.first else ""
        print(f"{now.doing}: {now.done} of {now.total}{rest}", file=sys.stderr, flush=True)

    def last(self, events: "Iterator[Progress | Result]") -> "Result":
        """What the events of a job end with, after its progress."""
        for event in events:
            if not isinstance(event, Progress):
                return event
            self(event)
        raise AssertionError("it ends with what was found")

    def load(self, id: str, revision: str | None = None) -> "LoadedModel":
        """A model, with what is done until it is in memory."""
        from kvq_core.models import load, prepare

        for step in prepare(id, revision):
            self(step)
        self(Progress("Loading the model"))
        return load(id, revision)
