"""What the server remembers of each page, and for how long."""

from datetime import datetime, timedelta
from typing import Any

from gradio import Blocks
from gradio.state_holder import SessionState, StateHolder

from ui.mail import Mail

MOST = 2000  # sessions with answers on their way, as many as Gradio keeps
KEEP = timedelta(hours=1)  # a tab whose connection was lost comes back to its page within this time


class Forgotten(dict):
    """In place of the last value of every component. Gradio keeps those for its deep links, which are closed here
    (ui/server.py): a page's figures, and the whole answer to every API call."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __missing__(self, key: Any) -> dict[str, Any]:
        return {}


class Sessions(StateHolder):
    """The states of all pages: small ones, and of closed pages none after a while; and answers that nobody fetches.

    Gradio empties the states of a closed page after an hour, but drops the page itself only once ``capacity`` newer
    ones have come.
    """

    def __init__(self, mail: Mail):
        super().__init__()
        self._mail = mail

    def __getitem__(self, session_id: str) -> SessionState:
        found = super().__getitem__(session_id)
        if not isinstance(found.config_values, Forgotten):
            found.config_values = Forgotten()
        return found

    def delete_all_expired_state(self) -> None:
        """Called by Gradio every second."""
        super().delete_all_expired_state()
        self._mail.sweep()
        now = datetime.now()
        for id, session in list(self.session_data.items()):
            if session.is_closed and now - self.time_last_used.get(id, now) > KEEP:
                with self.lock:
                    self.session_data.pop(id, None)
                    self.time_last_used.pop(id, None)


def install(blocks: Blocks) -> None:
    """Let a page that is served keep its states so, and its answers as ui/mail.py says."""
    mail = Mail(MOST)
    blocks._queue.pending_messages_per_session = mail
    sessions = Sessions(mail)
    sessions.set_blocks(blocks)
    blocks.app.state_holder = sessions
