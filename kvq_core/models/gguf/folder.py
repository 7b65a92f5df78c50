"""A converted GGUF file: its folder, what it came from, and whether it is whole; and the steps that lead to it. Loads
no reader of files."""

import hashlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvq_core.machine import files
from kvq_core.machine.progress import Progress
from kvq_core.models import identity

VERSION = 1  # raised when a file would be converted into something else: what was converted before is done again
WEIGHTS = "model.safetensors"


Steps = Generator[Progress, None, None]
FoundFile = TypeVar("FoundFile")


def last(steps: Generator[Progress, None, FoundFile]) -> FoundFile:
    """What steps lead to, without anybody who is told of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: FoundFile = end.value
            return found


@dataclass(frozen=True)
class Converted:
    """A converted file: where it lies, what it came from, and how that held its weights."""

    folder: Path
    sha256: str  # of the GGUF file
    file: str  # its name
    mix: str  # see Header.mix
    size: int | None = None  # bytes of the file; None: an older version converted it

    @property
    def whole(self) -> str:
        """sha256 over all that decides what the model answers: the file, and how it is converted."""
        return hashlib.sha256(f"{self.sha256} {VERSION}".encode()).hexdigest()


def read_converted(folder: Path) -> Converted | None:
    """What lies converted in a folder; None where that is nothing, damaged, or of another version of the converter."""
    found = files.read_memo(folder / identity.SOURCE)
    if not isinstance(found, dict) or found.get("version") != VERSION:
        return None
    try:
        whole = all(file_sha256(folder / name) == expected for name, expected in found["files"].items())
    except OSError:
        return None
    return Converted(folder, found["sha256"], found["file"], found["mix"], found.get("size")) if whole else None


def file_sha256(file: Path) -> str:
    """Of one file of a converted model; the large one's is remembered."""
    if file.name == WEIGHTS:
        return identity.sha256_of(file)
    return hashlib.sha256(file.read_bytes()).hexdigest()
