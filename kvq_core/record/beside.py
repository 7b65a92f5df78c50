"""What lies in a store beside its runs: by-products under names of their own, with a checksum; and questions about many
runs at once."""

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from kvq_core.errors import StoreError
from kvq_core.record.fields import Record
from kvq_core.record.files import MANIFEST
from kvq_core.record.folders import as_store_error
from kvq_core.record.layouts import Folders
from kvq_core.record.shipped import find_run
from kvq_core.record.store import Store
from kvq_core.record.subset import adds_lanes, with_added

MANY = 10_000
_ID = re.compile("[0-9a-f]{16}")
_SEAL = hashlib.sha256().digest_size


def present_in(store: Store, run_ids: Iterable[str]) -> frozenset[str]:
    """Those of many ids that finished runs have in a store: of one listing where asking is slow, as in object stores.

    Raises StoreError.
    """
    asked = frozenset(run_ids)
    with as_store_error("look for runs"):
        store.fs.invalidate_cache()
        if isinstance(store.layout, Folders):
            return frozenset(filter(store.layout.committed, asked))
        here = store.fs.find(store.root, detail=True) if store.fs.isdir(store.root) else {}
    manifests = (path.rstrip("/").split("/")[-2] for path, info in here.items() if _is_manifest(path) and info["size"])
    return asked.intersection(manifests)


def _is_manifest(path: str) -> bool:
    return path.endswith(f"/{MANIFEST}")


def added_to(store: Store, run_id: str) -> list[str]:
    """Ids of the runs whose lanes were added to one, the oldest first. Raises StoreError."""
    return [run.id for run in reversed(store.list(MANY)) if run.parent == run_id]


def with_lanes(store: Store, run_id: str) -> tuple[Record, dict[str, Any]]:
    """A run with the lanes that were added to it, as far as they can be read. Raises StoreError for a run that is not
    there or damaged."""
    record, arrays = find_run(run_id, store)
    beside = []
    for child in added_to(store, run_id):
        with suppress(StoreError):
            beside.append(store.load(child))
    return with_added(record, arrays, [run for run in beside if adds_lanes(record, run[0])])


def take_back(store: Store, run_id: str) -> None:
    """Remove a run that nobody else was told of; it may be gone already. Raises StoreError."""
    if store.exists(run_id):  # it raises for what cannot be an id
        with as_store_error(f"remove run {run_id}"):
            store.layout.remove(run_id)


def is_id(text: Any) -> bool:
    """Whether it can be the id of a study or of a decision, and so a part of a name in a store."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def write_beside(store: Store, name: str, data: bytes) -> None:
    """Keep a by-product in place of what is there under its name. Raises StoreError."""
    with as_store_error(f"store {name}"):
        store.layout.keep(name, hashlib.sha256(data).digest() + data)


def read_beside(store: Store, name: str) -> bytes | None:
    """What ``write_beside`` wrote; None where there is nothing, or anything but that. Raises StoreError."""
    with as_store_error(f"read {name}"):
        try:
            sealed = bytes(store.fs.cat_file(f"{store.root}/{name}"))
        except FileNotFoundError:
            return None
    seal, data = sealed[:_SEAL], sealed[_SEAL:]
    return data if hashlib.sha256(data).digest() == seal else None


def names(store: Store, folder: str) -> tuple[str, ...]:
    """What by-products of a folder are there, by their names in the store. Raises StoreError."""
    with as_store_error(f"list {folder}"):
        store.fs.invalidate_cache()
        try:
            paths = store.fs.ls(f"{store.root}/{folder}", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return ()
    return tuple(sorted(f"{folder}/{path.rstrip('/').rsplit('/', 1)[-1]}" for path in paths))


def url_of(store: Store) -> str:
    """What ``open_store`` opens a store by, in another process too."""
    return str(store.fs.unstrip_protocol(store.root))
