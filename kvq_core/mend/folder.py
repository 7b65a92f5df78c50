"""A mended folder of safetensors: files with changed tensors are written again, all other large ones are hard links."""

import json
import os
import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind

from kvq_core.errors import ModelError, StoreError
from kvq_core.machine import files
from kvq_core.mend.blocks import dequantized, floats_as
from kvq_core.models.gguf.header import mended_for

SAID = "kvq-mend.json"  # beside the weights: what was done
_LARGE = 1_000_000  # bytes from which a file is linked: smaller ones are copied, for people edit them in place
_KINDS = {"F32": Kind.F32, "F16": Kind.F16, "BF16": Kind.BF16}


def check_plain(folder: Path) -> None:
    """Raises ModelError for a folder that is mended already."""
    if (folder / SAID).exists():
        said: Any = None
        with suppress(OSError, ValueError, RecursionError):  # whatever it holds, it says that the folder is mended
            said = json.loads((folder / SAID).read_text())
        form, context = mended_for(said if isinstance(said, dict) else {})
        raise ModelError(f"{folder} is mended already, for {form} and a context of {context}.")


def check_target(out: Path) -> None:
    """Raises StoreError where the folder lies there already, or has no parent."""
    if out.exists():
        raise StoreError(f"{out} exists; give another name with --out, or remove it.")
    if not out.parent.is_dir():
        raise StoreError(f"{out.parent} is no folder; give --out a name in one that is there.")


def write_copy(
    folder: Path, factors: Mapping[str, np.ndarray], offsets: Mapping[str, float], out: Path, said: Mapping[str, Any]
) -> None:
    """The folder with rows of these tensors multiplied; ``offsets``: what norms add to their weights.

    Raises ModelError for tensors that are not there or are quantized, StoreError where it cannot be written.
    """
    check_target(out)
    shards = {file: _names(file) for file in sorted(folder.glob("*.safetensors"))}
    own = {name: _own_name(name, shards) for name in factors}
    try:
        with files.folder_aside(out.parent, out.name) as new:
            shutil.copymode(folder, new)
            for file in sorted(file for file in folder.iterdir() if file.is_file()):
                changed = {own[name][1]: name for name in factors if own[name][0] == file}
                if not changed:
                    _link(file, new / file.name)
                    continue
                shutil.copyfile(file, new / file.name)
                for there, name in changed.items():
                    _change(new / file.name, shards[file][there], factors[name], offsets.get(name, 0.0))
                shutil.copymode(file, new / file.name)
            (new / SAID).write_text(json.dumps(dict(said), indent=1))
            files.sync_folder(new)
            new.rename(out)
            files.sync(out.parent)
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror}.") from None


def _names(file: Path) -> dict[str, tuple[str, int, int]]:
    """The tensors of a safetensors file: type, first byte, and the one after the last."""
    with file.open("rb") as stream:
        [size] = struct.unpack("<Q", stream.read(8))
        told = json.loads(stream.read(size))
    begin = 8 + size
    return {
        name: (each["dtype"], begin + each["data_offsets"][0], begin + each["data_offsets"][1])
        for name, each in told.items()
        if name != "__metadata__"
    }


def _own_name(name: str, shards: Mapping[Path, Mapping[str, Any]]) -> tuple[Path, str]:
    """Where a parameter lies: under its name, or the only one that ends with it where a model holds others too."""
    end = name.removeprefix("model.")
    found = [(file, there) for file, names in shards.items() for there in names if there == name]
    found = found or [(file, there) for file, names in shards.items() for there in names if there.endswith(f".{end}")]
    if len(found) != 1:
        raise ModelError(f"The folder cannot be mended: it holds {len(found)} tensors for {name}.")
    return found[0]


def _change(file: Path, at: tuple[str, int, int], factors: np.ndarray, offset: float) -> None:
    told, start, end = at
    if (kind := _KINDS.get(told)) is None:
        raise ModelError(
            f"{file.name} cannot be mended: it holds tensors of type {told}; read are {', '.join(_KINDS)}."
        )
    raw = np.fromfile(file, np.uint8, end - start, offset=start).reshape(len(factors), -1)
    changed = np.flatnonzero(factors != 1)
    new = (dequantized(raw[changed], kind) + offset) * factors[changed, None] - offset
    raw[changed] = floats_as(new, kind)
    with file.open("r+b") as stream:
        stream.seek(start)
        stream.write(raw.tobytes())


def _link(file: Path, new: Path) -> None:
    if file.stat().st_size >= _LARGE:
        with suppress(OSError):  # another disk, or one without links
            os.link(file.resolve(), new)
            return
    shutil.copy(file, new)
