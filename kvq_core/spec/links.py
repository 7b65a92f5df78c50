"""A comparison as text for ``/?c=``: what differs from the defaults, compressed; no result, no reference to a store.

The text is a version, a dot, and the spec's canonical JSON through zlib and URL-safe base64. zlib's own checksum tells
a link that lost its end. A link comes from anybody: its length is limited, and so is what it may unpack to.
"""

import base64
import binascii
import json
import re
import zlib
from typing import Any

from kvq_core.errors import SpecError, abbreviate
from kvq_core.spec import ComparisonSpec, parse_spec

VERSION = "1"
MAX_CHARS = 8_000  # proxies and mail programs cut longer addresses
MAX_BYTES = 256 * 1024  # of JSON; deflate packs up to a thousandfold
_TEXT = re.compile(r"([0-9]{1,3})\.([A-Za-z0-9_-]+)")
_AGAIN = "Ask for the whole link again, or for the comparison as a file."


def encode(spec: ComparisonSpec) -> str:
    """The comparison as URL-safe text. The model is always named: a link must mean the same when the default changes.

    Raises SpecError where it is too long for a link.
    """
    return pack(spec.canonical(), "comparison")


def decode(text: str) -> ComparisonSpec:
    """The comparison of a link.

    Raises SpecError for everything that is none: too long, cut off, damaged, of another version, or saying something
    impossible. No more than MAX_BYTES are ever unpacked.
    """
    return parse_spec(unpack(text, "comparison"))


def pack(told: str, what: str) -> str:
    """JSON as URL-safe text; ``what`` it is. Raises SpecError where it is too long for a link."""
    raw = told.encode()
    text = f"{VERSION}." + base64.urlsafe_b64encode(zlib.compress(raw, 9)).decode().rstrip("=")
    if len(raw) > MAX_BYTES or len(text) > MAX_CHARS:
        raise SpecError(
            f"This {what} is too long for a link: {len(text):,} characters, at most {MAX_CHARS:,} "
            f"(from {len(raw):,} bytes, at most {MAX_BYTES:,}). Send it as a file."
        )
    return text


def unpack(text: str, what: str) -> Any:
    """The data that ``pack`` was given. Raises SpecError for text that is no such link."""
    if len(text) > MAX_CHARS:
        raise SpecError(f"The link holds {len(text):,} characters; at most {MAX_CHARS:,} are allowed. {_AGAIN}")
    parts = _TEXT.fullmatch(text)
    if parts is None:
        raise SpecError(f"The link holds no {what}: it must read {VERSION}.… in letters, digits, - and _. {_AGAIN}")
    if parts[1] != VERSION:
        raise SpecError(
            f"The link is of version {abbreviate(parts[1])}; this instance reads version {VERSION}. {_AGAIN}"
        )
    try:
        return json.loads(_unpacked(parts[2]))
    except (ValueError, RecursionError):
        raise SpecError(f"The link is damaged: what it unpacks to is no {what}. {_AGAIN}") from None


def _unpacked(text: str) -> bytes:
    """The bytes behind the dot, never more than MAX_BYTES. Raises SpecError."""
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), MAX_BYTES + 1)
    except (binascii.Error, zlib.error):
        raise SpecError(f"The link is damaged. {_AGAIN}") from None
    if len(raw) > MAX_BYTES:
        raise SpecError(f"The link unpacks to more than {MAX_BYTES:,} bytes; no comparison is that long.")
    if not unpacker.eof or unpacker.unused_data:
        raise SpecError(f"The link is cut off or has something behind its end. {_AGAIN}")
    return raw
