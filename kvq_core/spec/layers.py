"""Layers' numbers in words."""

from collections.abc import Iterable, Iterator
from itertools import pairwise


def layer_words(layers: Iterable[int]) -> str:
    """``layer 3``, ``layers 0-3, 7``."""
    numbers = sorted(set(layers))
    spans = [f"{first}-{last}" if last > first else str(first) for first, last in _runs(numbers)]
    return f"{'layer' if len(numbers) == 1 else 'layers'} {', '.join(spans)}"


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    ends = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    for start, end in pairwise([0, *ends, len(numbers)]):
        yield numbers[start], numbers[end - 1]
