"""The header of a GGUF file: what it says of itself, and where its tensors lie. No weight is read.

The ``gguf`` package has a reader too. That one takes twelve seconds for a vocabulary of 150,000 tokens, and fails in
many ways on damaged files. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFValueType, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT

from kvq_core.errors import ModelError, excerpt
from kvq_core.models.gguf.hub import PART

_VERSIONS = (2, 3)
# What a header may hold at most, many times what any does: what it says of its lengths is anybody's.
_VALUES = 10_000_000  # in all of its arrays; a vocabulary of 262,144 tokens and its merges are 1.3 million
_TEXT = 16_000_000  # bytes of one
_ENTRIES = 100_000  # keys, or tensors
_DIMENSIONS = 8
MENDED = "kvq.mend."  # what the names of keys begin with that say how a file was changed, see mend
_FORMAT = re.compile(r"[\w./-]{1,40}")  # of a cache, as mended files tell it
_FORMS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its shape, outermost dimension first, and the bytes it lies in."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """Keys and values of a GGUF file, and its tensors in the order they lie in; ``keys_end``: where its keys end."""

    path: Path
    values: dict[str, Any]
    entries: tuple[TensorEntry, ...]
    keys_end: int = 0

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    @property
    def title(self) -> str:
        """The name the file gives its model, else the file's own."""
        name = self.values.get("general.name")
        return " ".join(name.split())[:80] if isinstance(name, str) and name.strip() else self.path.stem

    @property
    def numel(self) -> int:
        """Weights in all."""
        return sum(entry.numel for entry in self.entries)

    @property
    def mended(self) -> str | None:
        """What cache format and context the file was changed for; None of one that was not."""
        said = {key.removeprefix(MENDED): value for key, value in self.values.items() if key.startswith(MENDED)}
        (form, context), size = mended_for(said), said.get("changed_bytes")
        told = f", {size:,} bytes changed" if isinstance(size, int) else ""
        return f"mended for {form}, {context} tokens{told}" if said else None

    @property
    def mix(self) -> str:
        """How the file holds its weights, such as ``Q4_K_M: Q5_0 133, F32 121, Q8_0 13``: kind, tensors by type, and
        what it was mended for."""
        return self._mix if self.mended is None else f"{self._mix}; {self.mended}"

    @property
    def _mix(self) -> str:
        counts = Counter(entry.kind.name for entry in self.entries).most_common()
        told = ", ".join(f"{name} {count}" for name, count in counts)
        try:
            kind = LlamaFileType(self.values.get("general.file_type", -1)).name.removeprefix("MOSTLY_")
        except ValueError:
            return told
        return f"{kind.removeprefix('ALL_')}: {told}"


def mended_for(said: Mapping[str, Any]) -> tuple[str, str]:
    """Cache format and context as a mended file tells them, to be shown: it may be anybody's, and tell anything."""
    form, context = said.get("format"), said.get("context")
    told = form if isinstance(form, str) and _FORMAT.fullmatch(form) else excerpt(form)
    return told, f"{context:,}" if type(context) is int else excerpt(context)


class _Damaged(Exception):
    """Why a file is no whole GGUF file."""


def read_header(path: Path) -> Header:
    """The header of a file, checked as far as it can be without reading a weight.

    Raises ModelError in one line for what is not a whole GGUF file, for a part of one, and for types of weights that
    cannot be dequantized.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"GGUF":
                raise _Damaged("it does not begin with the letters GGUF")
            values, entries, keys_end = _read(_Cursor(data))
    except (_Damaged, struct.error, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as error:
        cut = isinstance(error, struct.error)
        reason = "it ends before its header does" if cut else " ".join(str(error).split())[:150]
        raise ModelError(f"{_called(path)} is not a whole GGUF file: {reason}. Download it again.") from None
    except OSError as error:
        raise ModelError(f"{_called(path)} cannot be read: {error.strerror}.") from None
    if values.get("split.count", 1) not in (0, 1) or PART.search(path.name):
        count = f"{excerpt(values['split.count'])}" if "split.count" in values else "several"
        raise ModelError(
            f"{_called(path)} is one of {count} parts of a model, and models in parts are not read. Merge them "
            "with llama.cpp's llama-gguf-split --merge, or pick a quantization in one file."
        )
    return Header(path, values, entries, keys_end)


def _called(path: Path) -> str:
    return f"Model file {excerpt(path.name)}"


class _Cursor:
    """A place in a file, and the values that are read there."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.left = data, 4, _VALUES

    def number(self, form: str) -> Any:
        return self.numbers(form, 1)[0]

    def numbers(self, form: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{form}")
        if count * size > len(self.data) - self.at:
            raise struct.error
        found = struct.unpack_from(f"<{count}{form}", self.data, self.at)
        self.at += count * size
        return found

    def text(self) -> str:
        size = self._length()
        if size > len(self.data) - self.at:
            raise struct.error
        if size > _TEXT:
            raise _Damaged(f"it holds a text of {size:,} bytes, and at most {_TEXT:,} are read")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind != GGUFValueType.ARRAY:
            return self.number(_FORMS[GGUFValueType(kind)])
        inner, count = self.number("I"), self._length()
        self.left -= count
        if self.left < 0:
            raise _Damaged(f"its arrays hold more than {_VALUES:,} values")
        if inner in (GGUFValueType.STRING, GGUFValueType.ARRAY):
            return [self.value(inner) for _ in range(count)]
        return list(self.numbers(_FORMS[GGUFValueType(inner)], count))

    def _length(self) -> int:
        count = int(self.number("Q"))
        if count > len(self.data):
            raise struct.error
        return count


def _read(at: _Cursor) -> tuple[dict[str, Any], tuple[TensorEntry, ...], int]:
    version = at.number("I")
    if version not in _VERSIONS:
        raise _Damaged(f"its version is {version}, and versions {' and '.join(map(str, _VERSIONS))} are read")
    tensors, pairs = at.numbers("Q", 2)
    if max(tensors, pairs) > _ENTRIES:
        raise _Damaged(f"it says to hold {pairs:,} keys and {tensors:,} tensors, and at most {_ENTRIES:,} are read")
    values: dict[str, Any] = {}
    for _ in range(pairs):
        key = at.text()
        if key in values:
            raise _Damaged(f"it gives {excerpt(key)} twice")
        values[key] = at.value(at.number("I"))
    keys_end = at.at
    return values, tuple(_entries(at, tensors, values.get("general.alignment", GGUF_DEFAULT_ALIGNMENT))), keys_end


def _entries(at: _Cursor, count: int, alignment: Any) -> Iterator[TensorEntry]:
    """The tensors, each of which must begin where the one before it ends, and the last one within the file."""
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"general.alignment is {excerpt(alignment)}")
    told = [_told(at) for _ in range(count)]
    if twice := [name for name, n in Counter(name for name, *_ in told).items() if n > 1]:
        raise _Damaged(f"it holds tensor {excerpt(twice[0])} twice")
    begin, end = _padded(at.at, alignment), 0
    for name, shape, kind, offset in told:
        block, held = GGML_QUANT_SIZES[kind]
        if not shape or min(shape) < 1 or shape[-1] % block:
            raise _Damaged(f"tensor {excerpt(name)} has the shape {excerpt(list(shape))}, impossible as {kind.name}")
        size = prod(shape) // block * held
        if offset != end:
            raise _Damaged(f"tensor {excerpt(name)} does not lie where the one before it ends")
        if begin + offset + size > len(at.data):
            raise _Damaged(f"it is cut off within tensor {excerpt(name)}")
        yield TensorEntry(name, shape, kind, begin + offset, size)
        end = _padded(offset + size, alignment)


def _told(at: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name, dimensions = at.text(), at.number("I")
    if dimensions > _DIMENSIONS:
        raise _Damaged(f"tensor {excerpt(name)} has {dimensions:,} dimensions")
    shape = at.numbers("Q", dimensions)[::-1]  # the file has the fastest-moving dimension first
    return name, shape, GGMLQuantizationType(at.number("I")), at.number("Q")


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
