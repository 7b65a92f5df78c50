"""Maps that a run did not keep: how they are had, and how far a look afterwards is from what was recorded."""

from kvq_core.analysis.looks import noise
from kvq_core.record.fields import Record
from ui.html.escape import safe
from ui.html.numbers import significant

LESS = 0.01  # of a lane's recorded KLD: further apart than this a look is told to be so


def look_html(record: Record, layer: int, head: int, token: int, seen: bool, exact: bool) -> str:
    """The button that has a layer looked at, where the run kept nothing of it, or not that token's step; after a look
    the lanes' KLD in its batch beside the recorded one."""
    if not record.lanes or not record.capture.layers:
        return ""
    told = "".join(_noise(*found) for found in noise(record, layer, head))
    said = (
        f'<p class="muted">Looked at afterwards, in a batch of its own: mean KLD {told.rstrip("; ")}.</p>'
        if told
        else ""
    )
    if seen and exact:
        return said
    what = f"attention at token {token}" if seen else f"layer {layer}, every head and step"
    return (
        f'{said}<p class="look-again"><button type="button" class="plain-button" data-act="map" data-lane="0">'
        f"Compute {safe(what)}</button> <small>The lanes follow the answer once more, which takes about as long as the "
        "run did; it is kept with the run.</small></p>"
    )


def _noise(label: str, here: float, recorded: float) -> str:
    apart = abs(here - recorded) > LESS * abs(recorded)
    far = ", further apart than batches usually are" if apart else ""
    return f"{safe(label)} {significant(here, 3)} (recorded {significant(recorded, 3)}{far}); "
