"""Numbers as people read them: two or three significant digits and a unit."""

import math
import re
from collections.abc import Sequence

from kvq_core.sizing.units import size_text

ABSENT = "–"


def significant(value: float | None, digits: int = 3) -> str:
    """``0.2041`` -> ``0.204``, ``6e-07`` -> ``6e-7``; a dash for what is missing or not finite."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        mantissa, exponent = f"{value:.{max(0, digits - 2)}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def percent(fraction: float | None, digits: int = 0) -> str:
    """``0.1134`` -> ``11 %``."""
    if fraction is None or not math.isfinite(fraction):
        return ABSENT
    return f"{100 * fraction:.{digits}f} %"


def bits(value: float | None) -> str:
    """Bits per element: ``3.08``, ``16``."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:.2f}".rstrip("0").rstrip(".")


def both_bits(key: float | None, value: float | None, declared: bool = False) -> str:
    """Of keys and of values: ``3.08 / 4``, with a star where somebody declares them and nobody counted."""
    return f"{bits(key)} / {bits(value)}{'*' if declared else ''}"


def seconds(value: float | None) -> str:
    """``0.18 s``, ``12 s``, ``2 min 5 s``."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value >= 60:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{value:.0f} s" if value >= 10 else f"{significant(value, 2)} s"


def size(count: float | None) -> str:
    """Bytes: ``812 KB``, ``1.1 GB`` (powers of 1000)."""
    if count is None or not math.isfinite(count):
        return ABSENT
    return size_text(count)


def plural(count: int, noun: str) -> str:
    """``1 lane``, ``3 lanes``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def join_words(items: Sequence[object], last: str = "and") -> str:
    """``0``, ``0 and 1``, ``0, 1 and 2``; of items with a comma, but in brackets, ``0, 1; 2; and 3``."""
    said = [str(item) for item in items]
    listed = any("," in re.sub(r"\([^)]*\)", "", item) for item in said)
    between, end = ("; ", "; ") if listed else (", ", " ")
    return f"{between.join(said[:-1])}{end}{last} {said[-1]}" if len(said) > 1 else said[0]
