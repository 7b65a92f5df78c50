"""The waiting line: one ticket a press of Run, and the engine for one ticket at a time."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvq_core.pipeline.timings import UNKNOWN_COST, Cost

CHECK_S = 1.0  # how often a waiting ticket asks whether it is still wanted


@dataclass
class Ticket:
    """A place in line. ``cancelled`` is set when its work should stop."""

    session: str
    visitor: str
    cost: Cost
    round: int
    number: int
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    cancelled: threading.Event = field(default_factory=threading.Event)
    began: float | None = None
    aside: bool = False  # behind all that are not, and gives way to them while it is at work
    gave_way: bool = False


@dataclass(frozen=True)
class LinePlace:
    """How many tickets are in front of one, and the seconds they still take, no more exact than that is known; None
    where one of them is not."""

    ahead: int
    seconds: int | None


class WaitingLine:
    """Tickets in rounds: a visitor's first ticket is in the current round, the next one in the round after it, so that
    it waits behind the first tickets of others; within a round they go in the order they were taken. Tickets that
    stand aside come after all others. The only thing sessions share, and all it holds is ids, flags and times.

    Whoever enters a ticket serves it with ``turn`` in a thread that lives until it is over: a ticket nobody serves
    would hold up the line for ever.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[str, Ticket] = {}
        self._taken = 0
        self._engine = threading.Lock()

    def enter(self, session: str, visitor: str = "", cost: Cost = UNKNOWN_COST, aside: bool = False) -> str:
        """A ticket; an older one of the same session is cancelled. ``aside``: it never holds up one that is not, see
        ``gives_way``."""
        self.cancel(session)
        with self._changed:
            line = [ticket for ticket in self._line() if ticket.aside == aside]
            own = [ticket.round + 1 for ticket in line if ticket.visitor == visitor]
            self._taken += 1
            ticket = Ticket(session, visitor, cost, max([line[0].round if line else 0, *own]), self._taken, aside=aside)
            self._open[ticket.id] = ticket
        return ticket.id

    def _line(self) -> list[Ticket]:
        """Open tickets in the order they are served, the one at work first: later ones are in its round or after it."""
        return sorted(self._open.values(), key=lambda ticket: (ticket.aside, ticket.round, ticket.number))

    def gives_way(self, ticket: str) -> bool:
        """Whether a ticket at work stands aside and another one waits that does not. Whoever serves it ends its turn
        then, and takes another: it waits until the others are over, and begins anew."""
        with self._changed:
            held = self._open.get(ticket)
            waits = any(not other.aside for other in self._open.values())
            if held is None or not held.aside or not waits:
                return False
            held.gave_way = True
            return True

    def place(self, ticket: str) -> LinePlace:
        """What is in front of this ticket."""
        with self._changed:
            line = self._line()
        at = next((i for i, other in enumerate(line) if other.id == ticket), 0)
        left = [_left(other) for other in line[:at]]
        return LinePlace(at, None if None in left else _coarse(sum(filter(None, left))))

    def count(self, visitor: str | None = None, but: str = "") -> int:
        """Open tickets, of one visitor or of all, those of session ``but`` not counted."""
        with self._changed:
            return sum(visitor in (None, t.visitor) and t.session != but for t in self._open.values())

    def bytes_at_work(self) -> int:
        """What the work that has begun was estimated to hold; it is free again when that is over."""
        with self._changed:
            return sum(ticket.cost.bytes for ticket in self._open.values() if ticket.began is not None)

    def flag(self, ticket: str) -> threading.Event | None:
        """Set when the work should stop; None when the ticket was given back already."""
        with self._changed:
            return self._open[ticket].cancelled if ticket in self._open else None

    @contextmanager
    def turn(self, ticket: str, wanted: Callable[[], bool] = lambda: True) -> Iterator[threading.Event]:
        """Wait in line, hold the engine alone, then give the ticket back.

        Yields the ticket's flag; it is set already where the ticket was cancelled while it waited, or is ``wanted`` no
        more.
        """
        with self._changed:
            held = self._open.get(ticket) or Ticket("", "", UNKNOWN_COST, 0, 0, ticket)
            while not self._changed.wait_for(lambda: self._is_over(ticket) or self._line()[0] is held, CHECK_S):
                if not wanted():
                    self._open.pop(ticket, None)
                    self._changed.notify_all()
            if self._is_over(ticket):
                held.cancelled.set()
        if held.cancelled.is_set():
            yield held.cancelled
            return
        try:
            with self._engine:  # one cancelled a moment ago may still be finishing its step
                held.began = time.monotonic()
                yield held.cancelled
        finally:
            self._put_back(held)

    def _is_over(self, ticket: str) -> bool:
        return ticket not in self._open

    def cancel(self, session: str) -> None:
        """Stop what this session runs or waits for."""
        with self._changed:
            for ticket in [t for t in self._open.values() if t.session == session]:
                self._open.pop(ticket.id).cancelled.set()
            self._changed.notify_all()

    def _put_back(self, held: Ticket) -> None:
        """A turn is over: the ticket leaves, but for one that gave way, which waits again."""
        if not held.gave_way:
            self.leave(held.id)
            return
        with self._changed:
            held.gave_way, held.began = False, None
            self._changed.notify_all()

    def leave(self, ticket: str) -> None:
        with self._changed:
            self._open.pop(ticket, None)
            self._changed.notify_all()


def _coarse(seconds: float) -> int:
    """In steps of 5 s, from 90 s on of a minute."""
    step = 5 if seconds < 90 else 60
    return step * round(seconds / step)


def _left(ticket: Ticket) -> float | None:
    """Seconds a ticket's work still takes, by its estimate; None once it takes longer than that."""
    if ticket.cost.seconds is None or ticket.began is None:
        return ticket.cost.seconds
    left = ticket.cost.seconds - (time.monotonic() - ticket.began)
    return left if left > 0 else None
