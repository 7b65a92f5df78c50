"""What ``llama-perplexity --kl-divergence`` prints, read back."""

import re
from dataclasses import dataclass
from pathlib import Path

from kvq_core.errors import SpecError

_LINES = {
    "kld_mean": r"Mean\s+KLD:\s+([-\d.e]+)",
    "kld_p99": r"99\.0%\s+KLD:\s+([-\d.e]+)",
    "kld_max": r"Maximum\s+KLD:\s+([-\d.e]+)",
    "same_top": r"Same top p:\s+([\d.]+)",
}


@dataclass(frozen=True)
class LoggedRun:
    """Of one log: nats, and the share of positions with the same most probable token."""

    name: str
    kld_mean: float
    kld_p99: float | None
    kld_max: float | None
    same_top: float | None


def read_log(file: Path) -> LoggedRun:
    """Raises SpecError where the log has no KL divergence."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error}.") from None
    found = {name: float(match[1]) for name, words in _LINES.items() if (match := re.search(words, text))}
    if "kld_mean" not in found:
        raise SpecError(f"{file} has no line Mean KLD; give what llama-perplexity --kl-divergence printed.")
    same = found.get("same_top")
    share = None if same is None else same / 100
    return LoggedRun(file.stem, found["kld_mean"], found.get("kld_p99"), found.get("kld_max"), share)
