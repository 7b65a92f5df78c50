"""Finished runs, kept whole or not at all, in any place fsspec can reach.

A run is the three files of runfiles.py; the manifest commits it: no manifest, no run. On a local disk all three are
written into a hidden folder beside the run's own, which one rename puts in place. Object stores cannot rename a
folder, so there the content goes under ``<id>/<name of the attempt>/``, and creating ``<id>/manifest.json`` commits it.
"""

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from kvq_core.errors import StoreError
from kvq_core.record import Record
from kvq_core.runfiles import (
    MANIFEST,
    Manifest,
    Summary,
    deserialize,
    parse_manifest,
    record_json,
    serialize,
)
from kvq_core.settings import settings

__all__ = ["Store", "Summary", "check_folder", "open_store", "read_run", "record_json", "write_run"]

_ID = re.compile(r"[0-9a-f]{16}")
_DAY = 86400.0


class Store:
    """Runs under one folder or URL; ``open_store`` makes it. Several processes may use one place at once."""

    def __init__(self, fs: AbstractFileSystem, root: str):
        self.fs = fs
        self.root = root.rstrip("/")

    def exists(self, run_id: str) -> bool:
        """Whether a finished run of that id is here. Raises StoreError for an id that cannot be one."""
        path = self._path(run_id, MANIFEST)
        with _reported(f"look for run {run_id}"):
            self.fs.invalidate_cache()  # another process may have written it since
            return bool(self.fs.isfile(path))

    def save(self, record: Record, arrays: dict[str, Tensor]) -> None:
        """Keep a finished run. The first writer of an id wins; a damaged run of that id is replaced.

        Raises StoreError when it cannot be written or could not be read back.
        """
        target = self._path(record.id)
        content, manifest = serialize(record, arrays)
        if self._intact(record.id):
            return
        with _reported(f"store run {record.id}"):
            if isinstance(self.fs, LocalFileSystem):
                self._save_folder(Path(target), {**content, MANIFEST: manifest.seal()})
            else:
                self._save_objects(target, content, manifest)

    def load(self, run_id: str) -> tuple[Record, dict[str, Tensor]]:
        """The run of that id, every byte checked against its manifest.

        Raises StoreError: invalid or unknown id, damaged, or of another version.
        """
        if not self.exists(run_id):
            raise StoreError(f"Run {run_id!r} is not in this store. Check the link, or run the comparison again.")
        with _reported(f"read run {run_id}"):
            record, arrays = deserialize(lambda name: self.fs.cat_file(self._path(run_id, name)), f"Run {run_id}")
        if record.id != run_id:
            raise StoreError(f"Run {run_id} is damaged: it holds run {record.id}. Run the comparison again.")
        return record, arrays

    def list(self, limit: int = 50) -> list[Summary]:
        """The newest runs first; what cannot be read is left out."""
        with _reported("list the runs"):
            self.fs.invalidate_cache()
            here = self.fs.ls(self.root, detail=False) if self.fs.isdir(self.root) else []
        found = []
        for run_id in filter(_ID.fullmatch, (path.rstrip("/").rsplit("/", 1)[-1] for path in here)):
            try:
                found.append(parse_manifest(self.fs.cat_file(self._path(run_id, MANIFEST)), run_id).summary)
            except (StoreError, OSError):
                continue
        return sorted(found, key=lambda s: (s.created, s.id), reverse=True)[:limit]

    def _path(self, run_id: str, name: str = "") -> str:
        """Where a run lies. The only way an id becomes a path, so that nothing but an id ever does."""
        if not isinstance(run_id, str) or not _ID.fullmatch(run_id):
            raise StoreError(f"Run id {str(run_id)[:40]!r} is not valid: ids are 16 hexadecimal characters.")
        return f"{self.root}/{run_id}/{name}".rstrip("/")

    def _intact(self, run_id: str) -> bool:
        try:
            self.load(run_id)
        except StoreError:
            return False
        return True

    def _save_folder(self, target: Path, files: dict[str, bytes]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        with _aside(target.parent, target.name, files) as aside:
            while True:
                try:
                    aside.rename(target)
                    return
                except OSError:
                    if not target.exists():
                        raise
                if self._intact(target.name):  # another writer was first
                    return
                target.rename(aside / "damaged")
                shutil.rmtree(aside / "damaged")

    def _save_objects(self, target: str, content: dict[str, bytes], manifest: Manifest) -> None:
        attempt = secrets.token_hex(8)
        self.fs.makedirs(f"{target}/{attempt}", exist_ok=True)
        for name, data in content.items():
            self.fs.pipe_file(f"{target}/{attempt}/{name}", data)
        sealed = manifest.model_copy(update={"folder": attempt + "/"}).seal()
        mode = "overwrite" if self.fs.isfile(f"{target}/{MANIFEST}") else "create"  # one that is here is damaged
        try:
            self.fs.pipe_file(f"{target}/{MANIFEST}", sealed, mode=mode)
        except FileExistsError:  # another writer was first
            self.fs.rm(f"{target}/{attempt}", recursive=True)


def open_store(url: str | None = None) -> Store:
    """The store at a path or fsspec URL (``file://``, ``memory://``, ``s3://``, ...); without one, KVQ_STORE's.

    Raises StoreError when the URL means nothing here.
    """
    url = url or settings().store
    try:
        fs, root = fsspec.core.url_to_fs(url if "://" in url else str(Path(url).expanduser().absolute()))
    except (ValueError, ImportError, OSError) as error:
        raise StoreError(f"Store {url!r} cannot be opened: {error}. Give a path or an fsspec URL.") from None
    return Store(fs, root)


def write_run(folder: Path, record: Record, arrays: dict[str, Tensor]) -> None:
    """Write a run's three files into ``folder``, all or none; other files there stay as they are.

    Raises StoreError when they cannot be written.
    """
    check_folder(folder)
    content, manifest = serialize(record, arrays)
    files = {**content, MANIFEST: manifest.seal()}
    with _reported(f"write to {folder}"):
        inside = folder.is_dir()  # a folder that is in use can only be filled file by file
        home = folder if inside else folder.parent
        home.mkdir(parents=True, exist_ok=True)
        with _aside(home, folder.name, files) as aside:
            if not inside:
                aside.rename(folder)
                return
            (folder / MANIFEST).unlink(missing_ok=True)  # from here until the last rename there is no run
            for name in files:
                (aside / name).replace(folder / name)


def check_folder(folder: Path) -> None:
    """Find out before a run is computed whether ``write_run`` could write there. Raises StoreError."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise StoreError(f"Cannot write to {folder}: {there} is not a folder. Give another one.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StoreError(f"Cannot write to {folder}: {there} is not writable. Give another one.")


def read_run(folder: Path) -> tuple[Record, dict[str, Tensor]]:
    """The run that ``write_run`` left in ``folder``.

    Raises StoreError when there is none, or it is damaged or of another version.
    """
    if not (folder / MANIFEST).is_file():
        raise StoreError(f"{folder} holds no finished run: {MANIFEST} is missing. Give a folder written by --out.")
    with _reported(f"read the run in {folder}"):
        return deserialize(lambda name: (folder / name).read_bytes(), f"The run in {folder}")


@contextmanager
def _aside(parent: Path, name: str, files: dict[str, bytes]) -> Iterator[Path]:
    """A hidden folder in ``parent`` holding ``files``; whatever of it is still there afterwards is removed."""
    aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        aside.chmod(0o755)  # mkdtemp's are for their owner alone
        for file, data in files.items():
            (aside / file).write_bytes(data)
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what killed writers left behind, once it is too old to belong to a living one."""
    for left in root.glob(".*-*"):
        with suppress(FileNotFoundError):  # another process may be sweeping too
            if _ID.fullmatch(left.name[1:17]) and time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _reported(doing: str) -> Iterator[None]:
    """Turns an OSError into a StoreError that says what was being done."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
        raise StoreError(f"Cannot {doing}: {reason}.") from None
