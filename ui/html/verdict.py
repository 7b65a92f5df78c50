"""What a reader needs beside a lane's verdict before believing the numbers."""

from kvq_core.analysis.verdict import EXPLAINED, Verdict, verdict
from kvq_core.record.fields import LaneRecord
from ui.html.numbers import plural

__all__ = ["EXPLAINED", "Verdict", "cautions", "remarks", "verdict"]


def remarks(lane: LaneRecord) -> list[str]:
    """Sentences a reader needs before believing the numbers, and what the method notes of itself."""
    return [*cautions(lane), *lane.notes]


def cautions(lane: LaneRecord) -> list[str]:
    """What of a lane was not quantized or counted, and which of its flips mean little."""
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
    if m and m.flips and m.near_tie_flips:
        found.append(f"{m.near_tie_flips} of {plural(m.flips, 'flip')} near a tie in the reference.")
    return found
