"""The two ways a run lies in a store: as one folder where folders can be renamed, as objects everywhere else.

Whole or not at all, whenever a writer is killed: a folder is filled aside and put in place by one rename; objects are
put under the name of the attempt, and creating the manifest that names the attempt commits them. Removing goes the
other way round: what commits a run goes first.
"""

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from fsspec import AbstractFileSystem

from kvq_core.errors import StoreError
from kvq_core.machine import files as machine
from kvq_core.record.files import ARRAYS, MANIFEST, RECORD, Manifest, parse_manifest
from kvq_core.record.folders import hidden_folder

OPENED, SHARED = "opened", "shared"  # files beside a manifest: when the run was last looked at; that it is shared
LEFT = timedelta(seconds=machine.LEFT_S)
Files = Mapping[str, Mapping[str, int]]  # sizes by name, under every run's id


class StoreLayout(Protocol):
    def committed(self, run_id: str) -> bool:
        """Whether a finished run of that id is there, intact or not."""

    def put(self, content: dict[str, bytes], manifest: Manifest, intact: Callable[[], bool]) -> None:
        """Commit a run unless another writer was first; ``intact`` tells whether the one that is there can be read."""

    def keep(self, name: str, data: bytes) -> None:
        """Put a by-product in place, whole."""

    def mark(self, run_id: str, name: str, data: bytes) -> None:
        """Put OPENED or SHARED beside a run's manifest. Raises FileNotFoundError where the run's folder is gone."""

    def remove(self, run_id: str) -> None:
        """Remove a run; it may be gone already."""

    def sweep(self, files: Files) -> bool:
        """Remove what killed writers left; whether there was any."""


class Folders:
    """On a local disk."""

    def __init__(self, root: str):
        self.root = Path(root)

    def committed(self, run_id: str) -> bool:
        return (self.root / run_id / MANIFEST).is_file()

    def put(self, content: dict[str, bytes], manifest: Manifest, intact: Callable[[], bool]) -> None:
        target = self.root / manifest.id
        self.root.mkdir(parents=True, exist_ok=True)
        self.sweep({})
        with hidden_folder(self.root, target.name, {**content, MANIFEST: manifest.seal()}) as new:
            while True:
                try:
                    new.rename(target)
                    machine.sync(self.root)
                    return
                except OSError:
                    if not target.exists():
                        raise
                if intact():
                    return
                with hidden_folder(self.root, target.name, {}) as gone:
                    target.rename(gone / "damaged")

    def keep(self, name: str, data: bytes) -> None:
        machine.write(self.root / name, data)

    def mark(self, run_id: str, name: str, data: bytes) -> None:
        folder = self.root / run_id
        folder.stat()
        machine.write(folder / name, data)

    def remove(self, run_id: str) -> None:
        with suppress(FileNotFoundError), hidden_folder(self.root, run_id, {}) as gone:
            (self.root / run_id).rename(gone / "removed")

    def sweep(self, files: Files) -> bool:
        return machine.sweep(self.root, "." + 16 * "[0-9a-f]" + "-*")


class Objects:
    """In an object store, or on any other file system."""

    def __init__(self, fs: AbstractFileSystem, root: str):
        self.fs = fs
        self.root = root

    def committed(self, run_id: str) -> bool:
        try:
            return bool(self.fs.info(f"{self.root}/{run_id}/{MANIFEST}")["size"])
        except (FileNotFoundError, NotADirectoryError):
            return False  # an empty one too: where putting is not atomic, its writer was killed before filling it

    def put(self, content: dict[str, bytes], manifest: Manifest, intact: Callable[[], bool]) -> None:
        target, attempt = f"{self.root}/{manifest.id}", secrets.token_hex(8)
        self.fs.makedirs(f"{target}/{attempt}", exist_ok=True)
        for name, data in content.items():
            self.fs.pipe_file(f"{target}/{attempt}/{name}", data)
        sealed = manifest.model_copy(update={"folder": attempt + "/"}).seal()
        damaged = self.fs.isfile(f"{target}/{MANIFEST}") and not intact()
        try:
            self.fs.pipe_file(f"{target}/{MANIFEST}", sealed, mode="overwrite" if damaged else "create")
        except FileExistsError:  # another writer was first
            self.fs.rm(f"{target}/{attempt}", recursive=True)

    def keep(self, name: str, data: bytes) -> None:
        self.fs.makedirs(f"{self.root}/{name}".rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(f"{self.root}/{name}", data)

    def mark(self, run_id: str, name: str, data: bytes) -> None:
        self.fs.pipe_file(f"{self.root}/{run_id}/{name}", data)

    def remove(self, run_id: str) -> None:
        target = f"{self.root}/{run_id}"
        with suppress(FileNotFoundError):
            raw = self.fs.cat_file(f"{target}/{MANIFEST}")
            names = [MANIFEST, OPENED, SHARED]
            with suppress(StoreError):  # what a damaged one named is swept later
                folder = parse_manifest(raw, run_id).folder
                names += [folder + RECORD, folder + ARRAYS]  # attempts that others are writing stay
            for name in names:
                with suppress(FileNotFoundError):
                    self.fs.rm_file(f"{target}/{name}")

    def sweep(self, files: Files) -> bool:
        swept = False
        for run_id, sizes in files.items():
            attempts = {name.partition("/")[0] for name in sizes if "/" in name}
            if not attempts or (len(attempts) == 1 and sizes.get(MANIFEST)):
                continue
            with suppress(StoreError):  # a manifest of another version may name any of them
                attempts.discard(self._committed(run_id))
                for name in [n for n in sizes if n.partition("/")[0] in attempts]:
                    swept |= self._remove_old(f"{self.root}/{run_id}/{name}")
        return swept

    def _committed(self, run_id: str) -> str:
        """The attempt a run's manifest names at this moment, or ""."""
        try:
            raw = self.fs.cat_file(f"{self.root}/{run_id}/{MANIFEST}")
        except FileNotFoundError:
            return ""
        return parse_manifest(raw, run_id).folder.rstrip("/") if raw else ""

    def _remove_old(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            if datetime.now(UTC) - modification_time(self.fs, path) > LEFT:
                self.fs.rm_file(path)
                return True
        return False


def modification_time(fs: AbstractFileSystem, path: str) -> datetime:
    """When a file was written; now, where the file system does not tell."""
    try:
        found: datetime = fs.modified(path)
    except NotImplementedError:
        return datetime.now(UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
