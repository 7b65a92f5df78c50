"""The three files of a run as bytes: ``record.json``, ``arrays.safetensors`` and the manifest that vouches for them."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from kvq_core.errors import StoreError
from kvq_core.frozen import Frozen
from kvq_core.record.fields import SCHEMA_VERSION, Record
from kvq_core.record.migrate import upgrade, upgrade_record

MAX_ARRAY_BYTES = 64 * 2**20
RECORD, ARRAYS, MANIFEST = "record.json", "arrays.safetensors", "manifest.json"
CONTENT = (RECORD, ARRAYS)
_AGAIN = "Run the comparison again."


@dataclass(frozen=True)
class Summary:
    """One line of the history."""

    id: str
    created: str  # ISO 8601, UTC
    model_title: str
    prompt: str  # its first 120 characters
    lanes: tuple[str, ...]  # labels
    parent: str | None = None  # of a run whose lanes were added to that one


class Facts(Frozen):
    """What a content file must be."""

    sha256: str
    size: int


class Manifest(Frozen):
    """Names a run's content files; a run without one was never finished."""

    schema_version: int = SCHEMA_VERSION
    id: str
    summary: Summary
    record: Facts
    arrays: Facts
    folder: str = Field("", pattern=r"^([0-9a-f]{16}/)?$")  # of the content files, relative to the manifest

    def seal(self) -> bytes:
        """The manifest as bytes with a checksum over itself: nothing else guards the guard."""
        return _sealed(self.model_dump(mode="json"))


def record_json(record: Record) -> str:
    """The text of ``record.json``: what files hold and ``--json`` prints."""
    return record.model_dump_json()


def serialize(record: Record, arrays: dict[str, Tensor]) -> tuple[dict[str, bytes], Manifest]:
    """The content files and their manifest.

    Raises StoreError for more than 64 MB of arrays, or a record that could not be read back.
    """
    size = sum(t.numel() * t.element_size() for t in arrays.values())
    if size > MAX_ARRAY_BYTES:
        raise StoreError(
            f"The run's arrays take {size / 2**20:.0f} MB; at most {MAX_ARRAY_BYTES >> 20} MB are kept. "
            'Capture fewer layers or heads, or set capture.detail to "off".'
        )
    tensors = {name: t.detach().cpu().clone().contiguous() for name, t in arrays.items()}
    content = {RECORD: record_json(record).encode(), ARRAYS: save_tensors(tensors)}
    _parse_record(content[RECORD], f"Run {record.id}")  # a run that cannot be read back must not become a link
    facts = {name: Facts(sha256=_sha256(data), size=len(data)) for name, data in content.items()}
    return content, Manifest(id=record.id, summary=_summary(record), record=facts[RECORD], arrays=facts[ARRAYS])


def deserialize(read_file: Callable[[str], bytes], what: str) -> tuple[Record, dict[str, Tensor]]:
    """Record and arrays through ``read_file``, every byte checked; ``what`` names the run in messages.

    Raises StoreError when anything is missing, damaged or of another version.
    """
    manifest = parse_manifest(read_file(MANIFEST), what)
    content = {}
    for name, facts in ((RECORD, manifest.record), (ARRAYS, manifest.arrays)):
        try:
            data = read_file(manifest.folder + name)
        except FileNotFoundError:
            raise StoreError(f"{what} is damaged: {name} is missing. {_AGAIN}") from None
        if len(data) != facts.size:
            raise StoreError(f"{what} is damaged: {name} has {len(data)} bytes instead of {facts.size}. {_AGAIN}")
        if _sha256(data) != facts.sha256:
            raise StoreError(f"{what} is damaged: {name} does not match its checksum. {_AGAIN}")
        content[name] = data
    record = _parse_record(content[RECORD], what)
    if record.id != manifest.id:
        raise StoreError(f"{what} is damaged: its files belong to two runs. {_AGAIN}")
    try:
        return record, load_tensors(content[ARRAYS])
    except SafetensorError as error:
        raise StoreError(f"{what} is damaged: {ARRAYS} cannot be read ({error}). {_AGAIN}") from None


def parse_manifest(raw: bytes, what: str) -> Manifest:
    """A manifest from its bytes, of any version. Raises StoreError when it is damaged or of a newer one.

    The checksum is that of the bytes as stored: an old manifest is checked before it is brought up to date.
    """
    try:
        data = json.loads(raw)
        data.pop("checksum", None)
        body = upgrade(data, what) if "schema_version" in data else {}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise StoreError(f"{what} is damaged: its manifest cannot be read. {_AGAIN}") from None
    manifest: Manifest | None = None
    with suppress(ValidationError):
        manifest = Manifest.model_validate_json(json.dumps(body))
    if manifest is None or _sealed(data) != raw:
        raise StoreError(f"{what} is damaged: its manifest does not match its own checksum. {_AGAIN}")
    return manifest


def _sealed(body: dict[str, Any]) -> bytes:
    checksum = _sha256(json.dumps(body, sort_keys=True).encode())
    return json.dumps({**body, "checksum": checksum}, sort_keys=True, indent=1).encode()


def _parse_record(raw: bytes, what: str) -> Record:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise StoreError(f"{what} is damaged: its record is no JSON. {_AGAIN}") from None
    current = upgrade_record(data, what)
    try:
        # validated as JSON, where the keys of an object are text
        return Record.model_validate_json(raw if current is data else json.dumps(current))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise StoreError(f"{what} holds a record this version cannot read: {place}: {first['msg']}. {_AGAIN}") from None


def _summary(record: Record) -> Summary:
    prompt = " ".join(record.question.split())
    short = prompt if len(prompt) <= 120 else prompt[:119] + "…"
    labels = tuple(lane.label for lane in record.lanes)
    return Summary(record.id, record.created, record.environment.model_title, short, labels, record.parent)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
