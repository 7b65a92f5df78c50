"""Opening a run for one browser, which holds the keys of the runs it made beside its history."""

from typing import Any

from kvq_core.errors import StoreError
from kvq_core.logs import log_error
from kvq_core.record.fields import Record
from kvq_core.settings import settings
from kvq_core.store.sharing import demand_open, key_of
from ui.service.services import Services


def open_run(services: Services, run_id: str, kept: Any) -> tuple[Record, dict[str, Any]]:
    """A run and its arrays, for a browser with this history.

    Raises StoreError for a run that is unknown, damaged, or on a public instance not shared and not this browser's.
    """
    if not services.records.ships(run_id):
        demand_open(services.store, run_id, key_in(kept, run_id))
    return services.records.get(run_id)


def key_in(kept: Any, run_id: str) -> str:
    """The key of a run in a browser's history, which is anybody's text; "" where there is none."""
    entries = kept if isinstance(kept, list) else []
    keys = (e.get("key") for e in entries if isinstance(e, dict) and e.get("id") == run_id)
    return next((key for key in keys if isinstance(key, str)), "")


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
