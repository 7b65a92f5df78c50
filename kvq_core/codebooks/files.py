"""Codebook files: what they say about themselves, where they lie, how a lane finds its own. Rotations, and ranges with
levels, that were calibrated on texts are kept the same way.

A codebook is one safetensors file whose header holds a CodebookInfo. Files lie in ``KVQ_HOME/codebooks``, those shipped
with the project in ``presets/codebooks``.
"""

import hashlib
import json
import re
import shutil
import struct
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from kvq_core.errors import KvqError, StoreError, excerpt
from kvq_core.frozen import Frozen
from kvq_core.machine import files
from kvq_core.settings import settings
from kvq_core.shipped import shipped

SHIPPED = shipped("codebooks")
FORMAT = 1
NAMED = 5  # of the codebooks there are, in a message
DEFAULT_NAME = "default"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$"  # of a set of codebooks: it becomes part of file names
Kind = Literal["keys", "values", "rotations", "ranges"]
Target = Literal["qqt", "ktk"]  # of rotations


class CodebookInfo(Frozen):
    """Everything a reader should know before trusting a codebook. Errors are ||x - x'||^2 / ||x||^2 over all tokens;
    of rotations those of keys and of values at 2 bits, clipped as OSCAR does by default, of ranges those of KVQuant's
    codes of 2 bits, outliers kept."""

    format: int = FORMAT
    kind: Kind
    name: str = DEFAULT_NAME
    model: str
    weights_hash: str
    layers: int
    kv_heads: int
    head_dim: int
    bits: float  # per element, without the prescale: of all stages for keys
    levels: int | None = None  # keys
    pairs_per_group: int | None = None  # keys
    stages: int | None = None  # keys
    settings: dict[str, float | int | str]  # of the training; with them, command and text the file can be made again
    digest: str  # of everything that decides the result but the number of stages
    source: str  # of the text
    train_tokens: int
    held_out_tokens: int
    train_error: list[float]  # mean over layers; keys: after each stage
    held_out_error: list[float]
    seconds: float  # of training, without reading the text
    stage_seconds: list[float] = []  # keys: of each stage, all layers together; empty where only their sum is known
    created: str
    command: str
    content: str = ""  # sha256 of the tensors, 16 hex characters

    @property
    def file_name(self) -> str:
        """Name of the file, without its ending: readable, and different for whatever can lie side by side."""
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", self.model).strip("-").lower()[-60:]
        size = str(self.settings.get("target", f"b{self.bits:g}"))
        if self.kind == "keys":
            size = f"l{self.levels}-g{self.pairs_per_group}"
        elif self.kind == "ranges":
            size = f"o{self.settings['outlier_fraction']:g}"
        return f"{slug}-{self.weights_hash[:6]}.{self.name}.{self.kind}-{size}"


class Codebook(BaseModel):
    """A codebook file: its path and what its header says."""

    model_config = ConfigDict(frozen=True)

    path: Path
    info: CodebookInfo

    @property
    def shipped(self) -> bool:
        return self.path.parent == SHIPPED

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, read once and kept. Raises StoreError where they are not what the header promises."""
        try:
            stamp = self.path.stat().st_mtime_ns
        except OSError as error:
            raise StoreError(f"Codebook {self.path.name} cannot be read: {error.strerror}. Train it again.") from None
        return _tensors(self.path, stamp, self.info.content)


def codebook_folder() -> Path:
    return settings().home / "codebooks"


def codebooks() -> list[Codebook]:
    """Every readable codebook, the user's before the shipped ones; damaged and foreign files are passed over."""
    found = []
    for place in (codebook_folder(), SHIPPED):
        for path in sorted(place.glob("*.safetensors")):
            try:
                found.append(Codebook(path=path, info=_header(path, path.stat().st_mtime_ns)))
            except (StoreError, FileNotFoundError):  # it may have been deleted since it was listed
                continue
    return found


def save_codebook(info: CodebookInfo, tensors: dict[str, Tensor]) -> Codebook:
    """Write a codebook; readers see the old file or the new one, whole. Raises StoreError where it cannot be done."""
    place, info = codebook_folder(), info.model_copy(update={"content": content_hash(tensors)})
    data = save({k: t.contiguous() for k, t in tensors.items()}, {"codebook": info.model_dump_json()})
    path = place / f"{info.file_name}.safetensors"
    try:
        files.write(path, data)
    except OSError as error:
        raise StoreError(
            f"The codebook cannot be written to {place}: {error.strerror or error}. Make room there or set KVQ_HOME to "
            "another folder, and train it again: what was finished of it is kept where that was possible."
        ) from None
    return Codebook(path=path, info=info)


def delete_codebook(file_name: str) -> Codebook:
    """Delete one of the user's codebooks and what an interrupted training of it left behind.

    Raises KvqError for an unknown name and for a shipped one.
    """
    found = get_codebook(file_name)
    if found.shipped:
        raise KvqError(
            f"{file_name} is part of the project and stays; codebooks under {codebook_folder()} can be deleted."
        )
    try:
        found.path.unlink(missing_ok=True)
    except OSError as error:
        raise KvqError(f"{found.path} cannot be deleted: {error.strerror}.") from None
    for partial in codebook_folder().glob(f"{found.info.file_name}.*.partial"):
        shutil.rmtree(partial, ignore_errors=True)
    return found


def get_codebook(file_name: str) -> Codebook:
    """The codebook of that file name, as ``list`` prints it. Raises KvqError naming those there are."""
    known = {c.info.file_name: c for c in reversed(codebooks())}
    if file_name not in known:
        names = [*known][:NAMED]
        more = f" and {len(known) - NAMED} more, which python -m kvq_core codebooks list lists" * (len(known) > NAMED)
        raise KvqError(f"Unknown codebook {excerpt(file_name)}. Available: {', '.join(names) or 'none'}{more}.")
    return known[file_name]


def content_hash(tensors: dict[str, Tensor]) -> str:
    """16 hex characters over names and bytes of the tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=256)
def _header(path: Path, stamp: int) -> CodebookInfo:
    """The header of a safetensors file, without its tensors; ``stamp`` renews what is remembered of a replaced file."""
    try:
        with path.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(size, 1 << 20)))
        return CodebookInfo.model_validate_json(header["__metadata__"]["codebook"])
    except (OSError, ValueError, KeyError, TypeError, struct.error, ValidationError) as error:
        raise StoreError(f"{path.name} is not a codebook of this version: {type(error).__name__}.") from None


@lru_cache(maxsize=8)
def _tensors(path: Path, stamp: int, content: str) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"Codebook {path.name} cannot be read: {error}. Train it again.") from None
    if content_hash(tensors) != content:
        raise StoreError(f"Codebook {path.name} is damaged: its tensors are not those it was written with.")
    return tensors
