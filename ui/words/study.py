"""Sentences of a study: which lane stays closest, what cannot be told from it, and the smallest of these."""

from dataclasses import dataclass
from typing import Any

from kvq_core.analysis.verdict import TIERS
from kvq_core.studies.pairs import PairedDifference
from kvq_core.studies.result import StudyResult
from ui.html.numbers import join_words, percent, plural, significant

MOST_SAID = 3  # lanes named in a sentence

Line = dict[str, Any]


@dataclass(frozen=True)
class StudyWords:
    """``sentence`` says it; ``reasons`` why, a sentence each."""

    sentence: str
    reasons: tuple[str, ...] = ()


def study_words(result: StudyResult, model: str) -> StudyWords:
    """Of one model's lanes."""
    lanes = [line for line in result.lines if line["model"] == model and line["kld_mean"] is not None]
    if not lanes:
        return StudyWords("No cell is done yet." if not result.failed else "No cell could be computed.")
    best = min(lanes, key=lambda line: line["kld_mean"])
    prompts = plural(best["prompts"], "prompt")
    if len(lanes) == 1:
        return StudyWords(f"{best['label']}: mean KLD {_mean(best)} over {prompts}.", (_bytes(best),))
    pairs = [pair for pair in result.pairs if pair.model == model]
    alike = [line for line in lanes if line is not best and not _apart(best, line, pairs)]
    said = "has the lowest mean KLD" if alike else "stays closest"  # a lower mean alone tells no two lanes apart
    sentence = f"{best['label']} {said} over {prompts}: {_mean(best)}."
    reasons = _alike(best, alike, pairs), _smallest(best, alike), _close(best, lanes)
    return StudyWords(sentence, tuple(filter(None, reasons)))


def _mean(line: Line) -> str:
    ends = "" if line["kld_low"] is None else f" ({significant(line['kld_low'])} to {significant(line['kld_high'])})"
    return f"{significant(line['kld_mean'])} nats{ends}"


def _bytes(line: Line) -> str:
    return "" if line["kv_ratio"] is None else f"It takes {percent(line['kv_ratio'])} of the bytes of an fp16 cache."


def _pair(a: Line, b: Line, pairs: list[PairedDifference]) -> PairedDifference | None:
    return next((pair for pair in pairs if {pair.a, pair.b} == {a["label"], b["label"]}), None)


def _apart(best: Line, other: Line, pairs: list[PairedDifference]) -> bool:
    found = _pair(best, other, pairs)
    return found is not None and found.apart


def _alike(best: Line, alike: list[Line], pairs: list[PairedDifference]) -> str:
    """What cannot be told from the closest lane, and how many prompts would tell."""
    tested = [pair for line in alike if (pair := _pair(best, line, pairs)) and pair.p is not None]
    if not tested:
        return "" if not alike else "There are too few prompts to compare lanes."
    if len(tested) == 1:
        return tested[0].sentence
    names = [pair.b if pair.a == best["label"] else pair.a for pair in tested]
    rest = f" and {len(names) - MOST_SAID} more" if len(names) > MOST_SAID else ""
    needed = max((pair.needed or 0 for pair in tested), default=0)
    more = f"; about {needed:,} would tell all" if needed else ""
    said = ", ".join(names[:MOST_SAID]) + rest if rest else join_words(names)
    return f"{said} cannot be told apart from it with {plural(tested[0].prompts, 'prompt')}{more}."


def _close(best: Line, lanes: list[Line]) -> str:
    """The fewest bytes that are close whatever prompts are drawn; nothing where that is the best lane."""
    word = TIERS[0].word
    if best["kld_high"] is None:
        return ""
    sure = [line for line in lanes if line["tier"] == word and line["kv_ratio"] is not None]
    if not sure:
        held = f": by KLD {best['label']} is, but not by its {best['tier_reason']}" if _by_kld(best) else ""
        return f"No lane is surely {word}{held}."
    small = min(sure, key=lambda line: line["kv_ratio"])
    if small is best:
        return ""
    size = percent(small["kv_ratio"])
    return f"The smallest that is surely {word}: {small['label']}, {size} of the bytes, {_mean(small)}."


def _by_kld(line: Line) -> bool:
    """Whether KLD leaves it close and another figure does not."""
    return line["tier_reason"] not in (None, "KLD") and bool(line["kld_high"] <= TIERS[0].kld)


def _smallest(best: Line, alike: list[Line]) -> str:
    """The fewest bytes among the closest and what cannot be told from it."""
    sized = [line for line in (best, *alike) if line["kv_ratio"] is not None]
    if not sized:
        return ""
    small = min(sized, key=lambda line: line["kv_ratio"])
    if small is best or not alike:
        return _bytes(best)
    return (
        f"The smallest of these is {small['label']}: {percent(small['kv_ratio'])} of the bytes of an fp16 cache, "
        f"where {best['label']} takes {percent(best['kv_ratio'])}."
    )
