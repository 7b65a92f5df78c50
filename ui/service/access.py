"""Opening a run for one browser, which holds the keys of the runs it made beside its history."""

import re
from typing import Any

from kvq_core.errors import StoreError
from kvq_core.logs import log_error
from kvq_core.record.fields import Record
from kvq_core.record.sharing import demand_open, holds_key, key_of
from kvq_core.settings import settings
from ui.service.services import Services

MOST_ADDED = 40
_ID = re.compile(r"[0-9a-f]{16}")


def open_run(services: Services, run_id: str, kept: Any) -> tuple[Record, dict[str, Any]]:
    """A run and its arrays, for a browser with this history.

    Raises StoreError for a run that is unknown, damaged, or on a public instance not shared and not this browser's.
    """
    if not services.records.ships(run_id):
        demand_open(services.store, run_id, key_in(kept, run_id))
    return services.records.get(run_id)


def open_to_all(services: Services, run_id: str) -> tuple[Record, dict[str, Any]]:
    """A run with the lanes that were added to it, as far as anybody may open them: as the page shows it to somebody
    who comes by its link. Raises StoreError as ``open_run`` does."""
    open_run(services, run_id, None)
    return services.records.whole({"run": run_id})


def key_in(kept: Any, run_id: str) -> str:
    """The key of a run in a browser's history, which is anybody's text, of one it made or added to another; "" where
    there is none."""
    keys = [entry.get("key") for entry in _entries(kept) if entry.get("id") == run_id]
    keys += [key for entry in _entries(kept) for run, key in _beside(entry) if run == run_id]
    return next((key for key in keys if isinstance(key, str) and key), "")


def added_here(services: Services, run_id: str, kept: Any) -> list[str]:
    """The runs that this browser added to one, by their keys in its history, so that they are drawn with it again. On a
    private instance none: there every run beside one is."""
    if not settings().public:
        return []
    pairs = (pair for entry in _entries(kept) if entry.get("id") == run_id for pair in _beside(entry))
    return [run for run, key in pairs if holds_key(services.store, run, key)]


def _entries(kept: Any) -> list[dict[str, Any]]:
    return [entry for entry in kept if isinstance(entry, dict)] if isinstance(kept, list) else []


def _beside(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """Ids and keys of the runs that were added to one."""
    text = entry.get("beside")
    pairs = (pair.partition(":") for pair in text.split()[:MOST_ADDED]) if isinstance(text, str) else ()
    return [(run, key) for run, _, key in pairs if _ID.fullmatch(run)]


def key_for(services: Services, run_id: str) -> str:
    """What the browser that made a run is given to keep; nothing on a private instance, where every run is open, and
    nothing where the store cannot be asked: that must not cost the result."""
    if not settings().public:
        return ""
    try:
        return key_of(services.store, run_id)
    except StoreError as error:
        log_error("no key of a run", error, run=run_id)
        return ""
