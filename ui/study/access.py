"""Results of studies by their ids, and who may open them; a browser's own studies.

On a public instance a study opens, as a run does, for whoever holds its key until its maker shares it.
"""

import json
import threading
from collections import OrderedDict
from typing import Any

from kvq_core.errors import KvqError, StoreError
from kvq_core.record.beside import is_id, read_beside, write_beside
from kvq_core.record.sharing import holds_key, key_of
from kvq_core.settings import settings
from kvq_core.studies.example import packaged_ids, packaged_studies
from kvq_core.studies.result import StudyResult
from kvq_core.studies.stored_plan import kept_plan
from kvq_core.studies.study import stored_study
from ui.html.escape import safe
from ui.html.numbers import plural
from ui.service.access import key_in
from ui.service.lists import told_by_tab
from ui.service.services import Services

KEPT = 20  # studies of a browser's list
OPEN = 4  # results in memory
_SHARED = "studies/{}/shared"


class Results:
    """The last results, which all visitors share: one that is whole never changes."""

    def __init__(self, services: Services):
        self.services = services
        self._held: OrderedDict[str, StudyResult] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, result: StudyResult) -> None:
        with self._lock:
            self._held[result.id] = result
            self._held.move_to_end(result.id)
            while len(self._held) > OPEN:
                self._held.popitem(last=False)

    def get(self, id: str) -> StudyResult:
        """A study as it was last read here. Raises KvqError for one that is not there."""
        with self._lock:
            found = self._held.get(id) if isinstance(id, str) else None
        return self.read(id) if found is None else found

    def read(self, id: str) -> StudyResult:
        """A study with what the store holds of it now. Raises KvqError for one that is not there."""
        with self._lock:
            found = self._held.get(id) if isinstance(id, str) else None
        if found is not None and found.done >= len(found.plan.cells):
            return found
        store = packaged_studies() if id in packaged_ids() else self.services.store
        planned = found.plan if found is not None else kept_plan(str(id), store)
        result = stored_study(planned, store)
        if found is not None and found.done >= result.done:
            return found
        self.put(result)
        return result


def demand_open(services: Services, id: str, key: str) -> None:
    """Raises StoreError in words that do not tell whether the study exists."""
    if not (is_open(services, id) or holds_key(services.store, id, key)):
        raise StoreError(
            f"Study {id[:40]} is not here, or whoever made it has not shared it. Ask for it to be shared, or run it "
            "yourself."
        )


def is_open(services: Services, id: str) -> bool:
    """Whether everybody who has the link may open a study."""
    if not settings().public or id in packaged_ids():
        return True
    return is_id(id) and read_beside(services.store, _SHARED.format(id)) is not None


def is_private(services: Services, id: str) -> bool:
    """Whether only its maker can open a study, and the decisions that rest on it."""
    try:
        return not is_open(services, id)
    except KvqError:
        return False


def share(services: Services, id: str, key: str) -> None:
    """Open a study for everybody who has its link. Raises StoreError for others than its maker."""
    if settings().public and not holds_key(services.store, id, key):
        raise StoreError(f"Study {id[:40]} can be shared by its maker alone: give the key that came with its result.")
    if settings().public:
        write_beside(services.store, _SHARED.format(id), b"link")


def key_for(services: Services, id: str) -> str:
    """What the browser that began a study is given to keep; nothing on a private instance."""
    try:
        return key_of(services.store, id) if settings().public else ""
    except KvqError:
        return ""


def remember(mine: Any, result: StudyResult, key: str) -> list[dict[str, str]]:
    """A browser's list with this study first."""
    first = result.plan.prompts[0]
    title = f"{plural(len(result.plan.prompts), 'prompt')} × {plural(len(result.plan.spec.comparison.lanes), 'lane')}"
    entry = {"id": result.id, "title": title, "first": first.id[:60], "key": key}
    return [entry, *(other for other in mine_of(mine) if other["id"] != result.id)][:KEPT]


def mine_of(mine: Any) -> list[dict[str, str]]:
    """The studies of a list; what came back from the browser is anybody's text."""
    names = ("id", "title", "first", "key")
    entries = mine if isinstance(mine, list) else []
    found = [{name: str(e.get(name, ""))[:200] for name in names} for e in entries[:KEPT] if isinstance(e, dict)]
    return [entry for entry in found if is_id(entry["id"])]


def take_over(mine: Any, raw: str) -> list[dict[str, str]]:
    """A browser's list with what another of its tabs did, as js/lists.js tells it: anybody's text."""
    entries = mine_of(mine)
    try:
        return told_by_tab(entries, json.loads(raw), mine_of, KEPT)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        return entries


def mine_html(mine: Any) -> str:
    found = mine_of(mine)
    if not found:
        return '<p class="muted">Studies you begin are listed here, in this browser alone.</p>'
    items = "".join(
        f'<li><a href="?study={safe(e["id"])}">{safe(e["title"])}</a><small>{safe(e["first"])} · {safe(e["id"])}'
        "</small></li>"
        for e in found
    )
    return f'<ul class="runs">{items}</ul>'


def my_key(mine: Any, id: str) -> str:
    return key_in(mine, id)
