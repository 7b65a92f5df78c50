"""Who may open which run on a public instance: everybody once it is shared, before that who holds its key.

A browser gets the key of a run it made and keeps it beside its history. A key is a keyed hash of the id, so that the
store holds one secret and nothing about visitors. On a private instance every run is open.
"""

import hashlib
import hmac
import re
import secrets
import time
from contextlib import suppress
from logging import WARNING
from pathlib import Path
from typing import Literal

from fsspec.implementations.local import LocalFileSystem

from kvq_core.errors import StoreError
from kvq_core.logs import log_event
from kvq_core.machine import files
from kvq_core.record.folders import as_store_error
from kvq_core.record.store import Store, Summary
from kvq_core.settings import settings

SECRET = "secret"  # its name in the store
_WHOLE = re.compile(rb"[0-9a-f]{64}")
_ABSENT = b"-"
_WAITS, _WAIT_S = 100, 0.02  # for another process that is writing the secret

Reach = Literal["private", "link", "listed"]


def reach(store: Store, run_id: str) -> Reach:
    """Who can open a run: the browser that made it, whoever has the link, or everybody who looks at the list."""
    if not settings().public:
        return "listed"
    return store.shared(run_id) or "private"


def may_open(store: Store, run_id: str, key: str = "") -> bool:
    """Whether the holder of ``key`` ("" for none) may open a run of this instance, be it there or not."""
    return reach(store, run_id) != "private" or holds_key(store, run_id, key)


def holds_key(store: Store, run_id: str, key: str) -> bool:
    """Whether ``key`` is the run's: whoever has it made the run, and may share it."""
    return hmac.compare_digest(key_of(store, run_id).encode(), _bytes(key))


def demand_open(store: Store, run_id: str, key: str = "") -> None:
    """Raises StoreError where ``may_open`` says no, in words that do not tell whether the run exists."""
    if not may_open(store, run_id, key):
        raise StoreError(
            f"Run {run_id} is not here, or whoever made it has not shared it. Ask for it to be shared, or run the "
            "comparison yourself."
        )


def demand_maker(store: Store, run_id: str, key: str) -> None:
    """Raises StoreError where somebody without its key would share a run of a public instance, or list it."""
    if settings().public and not holds_key(store, run_id, key):
        raise StoreError(f"Run {run_id} can be shared by its maker alone: give the key that came with its result.")


def listed_runs(store: Store, limit: int = 50) -> list[Summary]:
    """The runs anybody may be shown, newest first: on a public instance those their makers put on the list."""
    return [run for run in store.list(10_000) if reach(store, run.id) == "listed"][:limit]


def key_of(store: Store, run_id: str) -> str:
    """The key of a run, which only its maker is told. Raises StoreError where the store cannot be read."""
    return hmac.new(_secret(store), _bytes(run_id), hashlib.sha256).hexdigest()[:32]


def keep_store_private(store: Store) -> None:
    """What visitors of a public instance keep to themselves is read by nobody else on its machine either. Raises
    StoreError where the folder of the store cannot be had."""
    files.keep_private()
    if isinstance(store.fs, LocalFileSystem):
        with as_store_error("close the store to others"):
            root = Path(store.root)
            root.mkdir(parents=True, exist_ok=True)
            root.chmod(0o700)
            if (root / SECRET).is_file():
                (root / SECRET).chmod(0o600)


def _bytes(text: str) -> bytes:
    """Of anybody's text, which may hold half a character."""
    return text.encode(errors="backslashreplace")


def _secret(store: Store) -> bytes:
    """The store's secret, made where there is none, and made anew where it is damaged: that closes what is not shared,
    but a store without one lets nobody in."""
    path = f"{store.root}/{SECRET}"
    with as_store_error("read the store's secret"):
        for _ in range(_WAITS):
            if _WHOLE.fullmatch(found := _read(store, path)):
                return found
            if isinstance(store.fs, LocalFileSystem):
                _make_here(Path(path))
            elif found is _ABSENT:
                _make(store, path)
            else:
                time.sleep(_WAIT_S)  # another process may be filling it
        log_event("the store's secret was damaged, runs that are not shared are closed", level=WARNING)
        store.fs.pipe_file(path, _new())
        time.sleep(_WAIT_S)  # whoever found it damaged at the same moment: the last one's holds
        if _WHOLE.fullmatch(found := _read(store, path)):
            return found
    raise StoreError(f"The file {SECRET!r} of the store is damaged and cannot be replaced. Remove it.")


def _read(store: Store, path: str) -> bytes:
    try:
        return bytes(store.fs.cat_file(path))
    except FileNotFoundError:
        return _ABSENT


def _make(store: Store, path: str) -> None:
    with suppress(FileExistsError):  # another process was first
        store.fs.makedirs(store.root, exist_ok=True)
        store.fs.pipe_file(path, _new(), mode="create")


def _make_here(path: Path) -> None:
    with files.alone(path):
        there = path.read_bytes() if path.exists() else None
        if there is not None and _WHOLE.fullmatch(there):  # another process was first
            return
        if there is not None:
            log_event("the store's secret was damaged, runs that are not shared are closed", level=WARNING)
        files.write(path, _new(), 0o600)


def _new() -> bytes:
    return secrets.token_hex(32).encode()
