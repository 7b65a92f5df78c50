"""Token ids to text pieces, one id at a time."""

import re
from functools import cache
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that is one byte, where a tokenizer falls back to bytes


class Pieces:
    """Text pieces of a growing list of ids; joined, they are the decoded text without special tokens.

    Byte-level tokens may end inside a character; such an id yields an empty piece and the one that completes the
    character yields all of it. Only ids since the last complete character are decoded again.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._done = 0  # ids[:_done] are fully told
        self._context = 0  # decoding starts here: a tokenizer may drop the space before a first token
        self.pieces: list[str] = []

    def extend(self, ids: list[int]) -> list[str]:
        """Bring the pieces up to date with ``ids``, which starts with all ids seen so far."""
        for token in ids[len(self._ids) :]:
            self._ids.append(token)
            self.pieces.append(self._next())
        return self.pieces

    def _next(self) -> str:
        before = self._decode(self._ids[self._context : self._done])
        text = self._decode(self._ids[self._context :])
        if text.endswith("\ufffd") and len(self._ids) - self._done < 8:
            return ""
        self._context, self._done = self._done, len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def lone_token_text(tokenizer: Any, id: int) -> str:
    """Text of one token by itself, special or not; its bytes that are no whole character stand as ``<0xE4>``."""
    text = str(tokenizer.decode([id], skip_special_tokens=False))
    token = tokenizer.convert_ids_to_tokens(id)
    if "\ufffd" not in text or not isinstance(token, str):
        return text
    if _BYTE.fullmatch(token):
        return token
    if not set(token) <= set(_bytes_of()):
        return text
    raw = bytes(_bytes_of()[character] for character in token)
    return re.sub("[\udc80-\udcff]", lambda m: f"<0x{ord(m[0]) - 0xDC00:02X}>", raw.decode("utf-8", "surrogateescape"))


@cache
def _bytes_of() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for."""
    return {character: byte for byte, character in bytes_to_unicode().items()}
