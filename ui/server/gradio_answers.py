"""Queues of messages to pages and programs, and how messages that nobody fetches are dropped."""

import asyncio
import time
from typing import Any

from gradio.utils import LRUCache

KEEP_S = 600.0  # an answer waits so long for its reader
READING_S = 10.0  # a box that something was taken from within this time has a reader
UNREAD = 200  # messages that may wait in boxes without a reader, all of them together


class SessionMessages(asyncio.Queue):
    """The messages of one session. ``touched``: since when somebody could have taken the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.touched = time.monotonic()

    def _get(self) -> Any:
        self.touched = time.monotonic()
        return super()._get()

    def _put(self, message: Any) -> None:
        if self.empty():
            self.touched = time.monotonic()
        super()._put(message)


class PendingMessages(LRUCache[str, SessionMessages]):
    """The boxes of all sessions, as Gradio's queue wants them.

    Gradio keeps every answer until it is fetched, so whoever only asks fills the memory: an answer can be a whole page.
    Here boxes without a reader are dropped when they are old, and the oldest where there are too many messages in them.
    """

    def __setitem__(self, session: str, box: asyncio.Queue) -> None:
        super().__setitem__(session, SessionMessages())

    def __getitem__(self, session: str) -> SessionMessages:
        box = super().__getitem__(session)
        if session in self:
            self.move_to_end(session)  # an open stream asks every few seconds: others make way for new ones
        return box

    def __missing__(self, session: str) -> SessionMessages:
        return SessionMessages()  # thrown away: what is still said to a session whose box was dropped

    def __delitem__(self, session: str) -> None:
        if session in self:  # a stream that ends deletes its box, which may be gone
            super().__delitem__(session)

    def sweep(self) -> None:
        """Drop what nobody fetches. To be called in the thread of the event loop."""
        now, unread = time.monotonic(), 0
        waiting = [(box.touched, session, box.qsize()) for session, box in list(self.items()) if not box.empty()]
        for touched, session, count in sorted(waiting, reverse=True):
            if now - touched <= READING_S:
                continue
            unread += count
            if unread > UNREAD or now - touched > KEEP_S:
                del self[session]
