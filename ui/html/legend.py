"""The one legend: every lane with its colour, verdict and two numbers, switched for all cards and figures at once."""

from collections.abc import Sequence

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from ui.html.escape import safe
from ui.html.glossary import term
from ui.html.numbers import ABSENT, percent, plural, significant
from ui.html.numbers import bits as bits_text
from ui.html.verdict import verdict

HINT = "Switch a lane with a click; double click, or S on the keyboard, shows it alone."


def legend_html(record: Record, arrays: Arrays, drawn: Sequence[int]) -> str:
    """``drawn``: the lanes of the whole run that have cards and figures, in that order of colours. js/legend.js does
    the switching; whatever is a lane's names its place among the drawn ones in data-of."""
    if not record.lanes:
        return ""
    rows = "".join(_switch(record, arrays, index, at) for at, index in enumerate(drawn))
    return (
        f'<div class="lanes-legend" data-run="{safe(record.id)}" data-drawn="{" ".join(map(str, drawn))}">'
        f'<h2>Lanes <span class="heads"><span>{term("KLD")}</span><span>{term("bits")}</span></span></h2>'
        f'<ul class="legend-rows" aria-label="Lanes">{rows}</ul>{_others(record, arrays, drawn)}'
        f'<p class="muted legend-foot"><span>{HINT}</span><button type="button" class="link-button" data-lanes="all" '
        'hidden>Show all</button></p><button type="button" class="plain-button" data-lane-more>+ Lane</button></div>'
    )


def _switch(record: Record, arrays: Arrays, index: int, at: int) -> str:
    lane = record.lanes[index]
    return (
        f'<li data-of="{at}" class="lane-{record.number(index)}"><button type="button" class="lane-switch" '
        f'role="switch" aria-checked="true" data-switch="{at}"><span class="swatch"></span>'
        f"{_name(record, arrays, index)}{_numbers(lane)}</button></li>"
    )


def _others(record: Record, arrays: Arrays, drawn: Sequence[int]) -> str:
    """Lanes without a card: a click draws one of them in place of the last."""
    left = [index for index in range(len(record.lanes)) if index not in drawn]
    if not left:
        return ""
    rows = "".join(
        f'<li><button type="button" class="lane-switch" data-add="{index}" title="Draw this lane in place of the last '
        f'one"><span class="swatch lane-{index} none"></span>{_name(record, arrays, index)}'
        f"{_numbers(record.lanes[index])}</button></li>"
        for index in left
    )
    return (
        f'<details class="others"><summary>{plural(len(left), "lane")} more</summary>'
        f'<ul class="legend-rows">{rows}</ul></details>'
    )


def _name(record: Record, arrays: Arrays, index: int) -> str:
    lane, found = record.lanes[index], verdict(record, arrays, index)
    stored = f'<span data-number="size">{percent(lane.memory.kv_ratio)}</span>' if lane.memory else ""
    size = f' · <span class="unbroken">{stored} bytes</span>' if stored else ""
    word = f'<i class="tone {found.tone}"></i><span data-number="verdict">{safe(found.word)}</span>'
    return f'<span class="name">{safe(lane.label)}<small>{word}{size}</small></span>'


def _numbers(lane: LaneRecord) -> str:
    """Mean KLD, and stored bits of an element, keys and values together."""
    kld = significant(lane.metrics.kld_mean, 2) if lane.metrics else ABSENT
    width = bits_text((lane.memory.key_bits + lane.memory.value_bits) / 2) if lane.memory else ABSENT
    return f'<span class="num" data-number="kld">{kld}</span><span class="num" data-number="width">{width}</span>'
