"""Distortion against rate in five measures, and how sure the reference was where it arose."""

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.confidence import confidence, confidence_rows
from ui.figures.grid import format_grid
from ui.figures.rate import distortion_rate
from ui.html.within import within_html, within_rows
from ui.selection import Selection
from ui.views.view import Drawing, Slot, View, create_page, create_words, or_absent
from ui.words.rate import rates

MISSING = "Not captured in this run, or no lane changes it."
ROWS = (
    (Slot("grid", "Key formats against value formats", "Mean KLD of the next token; a cell is a lane."),),
    (
        Slot(
            "rate-kld",
            "KLD of the next token",
            "Dotted: the Pareto front. Triangles: lanes that quantize keys (▲) or values (▼) only.",
        ),
        Slot("rate-flips", "Flips of the most probable token"),
    ),
    ["within"],
    (
        Slot(
            "rate-key",
            "Key error",
            "Grey: a Gaussian source with the captured covariance at its limit; a reference, not a bound.",
        ),
        Slot("rate-value", "Value error"),
    ),
    (
        Slot("rate-output", "Error of the attention output"),
        Slot(
            "confidence",
            "KLD where the reference is unsure, and where it is sure",
            "Mean of the positions in five buckets of its top probability.",
        ),
    ),
)


def create_rate() -> View:
    return View("rate", create_words(), [create_page(*ROWS)], compute)


def compute(record: Record, arrays: Arrays, at: Selection) -> Drawing:
    figures = {
        f"rate-{what}": or_absent(distortion_rate(record, arrays, what), MISSING)
        for what in ("kld", "flips", "key", "value", "output")
    }
    figures["grid"] = or_absent(format_grid(record.whole), "")
    figures["confidence"] = or_absent(confidence(record, arrays), MISSING)
    html = {"within": within_html(record.whole)}
    within = within_rows(record.whole)
    tables = {"confidence-buckets": confidence_rows(record, arrays), **({"within": within} if within else {})}
    return Drawing(rates(record, arrays), figures, html, tables=tables)
