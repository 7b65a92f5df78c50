"""What kind of text a token is part of: numbers, structure and names are where a small change does most harm."""

import re
from collections.abc import Sequence
from typing import Literal

Kind = Literal["digits", "structure", "names"]
KINDS: tuple[Kind, ...] = ("digits", "structure", "names")
_DIGIT = re.compile(r"\d")
_STRUCTURE = re.compile(r"[\[\]{}()<>|=:;`\"\\/_#*+]|\n|^[ \t]{2,}$")
_NAME = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|[^\W\d]\w*")
_CLOSES = re.compile(r"(?:^|[.!?:]['\")\]]*\s|\n|[\"“(\[]\s*)$")  # after it a capital may only begin a sentence


def token_kinds(pieces: Sequence[str]) -> list[set[Kind]]:
    """Of every piece of a text, in order, what it holds: digits; ``structure``, brackets, quotes, operators, line ends
    and indentation; ``names``, pieces of words with a capital inside a sentence, or inside the word."""
    text, found = "".join(pieces), list[set[Kind]]()
    names, start = _names(text), 0
    for piece in pieces:
        end = start + len(piece)
        kinds: set[Kind] = set()
        if _DIGIT.search(piece):
            kinds.add("digits")
        if _STRUCTURE.search(piece):
            kinds.add("structure")
        if any(first < end and start < last for first, last in names):
            kinds.add("names")
        found.append(kinds)
        start = end
    return found


def _names(text: str) -> list[tuple[int, int]]:
    """Where words stand that are names, as far as capitals tell."""
    return [found.span() for found in _NAME.finditer(text) if _is_name(text, found)]


def _is_name(text: str, found: re.Match[str]) -> bool:
    word = found[0]
    if any(letter.isupper() for letter in word[1:]):
        return True
    return word[:1].isupper() and len(word) > 1 and not _CLOSES.search(text[max(0, found.start() - 8) : found.start()])
