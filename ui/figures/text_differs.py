"""Where a lane's text leaves the reference's, in a line for the hover of figures whose points are lanes."""

from kvq_core.record.fields import Record
from ui.html.escape import plot_safe, shorten

BEFORE, AFTER = 3, 6  # tokens told before and after the texts part


def differs(record: Record, index: int) -> str:
    """What full precision and lane ``index`` go on with where they part; escaped for Plotly. Empty of a lane without a
    text of its own."""
    lane, reference = record.lanes[index], record.reference
    if lane.metrics is None or not lane.tokens:
        return ""
    at = lane.metrics.first_divergence
    if at is None:
        return "the same text"
    shared = "".join(reference.tokens[max(0, at - BEFORE) : at])
    one, other = ("".join(tokens[at : at + AFTER]) for tokens in (reference.tokens, lane.tokens))
    told = (plot_safe(shorten(" ".join(part.split()), 44)) for part in (shared, one, other))
    return "from token {} on, after “{}”:<br>“{}” → “{}”".format(at, *told)
