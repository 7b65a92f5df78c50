"""Forced and free texts: what flips, what is near a tie, and why the two disagree."""

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record
from ui.html.escape import span_text
from ui.html.numbers import percent, plural, significant
from ui.html.pieces import END, Span, span_at, spans_of


def texts(record: Record, arrays: Arrays, index: int) -> str:
    """One lane's followed and own text in two or three sentences."""
    lane = record.lanes[index]
    if lane.status == "failed":
        return f"{lane.label} failed: {lane.error}"
    m = lane.metrics
    if m is None or not m.n_scored:
        return f"{lane.label} has no scored position: the answer is one token, and it comes from the shared prefill."
    said = f"On the reference's own tokens {lane.label} would choose another one at {m.flips} of {m.n_scored}"
    if m.flips:
        said += (
            f"; at {m.near_tie_flips} of these the reference was near a tie itself (top two within "
            f"{significant(m.near_tie_margin, 2)} logits)"
        )
    return f"{said}. {disagreement(record, arrays, index)}"


def disagreement(record: Record, arrays: Arrays, index: int) -> str:
    """Why forced and free rows disagree, or that they do not."""
    lane = record.lanes[index]
    m = lane.metrics
    at = m.first_divergence if m else None
    if (m is None or at is None) and record.spec.get("free_text") is False:
        return "It wrote no text of its own, and would have chosen the reference's throughout."
    if m is None or at is None:
        flips = " although it flips: sampling chose the same tokens all the same" if m and m.flips else ""
        return f"Left to itself it writes the reference's text, token for token{flips}."
    if record.spec.get("free_text") is False:
        return f"It wrote no text of its own; at token {at} it would have left the reference's."
    theirs, own = (_piece(span_at(spans_of(record, row), at)) for row in (record.reference, lane))
    said = f"Left to itself it parts at token {at}, writing “{own}” for “{theirs}”"
    margin, probs = array(arrays, "reference/margin"), array(arrays, "reference/topk_probs")
    step = at - 1
    if record.spec.get("temperature"):
        said += ", both drawn with the same random number"
    elif margin is not None and 0 <= step < margin.size:
        near = margin[step] <= m.near_tie_margin
        lead = f"the reference's first choice led its second by {significant(float(margin[step]), 2)} logits"
        if probs is not None:
            lead += f" ({percent(float(probs[step, 0]))} against {percent(float(probs[step, 1]))})"
        said += f", where {lead}" + (", a near-tie that rounding alone could turn" if near else "")
    followed = len(record.reference.tokens) - at
    return (
        f"{said}. From there the two continue different texts: the {plural(followed, 'forced token')} after it say how "
        f"the cache reads the reference's words, {_recovery(lane, at)}"
    )


def _recovery(lane: LaneRecord, at: int) -> str:
    own = max(0, len(lane.token_ids) - at)
    return f"its own {plural(own, 'token')} where one early choice leads."


def _piece(span: Span | None) -> str:
    return span_text(span) if span else END
