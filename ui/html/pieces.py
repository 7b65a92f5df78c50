"""Tokens as the text they are: a character that several tokens spell is one span, and each of them is part of it."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvq_core.record.fields import LaneRecord, Record, Reference

BROKEN = "\ufffd"  # what ends inside a character
END = "‹end›"  # what an answer's last token is shown as where it is no text
_BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")  # of a token that is no text by itself, see models.text.alone


@dataclass(frozen=True)
class Span:
    """Text and the tokens ``first .. last`` it stands for; no text: the end of the answer, or another special token."""

    text: str
    first: int
    last: int

    @property
    def tokens(self) -> range:
        return range(self.first, self.last + 1)


def spans(pieces: Sequence[str], finish: str | None = None, special: Collection[int] = ()) -> list[Span]:
    """Spans of an answer's pieces, of which models.text.Pieces leaves those empty that end inside a character.

    ``finish`` as the record has it; while it is None more may come, and what is no whole character yet is left out.
    ``special``: tokens that are empty because they are no text.
    """
    found, first = [], 0
    apart = {*special, *([len(pieces) - 1] if finish == "eos" else [])}
    for at, piece in enumerate(pieces):
        if at in apart and not piece and first < at:
            found.append(Span(BROKEN, first, at - 1))
            first = at
        if piece or at in apart:
            found.append(Span(piece, first, at))
            first = at + 1
    if first < len(pieces) and finish is not None:
        found.append(Span(BROKEN, first, len(pieces) - 1))
    return found


def spans_of(record: Record, row: Reference | LaneRecord) -> list[Span]:
    """Spans of a finished answer."""
    known = record.vocabulary
    special = [
        at
        for at, (id, piece) in enumerate(zip(row.token_ids, row.tokens, strict=False))
        if not piece and id in known and not _BYTES.search(known[id]) and BROKEN not in known[id]
    ]
    return spans(row.tokens, row.finish or "length", special)


def span_at(found: Sequence[Span], token: int) -> Span | None:
    """The span a token is part of."""
    at = bisect_right(found, token, key=lambda span: span.first) - 1
    return found[at] if 0 <= at < len(found) and token <= found[at].last else None


def words_at(record: Record, token: int, followed: Sequence[Span]) -> Callable[[int], str]:
    """Words of token ids where the reference, whose spans are given, has ``token``.

    The token it has there is its whole character; another one that goes on with the character begun before is what it
    would make of it.
    """
    known, ids = record.vocabulary, record.reference.token_ids
    here = span_at(followed, token)
    begun = "".join(known.get(ids[at], "") for at in here.tokens if at < token) if here else ""

    def word(id: int) -> str:
        if here and here.text and token < len(ids) and id == ids[token] and len(here.tokens) > 1:
            return here.text
        text = known.get(id, f"token {id}")
        return spell_bytes(begun + text) if _BYTES.match(text) and _BYTES.search(begun) else spell_bytes(text)

    return word


def spell_bytes(text: str) -> str:
    """Text with its ``<0xE4>`` turned into characters where they are whole; else the bytes in short: ‹E4 BD›."""

    def characters(found: re.Match[str]) -> str:
        try:
            return bytes.fromhex(re.sub("[^0-9A-F]", "", found[0].replace("0x", ""))).decode()
        except UnicodeDecodeError:
            return "‹" + found[0][3:-1].replace("><0x", " ") + "›"

    return _BYTES.sub(characters, text)
