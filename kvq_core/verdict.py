"""What a lane's measurements amount to: a tier with its thresholds stated, and why two texts of one cache differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvq_core.record import LaneRecord, Record

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


def why_texts_differ(record: Record, arrays: Mapping[str, Any], index: int) -> str:
    """Why a lane's own (free) text and the scores on the reference's (forced) text tell different stories."""
    lane = record.lanes[index]
    m = lane.metrics
    if lane.status == "failed" or m is None or not lane.token_ids:
        return "" if lane.error is None else "This lane has no text: it failed."
    at, count = m.first_divergence, len(record.reference.token_ids)
    if at is None:
        return (
            f"Both texts are the same {count} tokens: the lane chose the reference's token every time, although its "
            f"probabilities moved by {_nats(m.kld_mean)} on average."
        )
    parted = f"The texts part at token {at + 1} of {count}, {_parting(record, arrays, index, at)}."
    same = arrays.get(f"lane/{index}/same_top")
    if same is None or not len(same):
        return parted
    # scored position s is about token s + 1; the free row stays with the forced one up to where they part
    later = [not bool(s) for s in same[at:]]
    return (
        f"{parted} From there on the free text continues what the lane itself wrote, while the forced scores keep "
        f"following the reference's words: on those the lane would have chosen another token {sum(later)} more "
        f"{'time' if sum(later) == 1 else 'times'} in {len(later)} positions. One early choice can change a whole text "
        "whose scores stay small, so read both."
    )


def _parting(record: Record, arrays: Mapping[str, Any], index: int, at: int) -> str:
    """The two tokens at the divergence, and how close the reference's own choice was."""
    lane, m = record.lanes[index], record.lanes[index].metrics
    assert m is not None
    words = [row[at] if at < len(row) else "the end" for row in (record.reference.tokens, lane.tokens)]
    chosen = f"where the reference goes on with {words[0]!r} and the lane with {words[1]!r}"
    margins = arrays.get("reference/margin")
    if record.spec.get("temperature"):
        return f"{chosen} (both drawn with the same random number)"
    if margins is None or not 0 < at <= len(margins):
        return chosen
    margin = float(margins[at - 1])
    if margin <= m.near_tie_margin:
        return f"{chosen}: a near-tie, the reference's two best tokens are only {margin:.2f} logits apart"
    return f"{chosen}, although the reference preferred its token by {margin:.2f} logits: no near-tie, but damage"


def _nats(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.2g} nats"
