"""Token ids to text pieces, one id at a time."""

from typing import Any


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
