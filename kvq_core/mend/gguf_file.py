"""A mended GGUF file: all of the old one copied, but for the tensors that change and what is said of it.

Written aside and renamed, so that whoever is killed leaves the whole file or none. In place, the old bytes are kept
beside the file first, from which ``undo`` restores it whatever happened meanwhile.
"""

import hashlib
import json
import mmap
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from gguf import GGUFValueType

from kvq_core.errors import ModelError, StoreError
from kvq_core.machine import files
from kvq_core.mend.tensors import TensorChange
from kvq_core.models import bundled, identity
from kvq_core.models.gguf.header import MENDED, Header, mended_for

_CHUNK = 1 << 23
_HEAD = 24  # bytes before the first key: magic, version, tensors, keys


def said_by(header: Header) -> dict[str, Any] | None:
    """What a mended file says was done to it; None of any other."""
    found = {key.removeprefix(MENDED): value for key, value in header.values.items() if key.startswith(MENDED)}
    for name in {"biases", "folded", "kld"} & found.keys():
        with suppress(ValueError, TypeError, RecursionError):  # anybody may have written it: it is told as it is
            found[name] = json.loads(found[name])
    if found:
        return found
    undo = _read_undo(backup_of(header.path))
    return None if undo is None or not _is_of(header.path, *undo) else undo[0]["said"]


def check_target(out: Path, size: int) -> None:
    """Raises StoreError where a file of that size cannot be written, or lies there already."""
    if out.exists():
        raise StoreError(f"{out} exists; give another name with --out, or remove it.")
    if not out.parent.is_dir():
        raise StoreError(f"{out.parent} is no folder; give --out a name in one that is there.")
    if (free := shutil.disk_usage(out.parent).free) < size:
        raise StoreError(
            f"{out} takes {size / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free; make room, or write elsewhere."
        )


def write_copy(header: Header, changes: Sequence[TensorChange], out: Path, said: Mapping[str, Any]) -> None:
    """The file with these tensors changed at ``out``. Raises StoreError where it cannot be written."""
    check_target(out, header.path.stat().st_size + sum(len(c.data) for c in changes if c.retyped))
    try:
        with files.aside(out, _mode(header.path)) as new, new.open("wb") as target, header.path.open("rb") as source:
            _write(header, {change.entry.name: change for change in changes}, said, source, target)
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror}.") from None


def _write(
    header: Header, changes: Mapping[str, TensorChange], said: Mapping[str, Any], source: IO[bytes], target: IO[bytes]
) -> None:
    alignment = int(header.values.get("general.alignment", 32))
    head = source.read(_HEAD)
    magic, version, tensors, pairs = struct.unpack("<4sIQQ", head)
    target.write(struct.pack("<4sIQQ", magic, version, tensors, pairs + len(said)))
    target.write(source.read(header.keys_end - _HEAD))
    for key, value in said.items():
        target.write(_pair(MENDED + key, value))
    offset = 0
    for entry in header.entries:
        change = changes.get(entry.name)
        name, kind = entry.name.encode(), entry.kind if change is None else change.kind
        shape = entry.shape[::-1]
        target.write(struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        target.write(struct.pack("<IQ", kind, offset))
        offset += _padded(entry.size if change is None else len(change.data), alignment)
    for entry in header.entries:
        target.write(bytes(-target.tell() % alignment))
        if entry.name in changes:
            target.write(changes[entry.name].data)
        else:
            source.seek(entry.start)
            _copy(source, target, entry.size)
    target.write(bytes(-target.tell() % alignment))


def _pair(key: str, value: Any) -> bytes:
    name = key.encode()
    told = struct.pack("<Q", len(name)) + name
    if isinstance(value, int):
        return told + struct.pack("<II", GGUFValueType.UINT32, value)
    text = (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))).encode()
    return told + struct.pack("<IQ", GGUFValueType.STRING, len(text)) + text


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    while size:
        data = source.read(min(size, _CHUNK))
        if not data:
            raise OSError(0, "the file was cut off while it was copied")
        target.write(data)
        size -= len(data)


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def backup_of(path: Path) -> Path:
    """Where the old bytes of a file that is changed in place are kept: beside the file itself, not beside a link."""
    path = path.resolve()
    return path.with_name(f"{path.name}.mend-undo")


def check_own(path: Path) -> None:
    """Raises StoreError for a file that others read as well: in place it would change for them."""
    path = path.resolve()
    if path == bundled.place().resolve():
        said = "the bundled model, which is known by its bytes"
    elif any(part.startswith("models--") for part in path.parts):
        said = "in Hugging Face's cache, which other programs read"
    elif (count := path.stat().st_nlink) > 1:
        said = f"one file under {count} names (hard links)"
    else:
        return
    raise StoreError(f"{path.name} is {said}: it is not changed in place; give --out.")


def write_in_place(header: Header, changes: Sequence[TensorChange], said: Mapping[str, Any]) -> Path:
    """Change the file itself, after its old bytes are kept; returns where. Raises StoreError where that cannot be."""
    path, kept = header.path.resolve(), backup_of(header.path)
    check_own(path)
    with _alone(kept):
        return _change(path, kept, changes, said)


def _change(path: Path, kept: Path, changes: Sequence[TensorChange], said: Mapping[str, Any]) -> Path:
    if kept.exists():
        raise StoreError(f"{kept} exists: {path.name} was changed in place before; run mend --undo {path} first.")
    if wider := next((change for change in changes if change.retyped), None):
        raise StoreError(
            f"{path.name}: {wider.entry.name} has to become F16 to hold its scales, and in place there is no room; "
            "give --out."
        )
    spans = [span for change in changes for span in _differing(path, change)]
    told: dict[str, Any] = {"file": path.name, "sha256": identity.sha256_of(path), "said": dict(said)}
    told["size"] = path.stat().st_size
    told["spans"] = [(start, len(old), _short_hash(new)) for start, old, new in spans]
    head = json.dumps(told).encode()
    data = struct.pack("<Q", len(head)) + head + b"".join(old for _, old, _ in spans)
    if not files.keep_bytes(kept, data, _mode(path)):
        raise StoreError(f"{kept} cannot be written, and without it nothing is changed in place; give --out.")
    _put(path, [(start, new) for start, _, new in spans])
    return kept


def undo(path: Path) -> str:
    """Restore a file that was changed in place, or in part; returns its sha256. Raises StoreError."""
    kept = backup_of(path)
    if not kept.exists():
        raise StoreError(f"{kept} is not there: {path.name} was not changed in place, or the backup was moved.")
    with _alone(kept):
        return _restore(path, kept)


def _restore(path: Path, kept: Path) -> str:
    if (found := _read_undo(kept)) is None:
        raise StoreError(f"{kept} is damaged: {path.name} cannot be restored from it; nothing was changed.")
    told, old = found
    digest = _sha256_with(path, old)
    if digest is None or digest != told["sha256"]:
        raise StoreError(
            f"{path} is another file, or something else changed it: with its old bytes its sha256 is not "
            f"{told['sha256']}. Nothing was changed; remove {kept} where that file is gone."
        )
    _put(path, old)
    identity.remember_hash(path, digest)
    kept.unlink()
    return digest


@contextmanager
def _alone(kept: Path) -> Iterator[None]:
    """Nobody else changes the file of this backup meanwhile."""
    with ExitStack() as held:
        try:
            held.enter_context(files.alone(kept))
        except OSError as error:
            raise StoreError(f"{kept.parent} cannot be written: {error.strerror}.") from None
        yield


def _mode(path: Path) -> int:
    """Who may read what is made of a file: whoever may read the file itself."""
    return path.stat().st_mode & 0o777


def _read_undo(kept: Path) -> tuple[dict[str, Any], list[tuple[int, bytes]]] | None:
    """What was said, and the old bytes by where they begin."""
    data = files.read_bytes(kept)
    if data is None:
        return None
    [size] = struct.unpack_from("<Q", data)
    told, old, at = json.loads(data[8 : 8 + size]), [], 8 + size
    for start, length, *_ in told["spans"]:
        old.append((start, data[at : at + length]))
        at += length
    return told, old


def _is_of(path: Path, told: Mapping[str, Any], old: Sequence[tuple[int, bytes]]) -> bool:
    """Whether a file is the one that a backup was made of: its spans hold old or new bytes. Backups that were made
    before sizes and new bytes were told are believed where their spans lie within the file."""
    size = path.stat().st_size
    if size != told.get("size", size) or any(start + len(data) > size for start, data in old):
        return False
    with path.open("rb") as file:
        for (start, data), (_, length, *new) in zip(old, told["spans"], strict=True):
            file.seek(start)
            if new and (now := file.read(length)) != data and [_short_hash(now)] != new:
                return False
    return True


def _sha256_with(path: Path, spans: Sequence[tuple[int, bytes]]) -> str | None:
    """A file's hash as if these bytes stood in it; None where it has no room for them. Only a copy in memory changes,
    page by page."""
    with path.open("rb") as file:
        if path.stat().st_size < max((start + len(data) for start, data in spans), default=1):
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as held:
            for start, data in spans:
                held[start : start + len(data)] = data
            return hashlib.sha256(held).hexdigest()


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _differing(path: Path, change: TensorChange) -> list[tuple[int, bytes, bytes]]:
    """Where a tensor's bytes differ: start, old and new, of the smallest stretch that has all of it."""
    entry = change.entry
    with path.open("rb") as file:
        file.seek(entry.start)
        old = file.read(entry.size)
    apart = [at for at in range(0, entry.size, 4096) if old[at : at + 4096] != change.data[at : at + 4096]]
    return [(entry.start + at, old[at : at + 4096], change.data[at : at + 4096]) for at in apart]


def changed_bytes(path: Path, change: TensorChange) -> int:
    """How many bytes of a tensor are other ones; all of one whose type changes."""
    if change.retyped:
        return len(change.data)
    old = np.fromfile(path, np.uint8, change.entry.size, offset=change.entry.start)
    return int((old != np.frombuffer(change.data, np.uint8)).sum())


def _put(path: Path, spans: Sequence[tuple[int, bytes]]) -> None:
    try:
        handle = os.open(path, os.O_RDWR)
        try:
            for start, data in spans:
                os.pwrite(handle, data, start)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}. What it was: mend --undo {path}.") from None


def check_plain(header: Header) -> None:
    """Raises ModelError for a file that is mended already."""
    if (said := said_by(header)) is not None:
        form, context = mended_for(said)
        made = f"for {form} and a context of {context}; give the file it was made from"
        raise ModelError(
            f"{header.path.name} is mended already, {made} (sha256 {str(said.get('source'))[:16]}...), or run mend "
            "--undo where it was changed in place."
        )
