"""Who waits, who runs, who gave up: one ticket a press of Run."""

import secrets
import threading


class Desk:
    """Tickets in the order they were taken. The only thing sessions share, and all it holds is ids and flags."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[str, threading.Event]] = {}  # ticket -> session, cancelled

    def enter(self, session: str) -> str:
        """A ticket; an older one of the same session is cancelled."""
        self.cancel(session)
        ticket = secrets.token_hex(8)
        with self._lock:
            self._open[ticket] = (session, threading.Event())
        return ticket

    def ahead(self, ticket: str) -> int:
        """Runs in front of this one."""
        with self._lock:
            order = list(self._open)
            return order.index(ticket) if ticket in order else 0

    def flag(self, ticket: str) -> threading.Event | None:
        """Set when the run should stop; None when the ticket was given back already."""
        with self._lock:
            return self._open[ticket][1] if ticket in self._open else None

    def cancel(self, session: str) -> None:
        """Stop what this session runs or waits for."""
        with self._lock:
            for ticket in [t for t, (owner, _) in self._open.items() if owner == session]:
                self._open.pop(ticket)[1].set()

    def leave(self, ticket: str) -> None:
        with self._lock:
            self._open.pop(ticket, None)
