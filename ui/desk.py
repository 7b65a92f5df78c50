"""Who waits, who runs, who gave up: one ticket a press of Run, and the engine for one ticket at a time."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Ticket:
    """A place in line. ``cancelled`` is set when its work should stop."""

    session: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    cancelled: threading.Event = field(default_factory=threading.Event)


class Desk:
    """Tickets in the order they were taken. The only thing sessions share, and all it holds is ids and flags."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[str, Ticket] = {}
        self._engine = threading.Lock()

    def enter(self, session: str) -> str:
        """A ticket; an older one of the same session is cancelled."""
        self.cancel(session)
        ticket = Ticket(session)
        with self._changed:
            self._open[ticket.id] = ticket
        return ticket.id

    def ahead(self, ticket: str) -> int:
        """Tickets in front of this one."""
        with self._changed:
            order = list(self._open)
            return order.index(ticket) if ticket in order else 0

    def count(self) -> int:
        """Open tickets, the one at work included."""
        with self._changed:
            return len(self._open)

    def flag(self, ticket: str) -> threading.Event | None:
        """Set when the run should stop; None when the ticket was given back already."""
        with self._changed:
            return self._open[ticket].cancelled if ticket in self._open else None

    @contextmanager
    def turn(self, ticket: str) -> Iterator[threading.Event]:
        """Wait in line, hold the engine alone, then give the ticket back.

        Yields the ticket's flag; it is set already where the ticket was cancelled while it waited.
        """
        with self._changed:
            held = self._open.get(ticket) or Ticket("", ticket)
            self._changed.wait_for(lambda: ticket not in self._open or next(iter(self._open)) == ticket)
            if ticket not in self._open:
                held.cancelled.set()
        if held.cancelled.is_set():
            yield held.cancelled
            return
        try:
            with self._engine:  # one cancelled a moment ago may still be finishing its step
                yield held.cancelled
        finally:
            self.leave(ticket)

    def cancel(self, session: str) -> None:
        """Stop what this session runs or waits for."""
        with self._changed:
            for ticket in [t for t in self._open.values() if t.session == session]:
                self._open.pop(ticket.id).cancelled.set()
            self._changed.notify_all()

    def leave(self, ticket: str) -> None:
        with self._changed:
            self._open.pop(ticket, None)
            self._changed.notify_all()
