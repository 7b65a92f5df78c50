"""Runs as plain folders: what ``--out`` writes, and how a local store puts a whole folder in place at once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from kvq_core.errors import PATH, KvqError, StoreError, abbreviate
from kvq_core.machine.files import folder_aside, sync, sync_folder
from kvq_core.record.fields import Record
from kvq_core.record.files import MANIFEST, deserialize, serialize


def write_run(folder: Path, record: Record, arrays: dict[str, Tensor]) -> None:
    """Write a run's three files into ``folder``, all or none; other files there stay as they are.

    Raises StoreError when they cannot be written.
    """
    check_folder(folder)
    content, manifest = serialize(record, arrays)
    files = {**content, MANIFEST: manifest.seal()}
    with as_store_error(f"write to {abbreviate(str(folder), PATH)}"):
        inside = folder.is_dir()  # a folder that is in use can only be filled file by file
        home = folder if inside else folder.parent
        home.mkdir(parents=True, exist_ok=True)
        with hidden_folder(home, folder.name, files) as new:
            if not inside:
                new.rename(folder)
            else:
                (folder / MANIFEST).unlink(missing_ok=True)  # from here until the last rename there is no run
                for name in files:
                    (new / name).replace(folder / name)
        sync(home)


def check_folder(folder: Path) -> None:
    """Find out before a run is computed whether ``write_run`` could write there. Raises StoreError."""
    there, place = folder.absolute(), abbreviate(str(folder), PATH)
    with as_store_error(f"write to {place}"):
        while not there.exists():
            there = there.parent
    if not there.is_dir():
        raise StoreError(f"Cannot write to {place}: {abbreviate(str(there), PATH)} is not a folder. Give another one.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StoreError(f"Cannot write to {place}: {abbreviate(str(there), PATH)} is not writable. Give another one.")


def read_run(folder: Path) -> tuple[Record, dict[str, Tensor]]:
    """The run that ``write_run`` left in ``folder``.

    Raises StoreError when there is none, or it is damaged or of another version.
    """
    place = abbreviate(str(folder), PATH)
    with as_store_error(f"read the run in {place}"):
        if not (folder / MANIFEST).is_file():
            raise StoreError(f"{place} holds no finished run: {MANIFEST} is missing. Give a folder written by --out.")
        return deserialize(lambda name: (folder / name).read_bytes(), f"The run in {place}")


@contextmanager
def hidden_folder(parent: Path, name: str, files: dict[str, bytes]) -> Iterator[Path]:
    """A hidden folder in ``parent`` holding ``files``; whatever of it is still there afterwards is removed."""
    with folder_aside(parent, name) as new:
        for file, data in files.items():
            (new / file).write_bytes(data)
        sync_folder(new)
        yield new


@contextmanager
def as_store_error(doing: str) -> Iterator[None]:
    """Turns what a file system raises into a StoreError that says what was being done."""
    try:
        yield
    except KvqError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
        raise StoreError(f"Cannot {doing}: {reason}.") from error
    except Exception as error:  # clients of object stores have trees of their own
        raise StoreError(f"Cannot {doing}: {type(error).__name__}: {str(error)[:200]}") from error
