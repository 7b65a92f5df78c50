"""Turns at the machine for the steps of a decision: a server gives them out, a command takes them all."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kvq_core.studies.executors import CellWork, InProcess, Outcome, Processes

T = TypeVar("T")


class SharedExecutor(Protocol):
    """An executor of studies' cells that also has other work done."""

    @property
    def wanted(self) -> bool:
        """Whether what is computed is still waited for."""

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        """As an executor of studies."""

    def each(self, work: Iterator[T]) -> Iterator[T]:
        """Every step of some work in a turn of its own; ends early where it is wanted no more."""


@dataclass
class Here:
    """The whole machine, until all is done; cells of studies on so many ``workers``."""

    workers: int = 1
    wanted = True

    def run(self, works: Iterable[CellWork]) -> Generator[Outcome]:
        yield from (InProcess() if self.workers == 1 else Processes(self.workers)).run(works)

    def each(self, work: Iterator[T]) -> Iterator[T]:
        yield from work
