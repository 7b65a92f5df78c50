"""The word lists and filler sentences that tasks are made of: data in ``presets/tasks``."""

import tomllib
from functools import cache

from numpy.random import Generator

from kvq_core.shipped import shipped

FOLDER = shipped("tasks")


@cache
def _lists(file: str) -> dict[str, list[str]]:
    return tomllib.loads((FOLDER / f"{file}.toml").read_text(encoding="utf-8"))


def words(kind: str) -> list[str]:
    """A list of ``words.toml``, such as nouns."""
    return _lists("words")[kind]


def draw_words(random: Generator, kind: str, count: int) -> list[str]:
    """So many different words of a list."""
    held = words(kind)
    return [held[i] for i in random.permutation(len(held))[:count]]


def filler(random: Generator, length: int) -> list[str]:
    """Sentences of at least ``length`` words together, the last of them needed for that."""
    parts = [_lists("filler")[name] for name in ("times", "subjects", "actions", "places")]
    sentences, held = list[str](), 0
    while held < length:
        time, subject, action, place = (part[random.integers(len(part))] for part in parts)
        sentences.append(f"{time}, {subject} {action} {place}.")
        held += len(sentences[-1].split())
    return sentences


def hidden(sentences: list[str], placed: list[tuple[float, str]]) -> str:
    """The sentences as one text, with others put in at their depths, 0 to 1."""
    at = [(round(depth * len(sentences)), text) for depth, text in placed]
    parts = list[str]()
    for i in range(len(sentences) + 1):
        parts += [text for place, text in at if place == i] + sentences[i : i + 1]
    return " ".join(parts)
