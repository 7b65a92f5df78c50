"""A small cache of records: panels ask for a run by its id, the last few stay in memory."""

import threading
from collections import OrderedDict
from typing import Any

from kvq_core.pipeline.examples import packaged_store
from kvq_core.record.fields import Record
from kvq_core.store.store import Store


class RecordCache:
    """A small least-recently-used cache before the runs that ship with the app and the store.

    A record never changes, so all visitors share it.
    """

    def __init__(self, store: Store, keep: int = 4):
        self._store = store
        self._keep = keep
        self._held: OrderedDict[str, tuple[Record, dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, record: Record, arrays: dict[str, Any]) -> None:
        with self._lock:
            self._held[record.id] = (record, arrays)
            self._held.move_to_end(record.id)
            while len(self._held) > self._keep:
                self._held.popitem(last=False)

    def ships(self, run_id: str) -> bool:
        """Whether a run ships with the app. Raises StoreError for an id that cannot be one."""
        return packaged_store().exists(run_id)

    def get(self, run_id: str) -> tuple[Record, dict[str, Any]]:
        """Raises StoreError for an unknown or damaged run."""
        found = None
        with self._lock:
            if isinstance(run_id, str) and run_id in self._held:  # a request may name anything
                self._held.move_to_end(run_id)
                found = self._held[run_id]
        if found is not None:
            self._store.keep_open(run_id)  # outside the lock: it may write
            return found
        found = (packaged_store() if self.ships(run_id) else self._store).load(run_id)
        self.put(*found)
        return found
