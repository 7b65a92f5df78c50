"""What a lane wrote by itself: where it leaves the reference's text, and whether it repeats itself or ends early."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvq_core.record.fields import LaneRecord, Record

# The rule of repetition: PLACES tokens or more end an n-gram of GRAM tokens that the text has held TIMES - 1 times
# before. Sentences with a refrain stay below it; a loop of up to a third of a text's length does not.
GRAM, TIMES, PLACES = 4, 3, 8


@dataclass(frozen=True)
class FreeText:
    """A lane's own text beside the reference's. ``differs_at``: its first other token, None where there is none;
    ``ends_at``: its length in tokens where it ended and the reference went on; ``repeated``: what it writes over and
    over where the reference does not, ``repeats_from`` the token of its second turn."""

    differs_at: int | None
    ends_at: int | None = None
    repeats_from: int | None = None
    repeated: str = ""


def free_text(record: Record, index: int) -> FreeText:
    """Describe the own text of lane ``index``; of a lane that wrote none, where it would have left the reference's."""
    lane = record.lanes[index]
    differs_at = lane.metrics.first_divergence if lane.metrics else None
    if differs_at is None or not lane.token_ids or record.spec.get("free_text") is False:
        return FreeText(differs_at)
    early = lane.finish == "eos" and len(lane.token_ids) < len(record.reference.token_ids)
    ends_at = len(lane.token_ids) if early else None
    found = repetition(lane.token_ids)
    if found is None or repetition(record.reference.token_ids) is not None:
        return FreeText(differs_at, ends_at)
    start, length = found
    return FreeText(differs_at, ends_at, start, _words(lane, start, length))


def repetition(tokens: Sequence[int]) -> tuple[int, int] | None:
    """The token at which a text begins to repeat itself and the tokens of a turn; None where it does not."""
    grams = [tuple(tokens[at : at + GRAM]) for at in range(len(tokens) - GRAM + 1)]
    counts: Counter[tuple[int, ...]] = Counter()
    places = 0
    for gram in grams:
        counts[gram] += 1
        places += counts[gram] >= TIMES
    if places < PLACES:
        return None
    most = max(counts, key=lambda gram: counts[gram])
    first, second = [at for at, gram in enumerate(grams) if gram == most][:2]
    return second, second - first


def _words(lane: LaneRecord, start: int, length: int) -> str:
    return "".join(lane.tokens[start : start + length])
