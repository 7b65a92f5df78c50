"""Files made for downloads, removed once nobody can still be waiting for them."""

import threading
import time
from contextlib import suppress
from pathlib import Path

KEEP_S = 3600.0
EVERY_S = 600.0


def sweep(folder: Path, older_than: float = KEEP_S) -> None:
    """Remove files older than so many seconds. A page that still offers one has it in Gradio's own cache."""
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > older_than:
                file.unlink()


def keep_swept(folder: Path) -> None:
    """Sweep now and then, in a thread of its own, for as long as the process lives."""

    def work() -> None:
        while True:
            time.sleep(EVERY_S)
            with suppress(OSError):
                sweep(folder)

    threading.Thread(target=work, name="housekeeping", daemon=True).start()
