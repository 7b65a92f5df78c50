"""A small cache of records: panels ask for a run by its id, the last few stay in memory."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kvq_core.analysis.causes import told_of
from kvq_core.analysis.looks import with_layers
from kvq_core.errors import StoreError
from kvq_core.logs import log_error
from kvq_core.record.beside import added_to, take_back
from kvq_core.record.fields import Record
from kvq_core.record.sharing import may_open
from kvq_core.record.shipped import find_run, packaged_store
from kvq_core.record.store import Store
from kvq_core.record.subset import TOGETHER, adds_lanes, best, part_of, with_added


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
        self._joined: OrderedDict[tuple[str, ...], tuple[Record, Record, dict[str, Any]]] = OrderedDict()
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
        found = find_run(run_id, self._store)
        self.put(*found)
        return found

    def whole(self, shown: dict[str, Any]) -> tuple[Record, dict[str, Any]]:
        """Of the run that a page shows all its lanes, and behind them those that were added to it: as far as anybody
        may open them, and those of the page's ``own``; ``without`` those it has taken back. What their damage comes
        from is told where it was measured. Raises StoreError as ``get`` does."""
        record, arrays = self.get(shown["run"])
        wanted = dict.fromkeys([*self._added_to(record), *shown.get("own", ())])
        beside = tuple(run for run in wanted if run not in shown.get("without", ()))
        if not beside:
            return record, arrays
        key = record.id, *beside
        with self._lock:
            of, whole, own = self._joined.get(key, (None, record, arrays))
        if of is not record:
            whole, own = join_lanes(
                record, arrays, [found for run in beside for found in self._found(run, record.parent or record.id)]
            )
        with self._lock:
            self._joined[key] = record, whole, own
            self._joined.move_to_end(key)
            while len(self._joined) > self._keep:
                self._joined.popitem(last=False)
        return whole, own

    def _found(self, run_id: str, parent: str) -> list[tuple[Record, dict[str, Any]]]:
        """A run beside another; none where it is gone by now, or is another's."""
        with suppress(StoreError):
            found = self._store.load(run_id)
            return [found] if found[0].parent == parent else []
        return []

    def take_back(self, run_id: str, parent: str) -> None:
        """Remove a run that was added to another, as far as nobody else knows of it: one that is shared stays. Raises
        StoreError."""
        if self._store.shared(run_id) is None:
            take_back(self._store, run_id)
        with self._lock:
            self._held.pop(run_id, None)
            self._added.pop(parent, None)
            for beside in [key for key in self._joined if run_id in key]:
                del self._joined[beside]

    def _added_to(self, record: Record) -> tuple[str, ...]:
        """Looked up once; others that this process computes are told by ``put``."""
        with self._lock:
            known = self._added.get(record.id)
        if known is not None:
            return known
        try:
            found = [child for child in added_to(self._store, record.id) if may_open(self._store, child)]
        except StoreError as error:  # that must not cost the run
            log_error("no added lanes", error, run=record.id)
            return ()
        with self._lock:
            self._added[record.id] = tuple(found)
        return tuple(found)

    def drawn(self, shown: dict[str, Any]) -> tuple[Record, dict[str, Any]]:
        """Of the run that a page shows what its cards and figures are drawn from: all of it, or of many lanes some.

        Raises StoreError as ``get`` does.
        """
        record, arrays = self.whole(shown)
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


def join_lanes(
    record: Record, arrays: dict[str, Any], beside: Sequence[tuple[Record, dict[str, Any]]]
) -> tuple[Record, dict[str, Any]]:
    """A run with the lanes that were added to it, and with what their damage comes from, of the runs beside it."""
    whole, own = with_added(record, arrays, [run for run in beside if adds_lanes(record, run[0])])
    whole._beside = tuple(run.id for run, _ in beside)
    whole._looks = tuple(run for run in beside if run[0].capture.layers or run[0].spec["capture"]["detail"] != "off")
    own = dict(with_layers(whole, own))
    whole._causes = dict(filter(None, (told_of(whole, *run) for run in beside)))
    return whole, own


def drawn_lanes(record: Record, shown: Mapping[str, Any]) -> list[int]:
    """The numbers of the lanes that a page draws: all of few, of many those it has chosen, or the best of them."""
    if len(record.lanes) <= TOGETHER:
        return list(range(len(record.lanes)))
    asked = shown.get("lanes")
    chosen = [lane for lane in asked if type(lane) is int and 0 <= lane < len(record.lanes)] if asked else []
    return sorted(set(chosen))[:TOGETHER] or best(record)
