"""The views that are no figure, the prompt's words as a lane reads them and the answer's replay: data, which the page's
own scripts draw."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvq_core.analysis.looks import most_steps_at
from kvq_core.errors import SpecError, excerpt
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.record.subset import TOGETHER, best, drawn_of, part_of
from ui.html.along_data import along_data, as_json
from ui.html.escape import safe
from ui.html.reading import CACHES, TINTS, caches, laid, scrubber, words
from ui.html.reading_data import scored_lanes
from ui.selection import Selection

SHEETS = ("replay.css", "export/frame.css")
KEYS = "Space plays and pauses; the arrow keys go on and back."


@dataclass(frozen=True)
class FramedView:
    title: str
    words: str


FRAMED = {
    "words": FramedView("Attention on the words", f"{TINTS} Point at a word, or walk them with the arrow keys."),
    "replay": FramedView("The answer, step by step", KEYS),
}


def framed_view(record: Record, arrays: Arrays, view: str, at: Selection, lane: str = "") -> str:
    """The figure and its data; ``lane``: the label of the one that is shown first. Raises SpecError where nothing of
    the words is kept there, or there is no such lane."""
    drawn, own = _with(record, arrays, lane)
    lanes, last = scored_lanes(drawn), len(drawn.reference.token_ids) - 1
    seen = most_steps_at(drawn, own, at.layer, at.head)
    where = f"layer {at.layer}, query head {at.head}"
    kept = seen is not None and (view == "replay" or at.step in seen[0].capture.attention_steps)
    if not lanes or last < 1 or (view == "words" and not kept):
        raise SpecError(
            f"Run {record.id} has nothing for the view {view} at {where}, token {at.token}: no lane was scored, or "
            "attention there was not kept with it."
        )
    shown, read = seen or (drawn, own)
    picture, moving = FRAMED[view], view == "replay"
    first = next((str(index) for index in lanes if drawn.lanes[index].label == lane), "")
    hidden = "" if moving else " hidden"
    return (
        f"<figcaption>{safe(picture.title)}, {where}<small>{safe(picture.words)}</small></figcaption>"
        f'<div id="reading"><div{hidden}>{scrubber(shown)}<p class="mute">{CACHES}</p>{caches(shown, lanes)}</div>'
        f"{words(shown, lanes)}{laid(shown, read, at.layer, at.head, lanes)}</div>"
        f'<div id="frame-data" hidden data-token="{max(1, at.token)}" data-lane="{first}">'
        f"{as_json(_answer(drawn, own))}</div>"
    )


def sheet() -> str:
    return "".join((Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in SHEETS)


def _with(record: Record, arrays: Arrays, lane: str) -> tuple[Record, Arrays]:
    """What is drawn of the run, a lane that is asked for among it."""
    labels = [known.label for known in record.lanes]
    if lane and lane not in labels:
        raise SpecError(f"lane = {excerpt(lane)} is not allowed; the lanes of run {record.id}: {', '.join(labels)}.")
    if not lane or len(record.lanes) <= TOGETHER or labels.index(lane) in best(record):
        return drawn_of(record, arrays)
    return part_of(record, arrays, sorted([*best(record)[:-1], labels.index(lane)]))


def _answer(record: Record, arrays: Arrays) -> dict[str, Any]:
    """Of ``along_data`` what the two say: the answer's tokens, and what every lane lost at each."""
    data = along_data(record, arrays)
    lanes = [
        {"kld": of["kld"], "kld_mean": lane.metrics and lane.metrics.kld_mean, "key_bits": [], "value_bits": []}
        for lane, of in zip(record.lanes, data["lanes"], strict=True)
    ]
    return {name: data[name] for name in ("count", "prompt", "pieces")} | {"lanes": lanes, "floors": []}
