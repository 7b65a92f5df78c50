"""The run's answer in words: what one prompt showed of all its lanes, and what the least harmful one takes.

What to deploy is no answer of one prompt: that takes a study, see kvq_core.recommend.
"""

from dataclasses import dataclass

from kvq_core.analysis.choice import PLANNED_BATCH, PLANNED_TOKENS, LaneChoice, choose, planned_bytes
from kvq_core.analysis.explain import explain
from kvq_core.analysis.floors import floors
from kvq_core.analysis.free_text import FreeText, free_text
from kvq_core.analysis.verdict import TIERS, verdict
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.studies.agreement import line_of, shipped_agreement
from ui.html.escape import shorten
from ui.html.numbers import join_words, percent, plural, significant, size

NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")
MOST_NAMED = 3  # lanes in one sentence
NOTHING = "No lane was measured: there is no answer."


@dataclass(frozen=True)
class AnswerWords:
    """``lane`` is the one the sentence begins with, by its index; ``sentence`` goes on after its name. ``others`` and
    ``reason`` may be empty, ``facts`` are short. ``trust``: how often one prompt is right; empty where no tier is said,
    or where that was not counted."""

    asked: str
    lane: int | None
    sentence: str
    others: str
    reason: str
    facts: tuple[str, ...]
    trust: str = ""


def answer(record: Record, arrays: Arrays) -> AnswerWords:
    """Of a run with all its lanes, also where a page draws some of them."""
    asked = f"{_count(len(record.lanes))}, one prompt on {record.environment.model_title}"
    found = choose(record, arrays)
    if found is None:
        return AnswerWords(asked, None, NOTHING, "", "", ())
    broken = " ".join(filter(None, [_beyond(record, found), *_broken_texts(record, found)]))
    said = _verdict(record, arrays, found), broken, _reason(record, arrays, found)
    return AnswerWords(asked, found.lane, *said, tuple(_facts(record, found)), "" if found.tier is None else trust())


def answer_line(record: Record, arrays: Arrays) -> str:
    """The answer in one sentence, as previews, pictures, reports and the API tell it."""
    found = answer(record, arrays)
    return found.sentence if found.lane is None else f"{record.lanes[found.lane].label} {found.sentence}"


def trust() -> str:
    """How often a single prompt names the tier that all prompts of the study that ships name, and of what that was
    counted; empty where it was not, with today's results."""
    if (found := shipped_agreement()) is None:
        return ""
    line = line_of(found, "tier", 1)
    right, low, high, left = (round(100 * line[name]) for name in ("share", "low", "high", "open"))
    models = join_words(found["models"])
    return (
        f"One prompt names the tier right in {right} of 100 (95 % interval {low} to {high}) and leaves it open in "
        f"{left}: each of {found['prompts']} prompts alone against all of them, {line['cases']} cases of "
        f"{found['lanes']} cache formats on {models}, {line['positions']:.0f} scored positions a prompt."
    )


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
    sure = "surely " if _maybe_close(record, arrays) else ""
    rest = f"; none of the {len(record.lanes)} is {sure}{TIERS[0].word}" if several else ""
    return f"{told} at {bytes_of}{rest}."


def _maybe_close(record: Record, arrays: Arrays) -> bool:
    """Whether any lane's verdict leaves open that it is of the first tier."""
    placed = (verdict(record, arrays, index).placed for index in range(len(record.lanes)))
    return any(told is not None and told.best == 0 for told in placed)


def _bytes(record: Record, index: int) -> str:
    memory = record.lanes[index].memory
    ratio = memory.held_ratio if memory else None
    told = f"{percent(ratio)} of the fp16 cache"
    if memory and memory.host_bytes:
        told += f" with its copy in host memory ({percent(memory.kv_ratio)} without)"
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


def _broken_texts(record: Record, found: LaneChoice) -> list[str]:
    """What other lanes' own texts do that no figure of forced tokens shows, of MOST_NAMED lanes at most."""
    told = []
    for index, lane in enumerate(record.lanes):
        text = free_text(record, index)
        if index == found.lane or lane.status != "done":
            continue
        if text.repeats_from is not None:
            told.append(f"{lane.label} repeats {_quoted(text)} from token {text.repeats_from} on.")
        elif text.ends_at is not None and index in found.beyond:
            told.append(f"{lane.label} ends after {plural(text.ends_at, 'token')}, where full precision goes on.")
    more = len(told) - MOST_NAMED
    return [*told[:MOST_NAMED], *([f"{plural(more, 'other text')} of such kind."] if more > 0 else [])]


def _own_text(text: FreeText) -> str:
    """What the answer's lane wrote by itself."""
    if text.differs_at is None:
        return "It writes full precision's text, token for token."
    said = f"Its own text differs from full precision's from token {text.differs_at} on"
    if text.repeats_from is not None:
        return f"{said} and repeats {_quoted(text)}."
    return f"{said} and ends after {text.ends_at}." if text.ends_at is not None else f"{said}."


def _quoted(text: FreeText) -> str:
    return f"“{shorten(text.repeated.strip(), 40)}”"


def _reason(record: Record, arrays: Arrays, found: LaneChoice) -> str:
    lane = record.lanes[found.lane]
    assert lane.metrics is not None
    floor = record.noise_floor.metrics
    against = f", where rounding to fp16 alone costs {significant(floor.kld_mean, 2)}" if floor else ""
    told = [
        f"{lane.label}'s mean KLD is {significant(lane.metrics.kld_mean, 2)} nats over "
        f"{plural(lane.metrics.n_scored, 'position')}{against}."
    ]
    if record.spec.get("free_text") is not False:
        told.append(_own_text(free_text(record, found.lane)))
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
    return f"{lane.label} has a lower mean KLD ({kld}){kept.get(tuple(lane.quantized), '')}: {_bytes(record, index)}."


def _facts(record: Record, found: LaneChoice) -> list[str]:
    planned = planned_bytes(record, found.lane)
    tokens = f"{PLANNED_TOKENS // 1024}K × {PLANNED_BATCH}"
    facts = [] if planned is None else [f"{tokens}: {size(planned[0])} instead of {size(planned[1])}"]
    return [*facts, "1 prompt: not a ranking"]


def floor_words(record: Record) -> str:
    """The run's floors by name, for the edge of a plot."""
    named = {"noise": "fp16 storage", "kernel": "another kernel"}
    costs = [
        f"{named[str(at)]} {significant(m.kld_mean, 1)}" for at, lane in floors(record).items() if (m := lane.metrics)
    ]
    return " · ".join(costs)
