"""Files made for downloads, removed once nobody can still be waiting for them: they hold what visitors keep private."""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvq_core.machine import files

PREFIX, PROMPTS = "kvq-downloads-", "kvq-prompts-"
KEEP_S = 3600.0
EVERY_S = 600.0
NEW_S = 60.0  # a folder this new may not be locked yet


def own_folder() -> Path:
    """A folder of this process, for its user alone. Those of processes that were killed are removed on the way: each
    holds a lock on its own as long as it lives, however it ends."""
    remove_left()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with suppress(OSError):  # not every file system has locks: there it stays what it was
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder


def remove_left() -> None:
    """Remove what killed servers left: downloads, and visitors' files that were being read."""
    place = Path(tempfile.gettempdir())
    for left in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            _remove_if_left(left)
    files.sweep(place, f"{PROMPTS}*")


def _remove_if_left(folder: Path) -> None:
    if time.time() - folder.stat().st_mtime < NEW_S:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where its process lives
        shutil.rmtree(folder)
    finally:
        os.close(handle)


@contextmanager
def removing_folder(folder: Path) -> Iterator[None]:
    """The folder goes when the body ends."""
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path, older_than: float = KEEP_S) -> None:
    """Remove files older than so many seconds. A page that still offers one has it in Gradio's own cache."""
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > older_than:
                file.unlink()


def sweep_regularly(folder: Path) -> None:
    """Sweep now and then, in a thread of its own, for as long as the process lives."""

    def work() -> None:
        while True:
            time.sleep(EVERY_S)
            with suppress(OSError):
                sweep(folder)
                remove_left()  # of one that was killed a moment before this one was started

    threading.Thread(target=work, name="housekeeping", daemon=True).start()
