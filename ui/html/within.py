"""The fewest bits of each family within a loss, as a table."""

from kvq_core.analysis.within import LOSSES, fewest
from kvq_core.record.fields import Record
from ui.html.escape import safe
from ui.html.numbers import bits, significant


def within_html(record: Record) -> str:
    """A row a family, a column a loss; nothing for a run without a family at several widths."""
    found = fewest(record)
    if not found:
        return ""
    head = "".join(f'<th scope="col">within {loss:g} nats</th>' for loss in LOSSES)
    rows = "".join(
        f'<tr><th scope="row">{safe(family)}</th>'
        + "".join(
            f'<td title="KLD {significant(one.kld, 2)} nats">{bits(one.bits)} bits<br><small>'
            f"{safe(record.lanes[one.lane].label)}</small></td>"
            if one
            else "<td>none here</td>"
            for one in kept
        )
        + "</tr>"
        for family, kept in found.items()
    )
    return (
        '<div class="slot"><h3 class="figure-title">Fewest bits within a loss</h3><p class="muted">Of each family with '
        "several widths in this run: the fewest bits an element, keys and values together and windows included, whose "
        'mean KLD is within the loss.</p><div class="scroll" tabindex="0"><table class="plain"><thead><tr><th></th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


def within_rows(record: Record) -> list[list[object]]:
    """The same as numbers: see ui.views.export."""
    axes = ("family", "mean KLD within, nats", "bits an element")
    return [
        [record.lanes[one.lane].label, family, loss, one.bits, *axes]
        for family, kept in fewest(record).items()
        for loss, one in zip(LOSSES, kept, strict=True)
        if one
    ]
