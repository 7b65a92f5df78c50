"""All lanes of a run that has more than can be told apart in one figure: a row each, and which of them are drawn."""

from collections.abc import Sequence

from kvq_core.analysis.verdict import verdict
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.record.subset import BEST, TOGETHER
from ui.html.escape import safe
from ui.html.glossary import hint
from ui.html.numbers import ABSENT, both_bits, percent, significant

HEADS = ("Lane", "K / V bits", "Size", "KLD mean", "p99", "Flips", "Verdict")
EXPLAINED = {"K / V bits": "bits", "Size": "bytes", "KLD mean": "KLD", "Flips": "flips", "Verdict": "tier"}


def lane_table(record: Record, arrays: Arrays, drawn: Sequence[int], chosen: bool) -> str:
    """``drawn``: lanes with cards and figures, in that order of colours; ``chosen``: by the reader."""
    rows = "".join(_row(record, arrays, index, drawn) for index in range(len(record.lanes)))
    heads = "".join(
        f'<th scope="col">{hint(EXPLAINED[head], head) if head in EXPLAINED else safe(head)}</th>' for head in HEADS
    )
    which = "the lanes chosen here" if chosen else f"{TOGETHER} lanes: {BEST}"
    return (
        f'<div class="lane-table"><h2>{len(record.lanes)} lanes</h2><p class="muted">Cards and figures show {which}. '
        f'Choose up to {TOGETHER} others.</p><div class="scroll"><table class="plain"><thead><tr>{heads}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><div class="row"><button type="button" class="plain-button" '
        f'data-draw="{TOGETHER}">Show the chosen lanes</button>'
        '<button type="button" class="plain-button" data-draw="best">Show the best</button>'
        '<span class="muted" role="status"></span></div></div>'
    )


def _row(record: Record, arrays: Arrays, index: int, drawn: Sequence[int]) -> str:
    lane, found = record.lanes[index], verdict(record, arrays, index)
    cells = "".join(f"<td>{safe(value)}</td>" for value in _numbers(lane))
    return (
        f'<tr><th scope="row"><label><input type="checkbox" value="{index}"{" checked" * (index in drawn)}>'
        f'<span class="dot lane-{record.number(index)}"></span>{safe(lane.label)}</label></th>{cells}'
        f'<td><span class="badge {found.tone}" title="{safe(lane.error or found.why)}">{safe(found.word)}</span></td>'
        "</tr>"
    )


def _numbers(lane: LaneRecord) -> list[str]:
    metrics, memory = lane.metrics, lane.memory
    if metrics is None or memory is None:
        return [ABSENT] * (len(HEADS) - 2)
    flips = ABSENT if metrics.flip_rate is None else percent(metrics.flip_rate, 1)
    both = both_bits(memory.key_bits, memory.value_bits, memory.declared)
    return [both, percent(memory.kv_ratio), significant(metrics.kld_mean), significant(metrics.kld_p99), flips]
