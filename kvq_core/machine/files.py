"""Files that are whole or absent: written aside, synced, renamed; and memos that are checked when they are read.

Whatever is killed, or whatever disk is full, a reader finds the old content or the new one.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PREFIX = ".writing-"  # of files being written; one that a killed writer left behind can be removed


@contextmanager
def aside(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """A new file beside ``path`` to be written by the body; afterwards it is synced and takes the name ``path``.

    The name is one that no other process or thread has. Where the body raises, ``path`` stays as it was and nothing is
    left. Raises OSError where the place cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PREFIX, suffix=path.suffix)
    os.close(handle)
    new = Path(name)
    try:
        yield new
        new.chmod(mode)
        sync(new)
        new.replace(path)
        sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put ``data`` at ``path``, whole. Raises OSError where the place cannot be written."""
    with aside(path, mode) as new:
        new.write_bytes(data)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_memo(path: Path, value: Any) -> bool:
    """Keep a by-product (JSON) with a checksum; False where it could not be written, which costs no result."""
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
