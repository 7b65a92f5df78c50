"""The prompt of a stored run as text: its tokens are kept as their tokenizer spells them."""

import re
from collections.abc import Sequence

from kvq_core.record.fields import Record

_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that GPT-2's spelling leaves as they are
_OTHERS = [byte for byte in range(256) if byte not in set(_PLAIN)]
_BYTES = {chr(byte): byte for byte in _PLAIN} | {chr(256 + at): byte for at, byte in enumerate(_OTHERS)}
_SPELLED = ("\u0120", "\u010a")  # a blank and a line end in GPT-2's spelling
_BLANK = "\u2581"  # a blank in SentencePiece's
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def prompt_texts(record: Record, edges: Sequence[int]) -> list[str]:
    """Text of the prompt's tokens between each two ``edges``; where one lies inside a character, its bytes that make
    none are shown as the mark for what is broken."""
    tokens = record.reference.prompt_tokens
    spelled = any(blank in token for token in tokens for blank in _SPELLED)
    pieces = [_spelled_bytes(token) if spelled else _piece_bytes(token) for token in tokens]
    return [
        b"".join(pieces[start:end]).decode("utf-8", errors="replace")
        for start, end in zip(edges[:-1], edges[1:], strict=True)
    ]


def _spelled_bytes(token: str) -> bytes:
    """Of a byte-level tokenizer; a special token that is no such spelling is the text it is."""
    if all(letter in _BYTES for letter in token):
        return bytes(_BYTES[letter] for letter in token)
    return token.encode()


def _piece_bytes(token: str) -> bytes:
    if found := _BYTE.fullmatch(token):
        return bytes.fromhex(found[1])
    return token.replace(_BLANK, " ").encode()
