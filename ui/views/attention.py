"""What a token reads, in the prompt's own words, and the caches step by step."""

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.damage import captured_head
from ui.selection import Selection
from ui.views.reading import reading_html
from ui.views.view import Drawing, View, create_page, create_words


def create_attention() -> View:
    return View("attention", create_words(), [create_page(["words-read"])], compute, ("layer", "head"))


def compute(record: Record, arrays: Arrays, at: Selection) -> Drawing:
    html = {"words-read": reading_html(record, arrays, at.layer, at.head)}
    return Drawing(_said(record, arrays, at), html=html)


def _said(record: Record, arrays: Arrays, at: Selection) -> str:
    """Whose attention it is, and what of it was kept."""
    kept = captured_head(record, at.layer, at.head) if "reference/attention_rows" in arrays else None
    if kept is None:
        return "Attention was not kept in this run. The caches still move, as their windows say."
    where = f"layer {kept[0]}, query head {kept[1]}"
    near = "" if kept == (at.layer, at.head) else ", the nearest to the selection that was kept"
    steps, scored = len(record.capture.attention_steps), max(0, len(record.reference.token_ids) - 1)
    return (
        f"Attention of {where}{near}, looked at in {steps} of {scored} steps. Orange: the lane reads more there than "
        "full precision does; purple: less."
    )
