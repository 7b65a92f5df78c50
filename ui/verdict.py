"""What a lane's card says in one word, and when it says nothing. The thresholds are shown with the verdict."""

from dataclasses import dataclass
from typing import Literal

from kvq_core.record import LaneRecord
from ui.numbers import plural

MIN_SCORED = 50
Tone = Literal["good", "warn", "bad", "quiet"]

# (word, tone, highest mean KLD, highest p99 KLD, highest flip rate)
TIERS: tuple[tuple[str, Tone, float, float, float], ...] = (
    ("close", "good", 0.01, 0.10, 0.01),
    ("marginal", "warn", 0.10, 1.0, 0.05),
)
EXPLAINED = (
    "close: mean KLD ≤ 0.01, p99 ≤ 0.1 nats, flips ≤ 1 %; marginal: ≤ 0.1, ≤ 1 nats, ≤ 5 %; risky: beyond. "
    f"No verdict under {MIN_SCORED} scored positions."
)


@dataclass(frozen=True)
class Verdict:
    word: str
    tone: Tone
    why: str


def verdict(lane: LaneRecord) -> Verdict:
    """The tier of a lane, or why there is none."""
    if lane.status == "failed":
        return Verdict("failed", "bad", lane.error or "")
    if "nan" in lane.flags:
        return Verdict("not a number", "bad", "The lane's logits hold NaN or infinity.")
    if "never_engaged" in lane.flags:
        return Verdict("never engaged", "warn", "Nothing was quantized: this lane equals the noise floor.")
    m = lane.metrics
    if m is None or m.n_scored < MIN_SCORED or m.kld_mean is None:
        scored = m.n_scored if m else 0
        return Verdict("no verdict", "quiet", f"{plural(scored, 'scored position')}; a verdict needs {MIN_SCORED}.")
    for word, tone, mean, p99, flips in TIERS:
        if m.kld_mean <= mean and (m.kld_p99 or 0) <= p99 and (m.flip_rate or 0) <= flips:
            return Verdict(word, tone, EXPLAINED)
    return Verdict("risky", "bad", EXPLAINED)


def remarks(lane: LaneRecord) -> list[str]:
    """Sentences a reader needs before believing the numbers."""
    found = []
    m = lane.metrics
    if "never_engaged" in lane.flags and m:
        windows = lane.memory.tokens if lane.memory else 0
        found.append(
            f"All {windows:,} tokens fit in its full-precision windows; use a longer prompt or smaller windows."
        )
    if "partly_engaged" in lane.flags and m:
        found.append(f"Quantized in {plural(m.layers_quantized, 'layer')} only.")
    if m and m.flips and m.near_tie_flips:
        found.append(f"{m.near_tie_flips} of {plural(m.flips, 'flip')} near a tie in the reference.")
    return [*found, *lane.notes]
