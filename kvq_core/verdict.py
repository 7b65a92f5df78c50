"""What a lane's measurements amount to: a tier with its thresholds stated."""

from dataclasses import dataclass
from typing import Literal

from kvq_core.record import LaneRecord

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


def verdict(lane: LaneRecord, noise_floor: LaneRecord | None = None) -> Verdict:
    """The tier of a lane, or why there is none; ``why`` holds its numbers beside those of the noise floor."""
    if lane.status == "failed":
        return Verdict("failed", "bad", lane.error or "")
    if "nan" in lane.flags:
        return Verdict("not a number", "bad", "The lane's logits hold NaN or infinity.")
    if "never_engaged" in lane.flags:
        return Verdict("never engaged", "warn", "Nothing was quantized: this lane equals the noise floor.")
    m = lane.metrics
    if m is None or m.n_scored < MIN_SCORED or m.kld_mean is None:
        scored = m.n_scored if m else 0
        positions = "position" if scored == 1 else "positions"
        return Verdict("no verdict", "quiet", f"{scored} scored {positions}; a verdict needs {MIN_SCORED}.")
    why = f"{_numbers(lane)}{_beside(noise_floor)}. {EXPLAINED}"
    for word, tone, mean, p99, flips in TIERS:
        if m.kld_mean <= mean and (m.kld_p99 or 0) <= p99 and (m.flip_rate or 0) <= flips:
            return Verdict(word, tone, why)
    return Verdict("risky", "bad", why)


def _numbers(lane: LaneRecord) -> str:
    m = lane.metrics
    if m is None or m.kld_mean is None:
        return "no numbers"
    return f"mean KLD {m.kld_mean:.2g}, p99 {m.kld_p99 or 0:.2g} nats, flips {m.flip_rate or 0:.1%}"


def _beside(noise_floor: LaneRecord | None) -> str:
    return f" (noise floor: {_numbers(noise_floor)})" if noise_floor is not None else ""
