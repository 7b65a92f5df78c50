"""The list of lanes as HTML: a row a lane, to open, switch, move and duplicate. js/editor.js tells what is pressed."""

from typing import Any

from kvq_core.spec import MAX_LANES
from ui.form.lanes import LaneForm, describe_lane, index, title
from ui.html.escape import safe, shorten

OFF = "off, not in the run"


def lane_rows_html(lanes: list[LaneForm], opened: dict[str, Any]) -> tuple[str, str]:
    """The lanes as rows: those down to the open one, which the editor follows, and those below it. Their colours are
    those that they have in a run."""
    rows = [_row(lanes, at, is_open=lane["uid"] == opened["uid"]) for at, lane in enumerate(lanes)]
    at = index(lanes, opened["uid"])
    end = len(rows) if at is None else at + 1
    return _listed(rows[:end], "Lanes"), _listed(rows[end:], "Lanes below the open one")


def mark_of(lanes: list[LaneForm], at: int) -> str:
    """The class of a lane's colour in the run, in which lanes that are off are not counted; their own is none."""
    return "is-off" if lanes[at]["off"] else f"lane-{sum(not lane['off'] for lane in lanes[:at])}"


def _listed(rows: list[str], label: str) -> str:
    return f'<ul class="lane-list" aria-label="{label}">{"".join(rows)}</ul>' if rows else ""


def _row(lanes: list[LaneForm], at: int, is_open: bool) -> str:
    lane = lanes[at]
    (summary, error), name, uid = describe_lane(lane), shorten(title(lane), 40), lane["uid"]
    classes = " ".join(["lane-row"] + ["wrong"] * bool(error) + ["open"] * is_open)
    said = OFF if lane["off"] else "needs a change" if error else summary
    return (
        f'<li class="lane-item {mark_of(lanes, at)}">'
        f"{_grip(name, uid, at, len(lanes))}"
        f'<button type="button" class="lane-power" role="switch" aria-checked="{str(not lane["off"]).lower()}" '
        f'aria-label="{safe(name)} in the run" data-do="switch" data-lane="{uid}" id="lane-power-{uid}"></button>'
        f'<button type="button" class="{classes}" id="lane-row-{at}" data-do="open" data-lane="{uid}" '
        f'aria-expanded="{str(is_open).lower()}">{safe(name)}\n{safe(said)}</button>{_copy(name, uid, len(lanes))}</li>'
    )


def _grip(name: str, uid: int, at: int, count: int) -> str:
    said = f"{name}, lane {at + 1} of {count}: drag, or move with the arrow keys"
    return (
        f'<button type="button" class="lane-grip" id="lane-grip-{uid}" data-grip="{uid}" data-place="{at}" '
        f'title="Drag, or move with the arrow keys" aria-label="{safe(said)}"></button>'
    )


def _copy(name: str, uid: int, count: int) -> str:
    full = " disabled" * (count >= MAX_LANES)
    return (
        f'<button type="button" class="lane-copy" data-do="duplicate" data-lane="{uid}" title="Duplicate" '
        f'aria-label="Duplicate {safe(name)}"{full}></button>'
    )
