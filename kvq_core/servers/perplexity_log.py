"""What ``llama-perplexity --kl-divergence`` prints, read back."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvq_core.errors import SpecError
from kvq_core.machine import files

# tools/perplexity/perplexity.cpp, kl_divergence, of 050fc7f32; until PR 7058 its blocks began with Average and had no
# line for the same top: that is the last column of the last chunk's row there. C libraries write what is no number as
# nan, -nan, -nan(ind), 1.#QNAN or inf, and a decimal comma where their language has it.
_NUMBER = r"([-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?|\d\.#\w+|\d+(?:[.,]\d*)?(?:e[-+]?\d+)?))(?![^\s%])"
_BEGINS = re.compile(rf"(?:Mean\s+KLD|KL-divergence statistics\s+Average)\s*:\s*{_NUMBER}", re.IGNORECASE)
_LINES = {
    "kld_p99": rf"(?:\b99\.0%\s+KLD|KLD_99)\s*:\s*{_NUMBER}",
    "kld_max": rf"Maximum(?:\s+KLD)?\s*:\s*{_NUMBER}",
    "same_top": rf"Same top p\s*:\s*{_NUMBER}",
}
_CHUNK = re.compile(r"^ *(\d+) {4,}[-\dni].*$", re.MULTILINE)
_SAME = re.compile(rf"{_NUMBER} +\S+ +{_NUMBER}\s*$", re.IGNORECASE)  # of a chunk's row in the early form
_ANSI = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True)
class LoggedRun:
    """One result of a log: nats, and the share of positions with the same most probable token. ``broke``: why there is
    no mean KLD, where the log says that it is no number."""

    name: str
    kld_mean: float | None
    kld_p99: float | None
    kld_max: float | None
    same_top: float | None
    broke: str | None = None


def read_logs(logs: Sequence[Path]) -> list[LoggedRun]:
    """Every result of every log, named by its file: with its folder where files share a name, with its line where a log
    has several. Raises SpecError where a log has none."""
    stems = Counter(file.stem for file in dict.fromkeys(logs))
    return [run for file in dict.fromkeys(logs) for run in _results(file, stems[file.stem] > 1)]


def _results(file: Path, whole: bool) -> Iterator[LoggedRun]:
    text = _ANSI.sub("", _text(file))
    begins = list(_BEGINS.finditer(text))
    if not begins:
        chunks = _CHUNK.findall(text)
        ends = f"ends after chunk {chunks[-1][0]}, before its statistics" if chunks else "has no line Mean KLD"
        raise SpecError(f"{file} {ends}; give what a whole run of llama-perplexity --kl-divergence printed.")
    for at, begin in enumerate(begins):
        end = begins[at + 1].start() if at + 1 < len(begins) else len(text)
        line = text.count("\n", 0, begin.start()) + 1
        name = str(file) if whole else file.stem
        yield _run(name if len(begins) == 1 else f"{name}, line {line}", begin, text[begin.end() : end], text)


def _run(name: str, begin: re.Match[str], block: str, text: str) -> LoggedRun:
    said = {field: found[1] for field, line in _LINES.items() if (found := re.search(line, block, re.IGNORECASE))}
    numbers = {field: _finite(number) for field, number in said.items()}
    share = numbers.pop("same_top", None)
    rows = list(_CHUNK.finditer(text, 0, begin.start())) if "same_top" not in said else []
    early = _SAME.search(rows[-1][0]) if rows else None
    same = _finite(early[1]) if early else None if share is None else share / 100
    mean = _finite(begin[1])
    broke = None if mean is not None else f"its mean KLD is {begin[1]}: the run broke"
    return LoggedRun(name, mean, numbers.get("kld_p99"), numbers.get("kld_max"), same, broke)


def _finite(number: str) -> float | None:
    value = math.nan if "#" in number else float(number.partition("(")[0].replace(",", "."))
    return value if math.isfinite(value) else None


def _text(file: Path) -> str:
    """Raises SpecError where it cannot be read."""
    try:
        return file.read_text(encoding=files.encoding_of(file), errors="replace")
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror or error}.") from None
