"""Whether answers say what a comparison expects: one text to look for, so that a question gets its answer judged."""

import re
import unicodedata
from collections.abc import Iterator

from kvq_core.record.fields import LaneRecord, Record, Reference


def expectation(record: Record) -> str:
    """What the answers of a run should hold; "" where nothing is expected, or no answer was written."""
    written = record.reference.finish != "continuation"
    return str(record.spec.get("expect") or "").strip() if written else ""


def contains_answer(answer: str, expected: str) -> bool:
    """Whether an answer holds the expected text, in any case, with any blanks, and not inside a longer word or number
    of Latin letters and digits."""
    wanted = re.escape(_plain(expected)).replace("\\ ", " ")
    return re.search(f"(?<![0-9a-z]){wanted}(?![0-9a-z])" if _bounded(expected) else wanted, _plain(answer)) is not None


def answers(record: Record) -> Iterator[tuple[str, bool]]:
    """The reference and every finished lane by its label, each with whether it says what is expected."""
    expected = expectation(record)
    rows: list[tuple[str, Reference | LaneRecord]] = [("Full precision", record.reference)]
    rows += [(lane.label, lane) for lane in record.lanes if lane.status == "done"]
    return ((label, contains_answer(row.text, expected)) for label, row in rows if expected)


def expectation_sentence(record: Record) -> str:
    """Who says it and who does not, in a sentence; "" where nothing is expected."""
    found = list(answers(record))
    if not found:
        return ""
    held = [label for label, right in found if right]
    missed = [label for label, right in found if not right]
    parts = [f"{verb} {', '.join(labels)}" for verb, labels in (("found in", held), ("missing in", missed)) if labels]
    return f"Expected in the answer: “{expectation(record)}”; {'; '.join(parts)}."


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _bounded(expected: str) -> bool:
    """Whether it begins and ends with a letter or digit that words are made of."""
    plain = _plain(expected)
    return bool(re.match("[0-9a-z]", plain) and re.search("[0-9a-z]$", plain))
