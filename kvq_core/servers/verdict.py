"""One verdict of what a server's cache costs: nothing at all, as much as its format should, more, or not to be told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kvq_core.engines import engines
from kvq_core.studies.intervals import FEWEST, MeanInterval, mean_interval

LEAST_FLOOR = 1e-6  # nats: log-probabilities are told in single precision
FLOORS, TENTH = 3.0, 0.1
WITHIN = 0.3  # what ours may be off, as docs/numbers.md has it beside llama.cpp itself
Word = Literal["no-op", "as expected", "worse", "cannot tell"]
ByPrompt = Sequence[Sequence[float]]


@dataclass(frozen=True)
class CacheVerdict:
    """``floor``: its interval's upper end; ``why``: in a sentence; ``suspects``: what to look at where it is worse."""

    word: Word
    why: str
    kld: MeanInterval
    floor: float
    predicted: MeanInterval | None
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundNats:
    """Nats by prompt and position: ``delivered`` by the server, ``floor`` by its baseline asked again, and ``lanes`` as
    ours predict, see ``predicted.predict``, or why they do not. ``reused``: share of the tokens sent that the server
    had stored; ``stored``: whether it reads a text anew through its cache; ``engine``: its name."""

    delivered: ByPrompt
    floor: ByPrompt
    reused: float | None
    stored: bool | None
    engine: str
    tolerance: float | None
    lanes: dict[str, list[list[float]]] = field(default_factory=dict)
    unpredicted: str = ""


def over_prompts(values: ByPrompt) -> MeanInterval:
    """The mean over prompts of what is at least 0; of fewer prompts than have intervals the interval is over positions,
    which is too narrow: they resemble one another."""
    means = np.array([max(0.0, float(np.mean(each))) for each in values])
    if len(means) >= FEWEST:
        return mean_interval(means)
    found = mean_interval(np.maximum(np.concatenate([np.asarray(each) for each in values]), 0))
    return MeanInterval(float(means.mean()), found.low, found.high)


def judge(found: FoundNats) -> CacheVerdict:
    kld = over_prompts(found.delivered)
    floors = [found.floor, *([found.lanes["floor"]] if "floor" in found.lanes else [])]
    floor = max(LEAST_FLOOR, *(_ends(over_prompts(each))[1] for each in floors))
    predicted = over_prompts(found.lanes["format"]) if "format" in found.lanes else None
    word, why = _word(found, kld, floor, predicted)
    suspects = _suspects(found, kld) if word == "worse" else ()
    return CacheVerdict(word, why, kld, floor, predicted, suspects)


def _word(found: FoundNats, kld: MeanInterval, floor: float, predicted: MeanInterval | None) -> tuple[Word, str]:
    if found.reused is not None and found.reused < 0.5 and not found.stored:
        return "cannot tell", (
            "The server reused less than half of the tokens it had read, so that most of what was measured may never "
            "have come from its cache; turn prefix caching on."
        )
    low, high = _ends(kld)
    if predicted is None:
        return _by_tolerance(found, low, high, floor)
    under, over = (1 - WITHIN) * _ends(predicted)[0] - floor, (1 + WITHIN) * _ends(predicted)[1] + floor
    if high <= FLOORS * floor and high <= TENTH * predicted.value:
        return "no-op", (
            f"It costs what rounding alone does (at most {high:.2g} nats), where this format costs about "
            f"{predicted.value:.2g}: the flag does nothing."
        )
    if low > over:
        return "worse", f"It costs {kld.value / max(predicted.value, floor):.1f} times what this format should."
    if predicted.value <= FLOORS * floor:
        return "cannot tell", (
            f"This format costs about {predicted.value:.2g} nats, which rounding alone hides here (floor {floor:.2g}); "
            "compare files whose weights are not quantized, with nobody else asking."
        )
    if high < under:
        return "cannot tell", (
            f"It costs less than this format does ({kld.value:.2g} of {predicted.value:.2g} nats): another, finer "
            "format may be in use, or for keys or values alone."
        )
    if low <= FLOORS * floor or high > 2 * over or len(found.delivered) < 2:
        return "cannot tell", f"The interval is too wide; about {_more(found, low, high)} more prompts would narrow it."
    return "as expected", "It costs what this format costs by our own lane."


def _by_tolerance(found: FoundNats, low: float, high: float, floor: float) -> tuple[Word, str]:
    told = f"What the format should cost is not known: {found.unpredicted}"
    if found.tolerance is None:
        seen = "is not to be told from rounding" if high <= FLOORS * floor else "costs more than rounding alone"
        return "cannot tell", f"{told} The cache {seen}; a tolerance decides."
    if high <= found.tolerance:
        return "as expected", f"{told} It is within the tolerance of {found.tolerance:g} nats."
    if low > found.tolerance:
        return "worse", f"{told} It is beyond the tolerance of {found.tolerance:g} nats."
    more = _more(found, low, high)
    return "cannot tell", f"{told} The tolerance lies in the interval; about {more} more prompts would narrow it."


def _ends(interval: MeanInterval) -> tuple[float, float]:
    return (
        interval.value if interval.low is None else interval.low,
        interval.value if interval.high is None else interval.high,
    )


def _more(found: FoundNats, low: float, high: float) -> int:
    """Prompts beside these that would halve the interval: three times as many, and those that an interval needs."""
    return max(FEWEST, 4 * len(found.delivered)) - len(found.delivered) if high > low else FEWEST


def _suspects(found: FoundNats, kld: MeanInterval) -> tuple[str, ...]:
    said = []
    if "unrotated" in found.lanes:
        without = over_prompts(found.lanes["unrotated"]).value
        if without > 0 and kld.value > 0 and abs(math.log(kld.value / without)) < math.log(2):
            said.append(f"rotation: without it this format costs {without:.2g} nats (LLAMA_ATTN_ROT_DISABLE?)")
    if found.reused is not None and found.reused < 0.5:
        said.append("prefixes: the server reused less than half of the tokens that it had read")
    early, late = (
        np.mean([np.mean(each[part]) for each in map(np.asarray, found.delivered)]) for part in _halves(found)
    )
    if late > 3 * early > 0:
        said.append("windows: the second half of an answer costs more than three times the first")
    row = engines().get(found.engine)
    if row is None or row.scales:
        of = "" if row is None else f" of {', '.join(row.scales)}"
        said.append(f"scales: static ones{of} that were never calibrated stay at 1.0")
    return (*said, "another build, or other weights")


def _halves(found: FoundNats) -> tuple[slice, slice]:
    middle = max(1, min(map(len, found.delivered)) // 2)
    return slice(0, middle), slice(middle if min(map(len, found.delivered)) > 1 else 0, None)
