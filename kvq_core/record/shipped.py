"""The runs that ship with the app, and how a run is found by its id: among these first, then in a store."""

from typing import Any

from kvq_core.record.fields import Record
from kvq_core.record.store import Store, open_store
from kvq_core.shipped import shipped

RUNS = shipped("runs")


def packaged_store() -> Store:
    """The store of the runs that ship with the app."""
    return open_store(str(RUNS))


def holder(run_id: str, store: Store) -> Store:
    """Where a run lies: among those that ship, else in ``store``, where it may not be. Raises StoreError for an invalid
    id."""
    ships = packaged_store()
    return ships if ships.exists(run_id) else store


def find_run(run_id: str, store: Store | None = None) -> tuple[Record, dict[str, Any]]:
    """Return a run and its arrays: one that ships, else one of ``store``, or of KVQ_STORE where none is given.

    Raises StoreError for an invalid or unknown id, and for a damaged run.
    """
    ships = packaged_store()
    return (ships if ships.exists(run_id) else store or open_store()).load(run_id)
