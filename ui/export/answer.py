"""The answer first: what was asked, one sentence with its reason, and the plot that it rests on."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.escape import prose, safe, shorten
from ui.html.tradeoff import tradeoff
from ui.html.verdict import check_link
from ui.service.records import drawn_lanes
from ui.words.answer import answer, floor_words

NOTHING_CHOSEN: Mapping[str, Any] = MappingProxyType({})
UNANSWERED = '<h1 class="sr-only">KVQ Explorer</h1>'  # the page's heading, while no answer is


def _beyond(others: str) -> str:
    return f'<p class="beyond">{prose(others)}</p>' if others else ""


def _trust(said: str) -> str:
    """The count, and behind it of what it is one."""
    told, _, counted = said.partition(": ")
    return f'<details class="reason trust"><summary>{prose(told)}</summary>{prose(counted)}</details>' if said else ""


def answer_html(record: Record, arrays: Arrays, shown: Mapping[str, Any] = NOTHING_CHOSEN, served: bool = True) -> str:
    """Of all lanes of a run; ``shown``: what a page shows of it; ``served``: whether a server answers its links."""
    found = answer(record, arrays)
    where = f"run {record.id[:8]} · {record.created[:10]}"
    head = prose(found.sentence)
    if found.lane is not None:
        label = safe(record.lanes[found.lane].label)
        head = f'<mark class="lane-{record.number(found.lane)}">{label}</mark> {head}'
    facts = "".join(f'<span class="pill">{safe(fact)}</span>' for fact in found.facts)
    facts += check_link(record.id, "pill") if served else ""
    plot = tradeoff(record, arrays, floor_words(record), drawn_lanes(record, shown))
    return (
        f'<section class="card answer-first" aria-label="The answer" data-run="{safe(record.id)}"><div>'
        f'<p class="asked">{safe(found.asked)} · '
        f"<q>{safe(shorten(record.question, 64))}</q> · {safe(where)}</p>"
        f'<h1 id="answer-said" tabindex="-1">{head}</h1>'
        f"{_beyond(found.others)}"
        f'<p class="reason">{prose(found.reason)}</p>{_trust(found.trust)}'
        f'<p class="pills">{facts}</p></div>{plot}</section>'
    )
