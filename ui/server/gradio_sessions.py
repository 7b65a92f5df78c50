"""What the server remembers of each page, and for how long."""

from collections import ChainMap
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from gradio import Blocks
from gradio.state_holder import SessionState, StateHolder

from ui.server.gradio_answers import PendingMessages

MOST = 2000  # sessions with answers on their way, as many as Gradio keeps
KEEP = timedelta(hours=1)  # a tab whose connection was lost comes back to its page within this time


class Forgotten(dict):
    """In place of the last value of every component. Gradio keeps those for its deep links, which are closed here
    (ui/server/guard.py): a page's figures, and the whole answer to every API call."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __missing__(self, key: Any) -> dict[str, Any]:
        return {}


class PageState(SessionState):
    """The state of one page, and of its components only what it changed.

    Gradio's own begins with a copy of the table of all components, and describes each of them, and later each that is
    updated, for the values that are not kept: 20 ms of work a page before the first answer.
    """

    def __init__(self, blocks: Blocks):
        shared = blocks.default_config
        no_blocks: Any = SimpleNamespace(default_config=shared, blocks=())
        super().__init__(no_blocks)
        self.config_values = Forgotten()
        own: Any = self.blocks_config  # stands in for Gradio's with other types
        own.config_for_block = lambda *_: {}
        own.blocks = self.changed = ChainMap({}, shared.blocks)
        own.fns = shared.fns  # pages add none

    def leave_but(self, asked: frozenset[int]) -> None:
        """Drop the changed components but those: what is never an input is only written to, and can be as at first."""
        own = self.changed.maps[0]
        for id in own.keys() - asked:
            del own[id]


class Sessions(StateHolder):
    """The states of all pages: small ones, and of closed pages none after a while; and answers that nobody fetches.

    Gradio empties the states of a closed page after an hour, but drops the page itself only once ``capacity`` newer
    ones have come.
    """

    def __init__(self, mail: PendingMessages, blocks: Blocks):
        super().__init__()
        self._mail = mail
        self._asked = frozenset(block._id for fn in blocks.fns.values() for block in fn.inputs)
        self.set_blocks(blocks)

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            self.session_data[session_id] = PageState(self.blocks)
        return super().__getitem__(session_id)

    def delete_all_expired_state(self) -> None:
        """Called by Gradio every second."""
        super().delete_all_expired_state()
        self._mail.sweep()
        now = datetime.now()
        for id, session in list(self.session_data.items()):
            if session.is_closed:
                session.leave_but(self._asked)  # type: ignore[attr-defined]  # Gradio says SessionState; all are Pages
                if now - self.time_last_used.get(id, now) > KEEP:
                    with self.lock:
                        self.session_data.pop(id, None)
                        self.time_last_used.pop(id, None)


def install(blocks: Blocks) -> None:
    """Let a page that is served keep its states so, and its answers as ui/server/gradio_answers.py says."""
    mail = PendingMessages(MOST)
    queue: Any = blocks._queue  # whose messages it wants in a cache of its own
    queue.pending_messages_per_session = mail
    blocks.app.state_holder = Sessions(mail, blocks)
