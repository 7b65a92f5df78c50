"""What an interrupted training has finished, one small file a piece."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from kvq_core.errors import StoreError
from kvq_core.machine import files


class Checkpoints:
    """Pieces of one training under a folder of its own. One that cannot be kept costs nothing but the time of training
    it again after an interruption.

    ``known`` are pieces finished elsewhere, such as the stages of a shorter codebook trained with the same settings.
    """

    def __init__(self, folder: Path, known: dict[str, dict[str, Tensor]] | None = None):
        self.folder = folder
        self.known = known or {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # said before the training: what it makes goes to the same place
            raise StoreError(
                f"Nothing can be written to {folder.parent}: {error.strerror}. Set KVQ_HOME to a folder that can be."
            ) from None

    def load(self, name: str) -> dict[str, Tensor] | None:
        """A finished piece, or None; a damaged file counts as none."""
        if name in self.known:
            return self.known[name]
        kept = files.read_bytes(self._path(name))
        return None if kept is None else load(kept)

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        files.keep_bytes(self._path(name), save({key: t.contiguous() for key, t in tensors.items()}))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.piece"


@contextmanager
def checkpoints(folder: Path, known: dict[str, dict[str, Tensor]] | None = None) -> Iterator[Checkpoints]:
    """Checkpoints that vanish when the work inside ends well and stay when it is interrupted."""
    yield Checkpoints(folder, known)
    shutil.rmtree(folder, ignore_errors=True)
