"""A run inside a page: its three files as stored, behind the page's own markup, so that the page is the run.

They stand in a comment at the page's end, compressed and not as text: base 64 would be a third more. The page before
it is ASCII and declares a character set in which any byte is a character, so nothing of it is malformed.
"""

import hashlib
import json
import lzma
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kvq_core.errors import StoreError
from kvq_core.record.fields import Record
from kvq_core.record.files import ARRAYS, CONTENT, MANIFEST, MAX_ARRAY_BYTES, RECORD, deserialize, parse_manifest
from kvq_core.record.shipped import packaged_store
from kvq_core.record.store import Store

CHARSET = "windows-1252"
MOST_BYTES = 3_000_000  # of a page with its run
_MOST_UNPACKED = 2 * MAX_ARRAY_BYTES
_MOST_MEMORY = 64 * 2**20  # of unpacking it
_NAMES = (MANIFEST, RECORD, ARRAYS)
_OPENS = re.compile(rb"<!--kvq-run 1 ([0-9a-f]{64})\n")
_CLOSES = b"\n-->"
_ESCAPES = ((b"=", b"=e"), (b">", b"=g"))  # a comment ends at ">"
_WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "U8": 1, "I8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Carried:
    """What a page carries: ``files`` by name, byte for byte as they were stored, and what they hold."""

    files: dict[str, bytes]
    record: Record
    arrays: dict[str, Tensor]


def sealed(files: Mapping[str, bytes]) -> bytes:
    """What stands behind a page, ASCII markup, so that it carries a run's ``files``: manifest, record and arrays."""
    parts = [files[MANIFEST], files[RECORD], _by_plane(files[ARRAYS], back=False)]
    head = json.dumps([len(part) for part in parts]).encode() + b"\n"
    packed = lzma.compress(head + b"".join(parts))
    body = packed
    for byte, escape in _ESCAPES:
        body = body.replace(byte, escape)
    opens = f"\n<!--kvq-run 1 {hashlib.sha256(packed).hexdigest()}\n".encode()
    return opens + body + _CLOSES + b"\n"


def carried(data: bytes, what: str) -> Carried:
    """The run that a page carries, every byte checked; ``what`` names the file in messages. Raises StoreError, in one
    line, for what is no such page or a damaged one."""
    found = list(_OPENS.finditer(data))
    if not found:
        raise StoreError(f"{what} carries no run. Give a page that python -m kvq_core export wrote, unchanged.")
    body = data[found[-1].end() :]
    end = body.rfind(_CLOSES)
    packed = body[: max(end, 0)]
    for byte, escape in reversed(_ESCAPES):
        packed = packed.replace(escape, byte)
    if end < 0 or hashlib.sha256(packed).hexdigest().encode() != found[-1][1]:
        raise StoreError(f"{what} is damaged: the run in it does not match its checksum. Copy or export it again.")
    files = _unpacked(packed, what)
    return Carried(files, *deserialize(lambda name: files[name.rpartition("/")[2]], what))


def restore(found: Carried, store: Store) -> bool:
    """Keep what a page carried in ``store``; whether it was not there before. Raises StoreError where another run of
    its id is there, or the store cannot be written."""
    run_id = found.record.id
    for place in (packaged_store(), store):
        if place.exists(run_id):
            there = place.files(run_id)
            if any(there[name] != found.files[name] for name in CONTENT):
                raise StoreError(f"Another run {run_id} is here already, measured at another time. It stays as it is.")
            return False
    content = {name: found.files[name] for name in CONTENT}
    manifest = parse_manifest(found.files[MANIFEST], f"Run {run_id}")
    store.keep(content, manifest.model_copy(update={"folder": ""}))
    return True


def _unpacked(packed: bytes, what: str) -> dict[str, bytes]:
    try:
        whole = lzma.LZMADecompressor(memlimit=_MOST_MEMORY).decompress(packed, _MOST_UNPACKED)
        head, _, rest = whole.partition(b"\n")
        sizes = json.loads(head)
        if len(rest) != sum(sizes) or min(sizes) < 0:
            raise ValueError("sizes")
        ends = np.cumsum(sizes).tolist()
        parts = [rest[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        files = dict(zip(_NAMES, parts, strict=True))
        return {**files, ARRAYS: _by_plane(files[ARRAYS], back=True)}
    except (lzma.LZMAError, EOFError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise StoreError(f"{what} is damaged: the run in it cannot be read. Copy or export it again.") from None


def _by_plane(file: bytes, back: bool) -> bytes:
    """A safetensors file with the bytes of each tensor's numbers sorted by their place in the number, or ``back``
    again: exponents beside exponents take a sixth less room compressed."""
    start = 8 + int.from_bytes(file[:8], "little")
    tensors = json.loads(file[8:start])
    tensors.pop("__metadata__", None)
    data = bytearray(file[start:])
    for tensor in tensors.values():
        width, (first, last) = _WIDTHS.get(tensor["dtype"], 1), tensor["data_offsets"]
        shape = (width, -1) if back else (-1, width)
        data[first:last] = np.frombuffer(file[start + first : start + last], np.uint8).reshape(shape).T.tobytes()
    return file[:start] + bytes(data)
