"""The answer first: what was asked, one sentence with its reason, and the plot that it rests on."""

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.escape import prose, safe, shorten
from ui.html.tradeoff import tradeoff
from ui.words.answer import answer, floor_words

UNANSWERED = '<h1 class="sr-only">KVQ Explorer</h1>'  # the page's heading, while no answer is


def _beyond(others: str) -> str:
    return f'<p class="beyond">{prose(others)}</p>' if others else ""


def answer_html(record: Record, arrays: Arrays) -> str:
    """Of the lanes that are drawn; what stands on the card is counted and told of the record alone."""
    found = answer(record, arrays)
    where = f"run {record.id[:8]} · {record.created[:10]}"
    head = prose(found.sentence)
    if found.lane is not None:
        label = safe(record.lanes[found.lane].label)
        head = f'<mark class="lane-{record.number(found.lane)}">{label}</mark> {head}'
    facts = "".join(f'<span class="pill">{safe(fact)}</span>' for fact in found.facts)
    plot = tradeoff(record, arrays, floor_words(record))
    return (
        f'<section class="card answer-first" aria-label="The answer" data-run="{safe(record.id)}"><div>'
        f'<p class="asked">{safe(found.asked)} · '
        f"<q>{safe(shorten(record.question, 64))}</q> · {safe(where)}</p>"
        f'<h1 id="answer-said" tabindex="-1">{head}</h1>'
        f"{_beyond(found.others)}"
        f'<p class="reason">{prose(found.reason)}</p><p class="pills">{facts}</p></div>{plot}</section>'
    )
