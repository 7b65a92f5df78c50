"""Finished runs, kept whole or not at all, in any place fsspec can reach.

A run is the three files of runfiles.py under ``<id>/``; the manifest commits it: no manifest, no run. How it gets there
is told in layouts.py.
"""

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from kvq_core.errors import StoreError, abbreviate, excerpt
from kvq_core.record.fields import Record
from kvq_core.record.files import (
    CONTENT,
    MANIFEST,
    Manifest,
    Summary,
    deserialize,
    parse_manifest,
    record_json,
    serialize,
)
from kvq_core.record.folders import as_store_error, check_folder, read_run, write_run
from kvq_core.record.layouts import OPENED, SHARED, Files, Folders, Objects, StoreLayout, modification_time
from kvq_core.record.retention import Quota, StoredRun, Usage, moment, runs_to_remove, seconds
from kvq_core.settings import settings

__all__ = ["Store", "Summary", "check_folder", "open_store", "read_run", "record_json", "write_run"]

OPEN_S = 3600.0  # a run looked at within this time does not make way
# A store that does not answer holds up whoever waits for a run. So long waits botocore each time it tries a request;
# s3fs has that done S3_ATTEMPTS times. By themselves they go on for minutes.
S3_PATIENCE = {"connect_timeout": 2, "read_timeout": 5, "retries": {"total_max_attempts": 2, "mode": "standard"}}
S3_ATTEMPTS = 2
NO_LIMITS = Quota()
_ID = re.compile(r"[0-9a-f]{16}")
_CREDENTIALS = re.compile(r"//[^/@]*@")


class Store:
    """Runs under one folder or URL; ``open_store`` makes it. Several processes may use one place at once."""

    def __init__(self, fs: AbstractFileSystem, root: str, limits: Quota = NO_LIMITS):
        self.fs = fs
        self.root = root.rstrip("/")
        self.limits = limits
        self.layout: StoreLayout = Folders(self.root) if isinstance(fs, LocalFileSystem) else Objects(fs, self.root)
        self._manifests: dict[str, Manifest] = {}  # read once: what a manifest commits never changes
        self._opened: dict[str, float] = {}  # when this process last wrote a run's OPENED

    @property
    def scheme(self) -> str:
        """The kind of place, as in its URL: ``file``, ``memory``, ``s3``, ..."""
        protocol = self.fs.protocol
        return protocol if isinstance(protocol, str) else protocol[0]

    def exists(self, run_id: str) -> bool:
        """Whether a finished run of that id is here. Raises StoreError for an id that cannot be one."""
        self._path(run_id)
        with as_store_error(f"look for run {run_id}"):
            self.fs.invalidate_cache()  # another process may have written it since
            return self.layout.committed(run_id)

    def save(self, record: Record, arrays: dict[str, Tensor]) -> None:
        """Keep a finished run. The first writer of an id wins; a damaged run of that id is replaced.

        Where the store has limits, old runs make way. Raises StoreError when the run cannot be written, could not be
        read back, or does not fit.
        """
        self._path(record.id)
        self.keep(*serialize(record, arrays))

    def keep(self, content: dict[str, bytes], manifest: Manifest) -> None:
        """``save`` of a run's content files as they are."""
        run_id = manifest.id
        if self.exists(run_id) and self._intact(run_id):
            return
        if self.limits:
            self.prune(sum(map(len, content.values())) + len(manifest.seal()), {run_id})
        with as_store_error(f"store run {run_id}"):
            self.layout.put(content, manifest, lambda: self._intact(run_id))
        self.keep_open(run_id)

    def files(self, run_id: str) -> dict[str, bytes]:
        """The three files of a run as they lie here, by name; ``load`` checks them. Raises StoreError."""
        self._demand(run_id)
        with as_store_error(f"read run {run_id}"):
            raw = self.fs.cat_file(self._path(run_id, MANIFEST))
            folder = parse_manifest(raw, f"Run {run_id}").folder
            return {MANIFEST: raw, **{name: self.fs.cat_file(self._path(run_id, folder + name)) for name in CONTENT}}

    def load(self, run_id: str) -> tuple[Record, dict[str, Tensor]]:
        """The run of that id, every byte checked against its manifest.

        Raises StoreError: invalid or unknown id, damaged, or of another version.
        """
        self._demand(run_id)
        self.keep_open(run_id)
        try:
            with as_store_error(f"read run {run_id}"):
                record, arrays = deserialize(lambda name: self.fs.cat_file(self._path(run_id, name)), f"Run {run_id}")
        except StoreError:
            self._demand(run_id)  # it may have made way while it was read
            raise
        if record.id != run_id:
            raise StoreError(f"Run {run_id} is damaged: it holds run {record.id}. Run the comparison again.")
        return record, arrays

    def list(self, limit: int = 50) -> list[Summary]:
        """The newest runs first; what cannot be read is left out. Reads the manifests it has not read before."""
        with as_store_error("list the runs"):
            self.fs.invalidate_cache()
            here = self.fs.ls(self.root, detail=False) if self.fs.isdir(self.root) else []
            ids = filter(_ID.fullmatch, (path.rstrip("/").rsplit("/", 1)[-1] for path in here))
            found = [manifest.summary for manifest in self._read_manifests(ids).values()]
        return sorted(found, key=lambda s: (s.created, s.id), reverse=True)[:limit]

    def share(self, run_id: str, listed: bool = False) -> None:
        """Mark a run as shared: on a public instance's list, or only for those who have its link. The last word counts.

        Raises StoreError for a run that is not here.
        """
        self._demand(run_id)
        with as_store_error(f"share run {run_id}"):
            self.layout.mark(run_id, SHARED, b"listed" if listed else b"link")

    def shared(self, run_id: str) -> Literal["link", "listed"] | None:
        """How a run is shared; None where it is not, or not here."""
        path = self._path(run_id, SHARED)
        with as_store_error(f"look for run {run_id}"):
            try:
                return "listed" if self.fs.cat_file(path) == b"listed" else "link"
            except FileNotFoundError:
                return None

    def usage(self) -> Usage:
        """Runs and bytes, of one listing and the manifests that were not read before."""
        with as_store_error("measure the store"):
            files = self._files()
            runs = sorted(run.created for run in self._holdings(files))
        return Usage(len(runs), _total(files), runs[0] if runs else None, runs[-1] if runs else None)

    def prune(self, need: int = 0, spare: Iterable[str] = ()) -> tuple[str, ...]:
        """Remove what the limits say, so that ``need`` more bytes fit; returns the ids that are gone.

        Runs in ``spare`` stay, and those somebody looked at within OPEN_S. Unfinished writes do not count: they go by
        themselves. Raises StoreError, with nothing removed, where that does not make enough room.
        """
        with as_store_error("make room in the store"):
            files = self._files()
            if self.layout.sweep(files):
                files = self._files()
            runs = self._holdings(files)
            held = sum(run.size for run in runs)
            excess = 0 if self.limits.size is None else need + held - self.limits.size
            stays = frozenset(spare)
            going = runs_to_remove(
                runs,
                excess,
                self.limits,
                datetime.now(UTC),
                lambda run_id: run_id in stays or self._is_open(run_id, files[run_id]),
            )
            freed = sum(run.size for run in going)
            if need and excess > freed:
                raise StoreError(
                    f"The run takes {need / 1e6:,.1f} MB, which the store has no room for: it may hold "
                    f"{(self.limits.size or 0) / 1e6:,.1f} MB, and {(held - freed) / 1e6:,.1f} MB of it are "
                    "runs that are open now. Raise KVQ_STORE_LIMIT, or try again in an hour."
                )
            for run in going:
                self.layout.remove(run.id)
                self._manifests.pop(run.id, None)
                self._opened.pop(run.id, None)
        return tuple(run.id for run in going)

    def keep_open(self, run_id: str) -> None:
        """Say that somebody looks at a run, so that no process removes it within OPEN_S. Without limits, none does."""
        now = time.time()
        if not self.limits or now - self._opened.get(run_id, 0.0) < OPEN_S / 4:
            return
        with (
            suppress(StoreError),
            as_store_error(f"note the look at run {run_id}"),
        ):  # it may be gone, or the place read-only
            if self.layout.committed(run_id):
                self.layout.mark(run_id, OPENED, str(now).encode())
                self._opened[run_id] = now

    def _demand(self, run_id: str) -> None:
        if not self.exists(run_id):
            raise StoreError(f"Run {run_id!r} is not in this store. Check the link, or run the comparison again.")

    def _path(self, run_id: str, name: str = "") -> str:
        """Where a run lies. The only way an id becomes a path, so that nothing but an id ever does."""
        if not isinstance(run_id, str) or not _ID.fullmatch(run_id):
            raise StoreError(f"Run id {excerpt(run_id)} is not valid: ids are 16 hexadecimal characters.")
        return f"{self.root}/{run_id}/{name}".rstrip("/")

    def _intact(self, run_id: str) -> bool:
        try:
            self.load(run_id)
        except StoreError:
            return False
        return True

    def _files(self) -> Files:
        """Names and sizes of the files under every run's id, finished or not, and of what killed writers left."""
        self.fs.invalidate_cache()
        found: dict[str, dict[str, int]] = {}
        here = self.fs.find(self.root, detail=True) if self.fs.isdir(self.root) else {}
        for path, info in here.items():
            folder, _, name = path.removeprefix(self.root).lstrip("/").partition("/")
            if name and _ID.match(folder.removeprefix(".")):
                found.setdefault(folder, {})[name] = info["size"]
        return found

    def _holdings(self, files: Files) -> Sequence[StoredRun]:
        """The finished runs among ``_files``; one whose manifest cannot be read is as old as its file."""
        runs = {run_id: sizes for run_id, sizes in files.items() if _ID.fullmatch(run_id) and sizes.get(MANIFEST)}
        manifests = self._read_manifests(runs)
        found = []
        for run_id, sizes in runs.items():
            created = moment(manifests[run_id].summary.created) if run_id in manifests else None
            with suppress(FileNotFoundError):  # removed a moment ago
                created = created or modification_time(self.fs, self._path(run_id, MANIFEST))
                attempt = manifests[run_id].folder if run_id in manifests else ""
                size = sum(size for name, size in sizes.items() if "/" not in name or name.startswith(attempt))
                found.append(StoredRun(run_id, size, created, SHARED in sizes))
        return found

    def _read_manifests(self, ids: Iterable[str]) -> dict[str, Manifest]:
        """The manifests that are whole; those not read before are fetched at once, where the file system can."""
        ids = list(ids)
        if new := [self._path(run_id, MANIFEST) for run_id in ids if run_id not in self._manifests]:
            for path, raw in self.fs.cat(new, on_error="omit").items():
                run_id = path.rsplit("/", 2)[-2]
                with suppress(StoreError):
                    self._manifests[run_id] = parse_manifest(raw, run_id)
        return {run_id: self._manifests[run_id] for run_id in ids if run_id in self._manifests}

    def _is_open(self, run_id: str, names: Iterable[str]) -> bool:
        """Whether somebody looked at a run within OPEN_S: when OPENED says, or when it was written if not."""
        if OPENED not in names:
            return False
        path, now = self._path(run_id, OPENED), time.time()
        try:
            looked = seconds(self.fs.cat_file(path))
            if looked is None or looked > now + OPEN_S:
                looked = modification_time(self.fs, path).timestamp()
        except FileNotFoundError:
            return False
        except OSError:
            return True  # it cannot be asked
        return now - looked < OPEN_S


def open_store(url: str | None = None, limits: Quota | None = None) -> Store:
    """The store at a path or fsspec URL (``file://``, ``memory://``, ``s3://``, ...); without one, KVQ_STORE's with its
    limits.

    Raises StoreError when the URL means nothing here.
    """
    if url is None:
        found = settings()
        url, limits = found.store, limits or Quota(found.store_limit, found.store_days)
    try:
        fs, root = _file_system(url if "://" in url else str(Path(url).expanduser().absolute()))
    except (ValueError, ImportError, OSError) as error:
        place, reason = (_CREDENTIALS.sub("//***@", str(told)) for told in (url, error))
        raise StoreError(
            f"Store {excerpt(place)} cannot be opened: {abbreviate(reason, 200)}. Give a path or an fsspec URL."
        ) from None
    return Store(fs, root, limits or NO_LIMITS)


def _file_system(place: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a path or URL and the path on it; S3's gives up soon, see S3_PATIENCE."""
    scheme = place.partition("://")[0]
    if scheme not in ("s3", "s3a"):
        fs, root = fsspec.core.url_to_fs(place)
    else:
        said = fsspec.config.conf.get(scheme, {}).get("config_kwargs", {})  # fsspec's own settings come first
        fs, root = fsspec.core.url_to_fs(place, config_kwargs={**S3_PATIENCE, **said})
        fs.retries = S3_ATTEMPTS
    return fs, root


def _total(files: Files) -> int:
    return sum(sum(sizes.values()) for sizes in files.values())
