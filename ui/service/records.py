"""A small cache of records: panels ask for a run by its id, the last few stay in memory."""

import threading
from collections import OrderedDict
from typing import Any

from kvq_core.errors import StoreError
from kvq_core.logs import log_error
from kvq_core.pipeline.examples import packaged_store
from kvq_core.record.fields import Record
from kvq_core.record.part import TOGETHER, best, part_of, with_added
from kvq_core.store.beside import added_to
from kvq_core.store.sharing import may_open
from kvq_core.store.store import Store


class RecordCache:
    """A small least-recently-used cache before the runs that ship with the app and the store.

    A record never changes, so all visitors share it.
    """

    def __init__(self, store: Store, keep: int = 4):
        self._store = store
        self._keep = keep
        self._held: OrderedDict[str, tuple[Record, dict[str, Any]]] = OrderedDict()
        self._parts: OrderedDict[tuple[int, ...], tuple[Record, Record, dict[str, Any]]] = OrderedDict()
        self._added: dict[str, tuple[str, ...]] = {}  # by run, of those added to it the ones that anybody may open
        self._joined: OrderedDict[str, tuple[tuple[str, ...], Record, dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, record: Record, arrays: dict[str, Any]) -> None:
        with self._lock:
            if record.parent is not None:
                self._added.pop(record.parent, None)  # asked for anew
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

    def whole(self, run_id: str) -> tuple[Record, dict[str, Any]]:
        """``get``, and behind its lanes those that were added to it, as far as anybody may open them."""
        record, arrays = self.get(run_id)
        added = self._added_to(record)
        if not added:
            return record, arrays
        with self._lock:
            ids, whole, own = self._joined.get(run_id, ((), record, arrays))
        if ids != added:
            runs = [self._store.load(child) for child in added]
            about = record.spec.get("notes", "")
            lanes = [run for run in runs if run[0].spec["capture"]["detail"] == "off" and run[0].spec["notes"] == about]
            whole, own = with_added(record, arrays, lanes)
            with self._lock:
                self._joined[run_id] = added, whole, own
                while len(self._joined) > self._keep:
                    self._joined.popitem(last=False)
        return whole, own

    def _added_to(self, record: Record) -> tuple[str, ...]:
        """Looked up once; others that this process computes are told by ``put``."""
        if record.id not in self._added:
            try:
                found = [child for child in added_to(self._store, record.id) if may_open(self._store, child)]
            except StoreError as error:  # that must not cost the run
                log_error("no added lanes", error, run=record.id)
                return ()
            self._added[record.id] = tuple(found)
        return self._added[record.id]

    def drawn(self, shown: dict[str, Any]) -> tuple[Record, dict[str, Any]]:
        """Of the run that a page shows what its cards and figures are drawn from: all of it, or of many lanes some.

        Raises StoreError as ``get`` does.
        """
        record, arrays = self.whole(shown["run"])
        if len(record.lanes) <= TOGETHER:
            return record, arrays
        lanes = tuple(drawn_lanes(record, shown))
        with self._lock:
            whole, part, own = self._parts.get(lanes, (None, record, arrays))
        if whole is not record:
            part, own = part_of(record, arrays, lanes)
        with self._lock:
            self._parts[lanes] = record, part, own
            self._parts.move_to_end(lanes)
            while len(self._parts) > self._keep:
                self._parts.popitem(last=False)
        return part, own


def drawn_lanes(record: Record, shown: dict[str, Any]) -> list[int]:
    """Those a page has chosen of a run with many lanes, or the best of them."""
    asked = shown.get("lanes")
    chosen = [lane for lane in asked if type(lane) is int and 0 <= lane < len(record.lanes)] if asked else []
    return sorted(set(chosen))[:TOGETHER] or best(record)
