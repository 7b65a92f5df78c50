"""Maps that a run did not keep: how they are had, and how far a look afterwards is from what was recorded."""

from kvq_core.analysis.looks import noise
from kvq_core.analysis.scored import has_steps
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.escape import safe
from ui.html.numbers import join_words, significant

LESS = 0.2  # of a lane's recorded KL; another processor moves a lane in the middle by less: docs/table.md


def look_html(record: Record, arrays: Arrays, layer: int, head: int, missing: str, own: bool) -> str:
    """What is ``missing`` of a layer, with the button that has it computed; how the rest was had, where it is not the
    run's ``own``."""
    if not record.lanes or not has_steps(record):
        return ""
    told = "" if own else _from_memory(record, layer) or _noise(record, arrays, layer, head)
    if not missing:
        return told
    return (
        f'{told}<p class="look-again"><button type="button" class="plain-button" data-act="map" data-lane="0">Compute '
        f"{safe(missing)}</button> <small>The lanes follow the answer once more, up to this layer; it is kept with the "
        "run.</small></p>"
    )


def layers_html(record: Record, arrays: Arrays, name: str) -> str:
    """Which lanes joined later and lack an array of all layers that others have, so that figures leave them out; each
    with the button that has it looked at."""
    measured = has_steps(record) and any(f"lane/{at}/{name}" in arrays for at in range(len(record.lanes)))
    without = {
        at: lane.label
        for at, lane in enumerate(record.lanes)
        if lane.status == "done" and record.added(at) is not None and f"lane/{at}/{name}" not in arrays
    }
    if not measured or not without:
        return ""
    buttons = "".join(
        f'<button type="button" class="plain-button" data-act="layers" data-lane="{at}">Look at all layers of '
        f"{safe(label)}</button> "
        for at, label in without.items()
    )
    are = "is" if len(without) == 1 else "are"
    return (
        f'<p class="look-again">{buttons}<small>{safe(join_words(list(without.values())))} joined later and {are} not '
        "in the figures of all layers. A look follows the answer once more beside the reference; it is kept with the "
        "run.</small></p>"
    )


def whole_layer(layer: int) -> str:
    return f"layer {layer}, every head and step"


def from_memory(record: Record, layer: int) -> bool:
    """Whether maps of a layer are drawn from memory, and kept nowhere yet."""
    return any(not look.id and layer in look.capture.layers for look, _ in record.looks)


def _from_memory(record: Record, layer: int) -> str:
    if not from_memory(record, layer):
        return ""
    return (
        '<p class="look-again"><small>Computed from the keys and queries of this very run, which are still in memory.'
        '</small> <button type="button" class="link-button" data-act="map" data-lane="0">Keep with the run</button></p>'
    )


def _noise(record: Record, arrays: Arrays, layer: int, head: int) -> str:
    found = [
        f"{safe(one.of)}: {'; '.join(_apart(*lane) for lane in one.lanes)}."
        for one in noise(record, arrays, layer, head)
    ]
    if not found:
        return ""
    return f'<p class="muted">Looked at afterwards, in a batch of its own. {" ".join(map(_begun, found))}</p>'


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _apart(label: str, here: float, recorded: float) -> str:
    apart = abs(here - recorded) > LESS * abs(recorded)
    far = ", further apart than batches usually are" if apart else ""
    return f"{safe(label)} {significant(here, 3)} (recorded {significant(recorded, 3)}{far})"
