"""The run's answer in words: which cache to take, why, and what it would take at a planned size."""

from dataclasses import dataclass

from kvq_core.analysis.choice import PLANNED_BATCH, PLANNED_TOKENS, LaneChoice, choose, planned_bytes
from kvq_core.analysis.explain import explain
from kvq_core.analysis.floors import floors
from kvq_core.analysis.verdict import TIERS, verdict
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.numbers import join_words, percent, plural, significant, size

NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")
MOST_NAMED = 3  # lanes in one sentence
NOTHING = "No lane was measured: there is no answer."


@dataclass(frozen=True)
class AnswerWords:
    """``lane`` is the one the sentence begins with, by its index; ``sentence`` goes on after its name. ``others`` and
    ``reason`` may be empty, ``facts`` are short."""

    asked: str
    lane: int | None
    sentence: str
    others: str
    reason: str
    facts: tuple[str, ...]


def answer(record: Record, arrays: Arrays) -> AnswerWords:
    """Of all lanes of a run."""
    asked = f"{_count(len(record.lanes))}, one prompt on {record.environment.model_title}"
    found = choose(record, arrays)
    if found is None:
        return AnswerWords(asked, None, NOTHING, "", "", ())
    said = _verdict(record, arrays, found), _beyond(record, found), _reason(record, arrays, found)
    return AnswerWords(asked, found.lane, *said, tuple(_facts(record, found)))


def _count(lanes: int) -> str:
    named = NUMBERS[lanes] if lanes < len(NUMBERS) else f"{lanes}"
    return f"{named} cache{'' if lanes == 1 else 's'}"


def _verdict(record: Record, arrays: Arrays, found: LaneChoice) -> str:
    """What is said of the lane, after its name; where tiers cannot be told apart, all of them."""
    several = len(record.lanes) > 1
    if found.tier is None:
        return f"moves {'least' if several else 'the text'} so far; too few tokens were scored for a verdict."
    bytes_of, last = _bytes(record, found.lane), len(TIERS) - 1
    if found.tier == 0:
        return f"stays close to full precision at {bytes_of}."
    word = verdict(record, arrays, found.lane).word
    told = f"may be anything from {word}" if " to " in word else f"is {word}"
    if several and found.tier == last:
        return f"moves least, at {bytes_of}, and {told.replace('is risky', 'is still risky')}."
    rest = f"; no cache here is {'surely ' if _maybe_close(record, arrays) else ''}close" if several else ""
    return f"{told} at {bytes_of}{rest}."


def _maybe_close(record: Record, arrays: Arrays) -> bool:
    """Whether any lane's verdict leaves open that it is of the first tier."""
    done = (index for index, lane in enumerate(record.lanes) if lane.status == "done")
    return any(TIERS[0].word in verdict(record, arrays, index).word.split() for index in done)


def _bytes(record: Record, index: int) -> str:
    memory = record.lanes[index].memory
    ratio = memory.kv_ratio if memory else None
    told = f"{percent(ratio)} of the bytes"
    return told if ratio is None or ratio < 1 else f"{told}, which saves nothing at this length"


def _beyond(record: Record, found: LaneChoice) -> str:
    """The lanes that are surely risky, and how soon their own texts leave the reference's."""
    others = [record.lanes[index] for index in found.beyond if index != found.lane]
    if not others or found.tier in (None, len(TIERS) - 1):
        return ""
    one = len(others) == 1
    names = join_words([lane.label for lane in others]) if len(others) <= MOST_NAMED else f"{len(others)} others"
    parted = [m.matched_prefix for lane in others if (m := lane.metrics) and m.first_divergence is not None]
    if len(parted) < len(others):
        return f"{names} {'is' if one else 'are'} risky."
    leaves = "leaves the reference's text" if one else "leave the reference's text"
    return f"{names} {leaves} within {plural(max(parted), 'token')}."


def _reason(record: Record, arrays: Arrays, found: LaneChoice) -> str:
    lane = record.lanes[found.lane]
    assert lane.metrics is not None
    floor = record.noise_floor.metrics
    against = f", where rounding to fp16 alone costs {significant(floor.kld_mean, 2)}" if floor else ""
    told = [
        f"{lane.label}'s mean KLD is {significant(lane.metrics.kld_mean, 2)} nats over "
        f"{plural(lane.metrics.n_scored, 'position')}{against}."
    ]
    told.append(verdict(record, arrays, found.lane).sentence)
    told += explain(record, arrays, found.lane).sentences[:1]
    if found.closer is not None:  # last: what is said before is of the answer's own lane
        told.append(_closer(record, found.closer))
    return " ".join(filter(None, told))


def _closer(record: Record, index: int) -> str:
    lane = record.lanes[index]
    kld = significant(lane.metrics.kld_mean if lane.metrics else None, 2)
    kept: dict[tuple[str, ...], str] = {
        ("keys",): ", because it leaves values alone",
        ("values",): ", because it leaves keys alone",
    }
    return f"{lane.label} is closer still (KLD {kld}){kept.get(tuple(lane.quantized), '')}: {_bytes(record, index)}."


def _facts(record: Record, found: LaneChoice) -> list[str]:
    planned = planned_bytes(record, found.lane)
    tokens = f"{PLANNED_TOKENS // 1024}K × {PLANNED_BATCH}"
    facts = [] if planned is None else [f"{tokens}: {size(planned[0])} instead of {size(planned[1])}"]
    return [*facts, "seen on one prompt"]


def floor_words(record: Record) -> str:
    """The run's floors by name, for the edge of a plot."""
    named = {"noise": "fp16 storage", "kernel": "another kernel"}
    costs = [
        f"{named[str(at)]} {significant(m.kld_mean, 1)}" for at, lane in floors(record).items() if (m := lane.metrics)
    ]
    return " · ".join(costs)
