"""Files that are whole or absent: written aside, synced, renamed; and memos that are checked when they are read.

Whatever is killed, or whatever disk is full, a reader finds the old content or the new one.
"""

import codecs
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PREFIX = ".writing-"  # of files being written; one that a killed writer left behind can be removed
REMOVALS = 5  # tries: who looked a run up just before it was moved away may put a file beside it meanwhile
LEFT_S = 3600.0  # what is being written and older than this was left by a killed writer
_shut = 0  # bits of a mode that others are not given, see ``keep_private``
_SEAL = hashlib.sha256().digest_size


def keep_private() -> None:
    """From here on files and folders that this process makes are for its user alone."""
    global _shut
    _shut = 0o077
    os.umask(_shut)


@contextmanager
def aside(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """A new file beside ``path`` to be written by the body; afterwards it is synced and takes the name ``path``.

    The name is one that no other process or thread has. Where the body raises, ``path`` stays as it was and nothing is
    left. Raises OSError where the place cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PREFIX)
    os.close(handle)
    new = Path(name)
    try:
        yield new
        new.chmod(mode & ~_shut)
        sync(new)
        new.replace(path)
        sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def encoding_of(path: Path) -> str:
    """UTF-16 by its byte order mark, as PowerShell 5 writes it, else UTF-8 with or without one. Raises OSError."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put ``data`` at ``path``, whole. Raises OSError where the place cannot be written."""
    with aside(path, mode) as new:
        new.write_bytes(data)


@contextmanager
def folder_aside(parent: Path, name: str) -> Iterator[Path]:
    """A hidden folder in ``parent`` to be filled and renamed; whatever of it is still there afterwards is removed."""
    new = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        new.chmod(0o755 & ~_shut)  # mkdtemp's are for their owner alone
        yield new
    finally:
        for _ in range(REMOVALS):
            shutil.rmtree(new, ignore_errors=True)
            if not new.exists():
                break


def sync_folder(folder: Path) -> None:
    """Wait until a folder and the files in it are on the disk."""
    for file in folder.iterdir():
        sync(file)
    sync(folder)


def sweep(parent: Path, pattern: str) -> bool:
    """Remove the files and folders of that name that killed writers left; whether there were any."""
    swept = False
    for left in parent.glob(pattern):
        with suppress(OSError):  # another process may be sweeping too
            if time.time() - left.stat().st_mtime > LEFT_S:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
                swept = True
    return swept


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else, in this process or another, is inside for the same path. A killed process holds up nobody."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_bytes(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Keep a by-product for later, with a checksum; False where it could not be written, which costs no result."""
    with suppress(OSError):
        write(path, hashlib.sha256(data).digest() + data, mode)
        return True
    return False


def read_bytes(path: Path) -> bytes | None:
    """What ``keep_bytes`` kept; None where there is nothing, or anything but that."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    data = sealed[_SEAL:]
    return data if hashlib.sha256(data).digest() == sealed[:_SEAL] else None


def keep_memo(path: Path, value: Any) -> bool:
    """``keep_bytes`` for what JSON can hold, as text that people can read."""
    text = json.dumps(value, sort_keys=True)
    sealed = json.dumps({"sha256": _sha256(text), "value": value}, sort_keys=True)
    with suppress(OSError):
        write(path, sealed.encode())
        return True
    return False


def read_memo(path: Path) -> Any | None:
    """What ``keep_memo`` kept; None where there is nothing, or anything but that."""
    try:
        sealed = json.loads(path.read_bytes())
        value = sealed["value"]
        whole = sealed["sha256"] == _sha256(json.dumps(value, sort_keys=True))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return value if whole else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
