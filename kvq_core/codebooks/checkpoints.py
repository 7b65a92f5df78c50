"""What an interrupted training has finished, one small file a piece."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor


class Checkpoints:
    """Pieces of one training under a folder of its own, each written aside and renamed.

    ``known`` are pieces finished elsewhere, such as the stages of a shorter codebook trained with the same settings.
    """

    def __init__(self, folder: Path, known: dict[str, dict[str, Tensor]] | None = None):
        self.folder = folder
        self.known = known or {}
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, name: str) -> dict[str, Tensor] | None:
        """A finished piece, or None; an unreadable file counts as none."""
        if name in self.known:
            return self.known[name]
        try:
            return load_file(self._path(name))
        except (OSError, SafetensorError):
            return None

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        aside = self._path(f".{os.getpid()}-{name}")
        save_file({key: t.contiguous() for key, t in tensors.items()}, aside)
        aside.replace(self._path(name))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


@contextmanager
def checkpoints(folder: Path, known: dict[str, dict[str, Tensor]] | None = None) -> Iterator[Checkpoints]:
    """Checkpoints that vanish when the work inside ends well and stay when it is interrupted."""
    yield Checkpoints(folder, known)
    shutil.rmtree(folder, ignore_errors=True)
