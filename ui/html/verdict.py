"""Remarks beside a lane's verdict: what of it was not quantized or counted, its notes, and its near ties."""

from kvq_core.analysis.choice import RECOMMENDED_FROM
from kvq_core.analysis.verdict import EXPLAINED, Verdict, verdict
from kvq_core.record.fields import LaneRecord
from ui.html.escape import safe
from ui.html.numbers import plural

__all__ = ["EXPLAINED", "Verdict", "cautions", "check_link", "near_ties", "near_ties_html", "remarks", "verdict"]


def remarks(lane: LaneRecord) -> list[str]:
    """Sentences a reader needs before believing the numbers, and what the method notes of itself."""
    return [*cautions(lane), *lane.notes]


def cautions(lane: LaneRecord) -> list[str]:
    """What of a lane was not quantized or counted."""
    found = []
    m = lane.metrics
    if lane.memory and lane.memory.declared:
        found.append("Bits declared, not counted: its size is computed from what its author says.")
    if "never_engaged" in lane.flags and m:
        windows = lane.memory.tokens if lane.memory else 0
        found.append(
            f"All {windows:,} tokens fit in its full-precision windows; use a longer prompt or smaller windows."
        )
    if "partly_engaged" in lane.flags and m:
        found.append(f"Quantized in {plural(m.layers_quantized, 'layer')} only.")
    return found


def near_ties(lane: LaneRecord) -> str:
    """How many of its flips mean little; "" where none."""
    m = lane.metrics
    said = f"{m.near_tie_flips} of {plural(m.flips, 'flip')} near a tie in the reference." if m and m.flips else ""
    return said if m and m.near_tie_flips else ""


def near_ties_html(lane: LaneRecord, tag: str) -> str:
    """``near_ties`` in an element, which js/along.js writes anew while some tokens are brushed."""
    said = near_ties(lane)
    return f'<{tag}><span data-number="near_ties">{safe(said)}</span></{tag.split()[0]}>' if said else ""


def check_link(run: str, kind: str = "") -> str:
    """The way from a run of one prompt to a study of its lanes on many, which may say what to use."""
    return f'<a class="check-run {kind}" href="?study&amp;check={safe(run)}">Check on {RECOMMENDED_FROM} prompts</a>'
