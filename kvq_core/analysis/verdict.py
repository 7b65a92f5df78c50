"""What a lane's measurements amount to: a tier, or what is missing to tell tiers apart. The rule is the data below;
badges, plots, studies, decisions and the API read a lane by ``tier`` alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import ceil, floor, inf, isinf, log10
from typing import Any, Literal

import numpy as np

from kvq_core.analysis.floors import floor_title, floors, lane_of, larger
from kvq_core.analysis.free_text import GRAM, PLACES, TIMES, FreeText, free_text
from kvq_core.analysis.scored import CONFIDENCE, At, pooled, tail
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Metrics, Record

Tone = Literal["good", "warn", "bad", "quiet"]
Reason = Literal["KLD", "flips", "tail", "own text"]


@dataclass(frozen=True)
class Tier:
    """The highest figures of a tier: mean and 99th percentile of KLD in nats, flips as a share of positions, and the
    share of own texts that may repeat themselves where the reference's do not."""

    word: str
    tone: Tone
    kld: float = inf
    p99: float = inf
    flips: float = inf
    repeats: float = inf


# The rule. KLD decides by its interval over the scored positions. Positions are resampled one by one: on the shipped
# runs, the KLD of neighbouring ones is not correlated. Flips, p99 and the own text can only lower a tier.
RULE = "KLD, flips, tail, own text"
TIERS = (
    Tier("close", "good", 0.01, 0.1, 0.01, 0.01),
    Tier("marginal", "warn", 0.1, 1.0, 0.05),
    Tier("risky", "bad"),
)
MIN_SCORED = 50  # positions below which there is no verdict
P99_FROM = 200  # positions from which the 99th percentile is more than one or the other token
RESAMPLES = 2000  # of the bootstrap
SEED = 0  # of numpy's default generator, which draws them
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
class Figures:
    """What a tier is told by: the ends of the interval of the mean KLD and its 99th percentile, in nats; flips without
    a near tie among so many scored positions; the share of own texts that repeat themselves, see Tier."""

    low: float
    high: float
    p99: float
    flips: int
    scored: int
    repeats: float = 0.0


@dataclass(frozen=True)
class Placed:
    """The tiers that figures leave open, as places in TIERS, one where they are sure of it; ``by_kld``: the best one by
    KLD alone; ``reason``: the figure that decides the best one."""

    best: int
    worst: int
    by_kld: int
    reason: Reason

    @property
    def sure(self) -> bool:
        return self.best == self.worst

    @property
    def word(self) -> str:
        """Such as ``close``, ``close or marginal``, ``close to risky``."""
        joined = " or " if self.worst == self.best + 1 else " to "
        return joined.join(TIERS[at].word for at in dict.fromkeys((self.best, self.worst)))

    @property
    def tone(self) -> Tone:
        return TIERS[self.worst].tone if self.sure else "quiet"


def tier(found: Figures) -> Placed | None:
    """The one rule of tiers; None of too few scored positions."""
    if found.scored < MIN_SCORED:
        return None
    lowering: dict[Reason, int] = {
        "tail": _first(found.p99, "p99") if found.scored >= P99_FROM else 0,
        "flips": next(at for at, each in enumerate(TIERS) if found.flips <= most_flips(each, found.scored)),
        "own text": _first(found.repeats, "repeats"),
    }
    cause = max(lowering, key=lambda name: lowering[name])
    best, worst = _first(found.low, "kld"), _first(found.high, "kld")
    lowest = lowering[cause]
    return Placed(max(best, lowest), max(worst, lowest), best, cause if lowest > best else "KLD")


def most_flips(allowed: Tier, scored: int) -> float:
    """The most flips of so many positions that are not surely above a tier's share of them: as many as keep the lower
    end of their Wilson interval at it."""
    if isinf(share := allowed.flips):
        return inf
    from statistics import NormalDist

    spread = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * (share * (1 - share) / max(1, scored)) ** 0.5
    return scored * (share + spread)


def rule() -> dict[str, Any]:
    """The rule's name and bounds as data; null where a tier has no bound."""
    bounds = [{k: None if v == inf else v for k, v in asdict(each).items()} for each in TIERS]
    known = {"least": MIN_SCORED, "p99_from": P99_FROM, "confidence": CONFIDENCE}
    return {"name": RULE, "tiers": bounds, **known, "repetition": {"gram": GRAM, "times": TIMES, "places": PLACES}}


@dataclass(frozen=True)
class Verdict:
    """``word`` in two or three words, ``sentence`` what to know of it (may be empty), ``why`` its numbers; ``placed``:
    the tier or tiers, None of a lane that has none."""

    word: str
    tone: Tone
    why: str
    sentence: str = ""
    placed: Placed | None = None


def verdict(record: Record, arrays: Arrays, at: At) -> Verdict:
    """The verdict of a lane, by its index, or of a floor; ``why`` holds the numbers."""
    lane, kld = lane_of(record, at), pooled(arrays, at, "kld")
    text = free_text(record, at) if isinstance(at, int) else FreeText(None)
    found = verdict_on(lane, lane.metrics or Metrics(n_scored=0), kld, text, _beside(record, arrays))
    return found if found.placed is None or at == "kernel" else _beside_kernel(found, record, kld)


def verdict_on(lane: LaneRecord, m: Metrics, kld: np.ndarray, text: FreeText, beside: str = "") -> Verdict:
    """The verdict on ``kld`` (positions,) of a lane, all of them or some: of ``m`` the positions, flips and near ties
    count. ``text``: its own; ``beside``: what stands beside the numbers in ``why``."""
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
    return _tiered(m, kld, text, beside)


def _tiered(m: Metrics, kld: np.ndarray, text: FreeText, beside: str) -> Verdict:
    low, high = mean_interval(kld.tobytes())
    n, p99 = len(kld), float(np.percentile(kld, 99))
    apart = min(n, max(0, m.flips - m.near_tie_flips))
    found = tier(Figures(low, high, p99, apart, n, float(text.repeats_from is not None)))
    assert found is not None
    flipped = f"{apart} of {n} positions flip without a near tie"
    mean = f"mean KLD is {kld.mean():.2g} nats, {100 * CONFIDENCE:g} % interval {low:.2g} to {high:.2g}"
    causes = {
        "flips": flipped,
        "tail": f"its p99 is {p99:.2g} nats",
        "own text": f"its own text repeats “{text.repeated.strip()}” from token {text.repeats_from} on",
    }
    said = ""
    if found.reason in causes and (found.sure or found.reason == "own text"):
        could = "would" if _first(high, "kld") < found.best else "could"
        said = f"By KLD it {could} be {TIERS[found.by_kld].word}, but {causes[found.reason]}."
    elif not found.sure:
        said = f"Too close to call, {found.word}: score {_more(kld, low, high, found.best, found.worst)} more."
    why = f"Its {mean}; {_tail_of(kld)}; {flipped}{beside}. {EXPLAINED}"
    return Verdict(found.word, found.tone, " ".join(filter(None, [said, why])), said, found)


def _first(value: float, figure: Literal["kld", "p99", "repeats"]) -> int:
    """The first tier that allows a figure."""
    return next(at for at, each in enumerate(TIERS) if value <= getattr(each, figure))


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


def _more(kld: np.ndarray, low: float, high: float, above: int, below: int) -> str:
    """How many positions more would take the thresholds between two tiers out of the interval, rounded up to one digit:
    it narrows with the root of their number, and its longer side shrinks to its half."""
    mean, needed = float(kld.mean()), 0.0
    for each in TIERS[above:below]:
        reach = max(high - mean if mean < each.kld else mean - low, (high - low) / 2)
        needed = max(needed, (reach / (abs(mean - each.kld) or 1e-12)) ** 2)
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
    """Of so many prompts those in each tier that has any, those between tiers, and those without a verdict."""
    counts = [(round(share * prompts), word) for word, share in shares.items()]
    counts.append((prompts - sum(count for count, _ in counts), "no verdict"))
    return [(count, word) for count, word in counts if count]
