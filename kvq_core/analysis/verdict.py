"""What a lane's measurements amount to: a tier, or what is missing to tell tiers apart. The rule is the data below."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, floor, inf, log10
from typing import Any, Literal

import numpy as np

from kvq_core.analysis.floors import floor_title, floors, lane_of, larger
from kvq_core.analysis.free_text import GRAM, PLACES, TIMES, FreeText, free_text
from kvq_core.analysis.scored import CONFIDENCE, At, pooled, tail
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Metrics, Record

Tone = Literal["good", "warn", "bad", "quiet"]


@dataclass(frozen=True)
class Tier:
    """The highest figures of a tier: mean and 99th percentile of KLD in nats, flips as a share of positions."""

    word: str
    tone: Tone
    kld: float = inf
    p99: float = inf
    flips: float = inf


# The rule. KLD decides by its interval over the scored positions. Positions are resampled one by one: on the shipped
# runs, the KLD of neighbouring ones is not correlated. Flips and p99 can only lower a tier.
TIERS = (Tier("close", "good", 0.01, 0.1, 0.01), Tier("marginal", "warn", 0.1, 1.0, 0.05), Tier("risky", "bad"))
MIN_SCORED = 50  # positions below which there is no verdict
P99_FROM = 200  # positions from which the 99th percentile is more than one or the other token
RESAMPLES = 2000  # of the bootstrap
SEED = 0  # of numpy's default generator, which draws them
UNJUDGED = ("not a number", "never engaged", "no verdict")  # beside "failed", words of lanes that have no tier
MOST_MORE = 10_000  # positions; where more are needed, the mean lies on the threshold

EXPLAINED = (
    "{}; {}: beyond. KLD decides by its {:g} % bootstrap interval over the scored positions; where a threshold lies in "
    "it, more of them are needed. Flips that are no near ties lower a tier only where the lower end of their {:g} % "
    "Wilson interval is above the threshold; p99 counts from {} positions on. No verdict under {} scored positions. A "
    "lane is not {} whose own text repeats itself where the reference's does not: {} or more of its tokens end a run "
    "of {} that stands there for the {}rd time or a later one."
).format(
    "; ".join(
        f"{t.word}: mean KLD ≤ {t.kld:g} nats, flips ≤ {100 * t.flips:g} %, p99 ≤ {t.p99:g} nats" for t in TIERS[:-1]
    ),
    TIERS[-1].word,
    100 * CONFIDENCE,
    100 * CONFIDENCE,
    P99_FROM,
    MIN_SCORED,
    TIERS[0].word,
    PLACES,
    GRAM,
    TIMES,
)


@dataclass(frozen=True)
class Verdict:
    """``word`` in two or three words, ``sentence`` what to know of it (may be empty), ``why`` its numbers."""

    word: str
    tone: Tone
    why: str
    sentence: str = ""


def verdict(record: Record, arrays: Arrays, at: At) -> Verdict:
    """The verdict of a lane, by its index, or of a floor; ``why`` holds the numbers."""
    lane, kld = lane_of(record, at), pooled(arrays, at, "kld")
    m = lane.metrics
    found = verdict_on(lane, m or Metrics(n_scored=0), kld, _beside(record, arrays))
    judges = m is not None and lane.status != "failed" and found.word not in UNJUDGED
    if judges and isinstance(at, int):
        found = _lowered_by_text(found, free_text(record, at))
    return _beside_kernel(found, record, kld) if judges and at != "kernel" else found


def verdict_on(lane: LaneRecord, m: Metrics, kld: np.ndarray, beside: str = "") -> Verdict:
    """The verdict on ``kld`` (positions,) of a lane, all of them or some: of ``m`` the positions, flips and near ties
    count. ``beside``: what stands beside the numbers in ``why``."""
    if lane.status == "failed":
        return Verdict("failed", "bad", lane.error or "")
    if "nan" in lane.flags or not np.isfinite(kld).all():
        return Verdict("not a number", "bad", "The lane's logits hold NaN or infinity.")
    if "never_engaged" in lane.flags:
        return Verdict("never engaged", "warn", "Nothing was quantized: this lane equals the noise floor.")
    scored = min(m.n_scored, len(kld))
    if scored < MIN_SCORED:
        positions = "position" if scored == 1 else "positions"
        return Verdict("no verdict", "quiet", f"{scored} scored {positions}; a verdict needs {MIN_SCORED}.")
    return _tiered(m, kld, beside)


def _tiered(m: Metrics, kld: np.ndarray, beside: str) -> Verdict:
    low, high = mean_interval(kld.tobytes())
    best, worst = (_first(end, "kld") for end in (low, high))
    n, p99 = len(kld), float(np.percentile(kld, 99))
    apart = min(n, max(0, m.flips - m.near_tie_flips))
    flipped = f"{apart} of {n} positions flip without a near tie"
    by_flips = _first(_surely(apart, n), "flips")
    by_p99 = _by_p99(p99, n)
    lowest, cause = max((by_flips, flipped), (by_p99, f"its p99 is {p99:.2g} nats"))
    above, below = max(best, lowest), max(worst, lowest)
    mean = f"mean KLD is {kld.mean():.2g} nats, {100 * CONFIDENCE:g} % interval {low:.2g} to {high:.2g}"
    why = f"Its {mean}; {_tail_of(kld)}; {flipped}{beside}. {EXPLAINED}"
    if above != below:
        named = [TIERS[at].word for at in (above, below)]
        said = f"Cannot tell {' from '.join(named)}: score {_more(kld, low, high, above, below)} more."
        return Verdict(_range_word(above, below), "quiet", f"{said} {why}", said)
    could = "would" if worst < lowest else "could"
    said = f"By KLD it {could} be {TIERS[best].word}, but {cause}." if best < lowest else ""
    return Verdict(TIERS[below].word, TIERS[below].tone, why, said)


def _range_word(above: int, below: int) -> str:
    """The word of a verdict that may be of several tiers."""
    joined = " or " if below == above + 1 else " to "
    return joined.join(TIERS[at].word for at in dict.fromkeys((above, below)))


def _lowered_by_text(found: Verdict, text: FreeText) -> Verdict:
    """A verdict that leaves the first tier open, without it where the lane's own text repeats itself."""
    named = [at for at, tier in enumerate(TIERS) if tier.word in found.word.split()]
    if text.repeats_from is None or named[0] > 0:
        return found
    tone = "quiet" if named[-1] > 1 else TIERS[1].tone
    by_numbers = "would" if named == [0] else "could"
    said = (
        f"By its numbers it {by_numbers} be {TIERS[0].word}, but its own text repeats “{text.repeated.strip()}” from "
        f"token {text.repeats_from} on."
    )
    return Verdict(_range_word(1, max(1, named[-1])), tone, f"{said} {found.why}", said)


def point_tier(scored: int, kld: float, p99: float, flips: int) -> Tier | None:
    """The tier of figures as they are, without their intervals: mean KLD and its p99 in nats, and flips without a near
    tie, of so many scored positions; None where these are too few for a verdict."""
    if scored < MIN_SCORED:
        return None
    return TIERS[max(_first(kld, "kld"), _by_p99(p99, scored), _first(flips / scored, "flips"))]


def _by_p99(p99: float, scored: int) -> int:
    return _first(p99, "p99") if scored >= P99_FROM else 0


def _first(value: float, figure: Literal["kld", "p99", "flips"]) -> int:
    """The first tier that allows a figure."""
    return next(at for at, tier in enumerate(TIERS) if value <= getattr(tier, figure))


def resampling() -> dict[str, Any]:
    """What draws the resamples, as data: numpy's PCG64, 128 bits as hexadecimal text, from which each index below n is
    drawn as ``Generator.integers`` draws it (Lemire's method on 32 bits, the low half of each output first)."""
    state = np.random.default_rng(SEED).bit_generator.state["state"]
    return {
        "state": f"{state['state']:032x}",
        "increment": f"{state['inc']:032x}",
        "multiplier": "2360ed051fc65da44385df649fccf645",
        "resamples": RESAMPLES,
    }


@lru_cache(maxsize=256)
def mean_interval(values: bytes) -> tuple[float, float]:
    """The bootstrap interval (BCa) of the mean of float64 values."""
    kld = np.frombuffer(values)
    if np.ptp(kld) == 0:
        return float(kld[0]), float(kld[0])
    from scipy.stats import bootstrap  # a second's import that most commands never need

    found = bootstrap(
        (kld,), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, batch=256, rng=np.random.default_rng(SEED)
    ).confidence_interval
    return float(found.low), float(found.high)


def _surely(flips: int, scored: int) -> float:
    """The lower end of the Wilson interval of a share."""
    from scipy.stats import binomtest

    return float(binomtest(flips, scored).proportion_ci(CONFIDENCE, method="wilson").low)


def _more(kld: np.ndarray, low: float, high: float, above: int, below: int) -> str:
    """How many positions more would take the thresholds between two tiers out of the interval, rounded up to one digit:
    it narrows with the root of their number, and its longer side shrinks to its half."""
    mean, needed = float(kld.mean()), 0.0
    for tier in TIERS[above:below]:
        reach = max(high - mean if mean < tier.kld else mean - low, (high - low) / 2)
        needed = max(needed, (reach / (abs(mean - tier.kld) or 1e-12)) ** 2)
    more = len(kld) * (needed - 1)
    if more > MOST_MORE:
        return f"over {MOST_MORE:,}"
    unit = 10 ** max(1, floor(log10(max(more, 1))))
    return f"some {max(1, ceil(more / unit)) * unit:,}"


def _beside_kernel(found: Verdict, record: Record, kld: np.ndarray) -> Verdict:
    """What to know of a lane that is no further from the reference than another kernel would be."""
    floor = record.kernel_floor.metrics if record.kernel_floor else None
    if floor is None or floor.kld_mean is None or kld.mean() > floor.kld_mean:
        return found
    said = f"No further off than another kernel: mean KLD {kld.mean():.2g} against {floor.kld_mean:.2g} nats."
    return replace(found, sentence=" ".join(filter(None, [found.sentence, said])))


def _tail_of(kld: np.ndarray) -> str:
    found = tail(kld)
    if found is None:
        return ""
    sure = f", {found.interval}" if found.interval else ""
    return f"{found.name} is {found.value:.2g} nats{sure}"


def _beside(record: Record, arrays: Arrays) -> str:
    at = larger(record)
    m, high = lane_of(record, at).metrics, tail(pooled(arrays, at, "kld"))
    if m is None or m.kld_mean is None:
        return ""
    named = "noise floor" if len(floors(record)) == 1 else f"larger floor, {floor_title(record, at)}"
    edge = f"{high.name} {high.value:.2g} nats, " if high else ""
    return f" ({named}: mean KLD {m.kld_mean:.2g}, {edge}flips {m.flip_rate or 0:.1%})"


def tier_counts(shares: Mapping[str, float], prompts: int) -> list[tuple[int, str]]:
    """Of so many prompts those in each tier that has any, and how many have too few positions for a verdict."""
    counts = [(round(shares[tier.word] * prompts), tier.word) for tier in TIERS]
    counts.append((prompts - sum(count for count, _ in counts), "no verdict"))
    return [(count, word) for count, word in counts if count]
