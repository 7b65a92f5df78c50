"""A view: a sentence, then figures under their titles and tables, sent as one piece; what of the selection it uses."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.base import lane_of
from ui.html.escape import prose, safe
from ui.html.figure_menu import PICKED, menu_html
from ui.selection import Selection
from ui.service.replays import with_maps

KEPT = 8  # drawings of a view; one takes at most some 400 kB
ABSENT = '<div class="slot" hidden></div>'


class Lines(Mapping[str, Sequence[Sequence[Any]]]):
    """Tables whose lines are made when somebody takes them."""

    def __init__(self, made: Mapping[str, Callable[[], Sequence[Sequence[Any]]]]):
        self._made = made

    def __getitem__(self, name: str) -> Sequence[Sequence[Any]]:
        return self._made[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True)
class Drawing:
    """What a view shows: text that is escaped here, figures by the name of their slot (a sentence where the run kept
    nothing to draw), finished HTML by name, titles of slots that follow a picker, what tables hold, by name: lines in
    the columns of ui.views.export, and of slots that no frame can show as they are, why."""

    words: str
    figures: Mapping[str, "go.Figure | str"] = field(default_factory=dict)
    html: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)

    def only(self, name: str) -> "Drawing | None":
        """One of its figures, or of its tables; None where it has none of that name."""
        if name in self.figures:
            return Drawing(self.words, {name: self.figures[name]})
        return Drawing(self.words, tables={name: self.tables[name]}) if name in self.tables else None


@dataclass(frozen=True)
class Slot:
    """A figure's place: its title, what it shows, and how narrow it may get in px."""

    name: str
    title: str
    note: str = ""
    min_width: int = 300

    def html(self, drawn: Drawing) -> str:
        """The figure as data for js/plots.js to draw once it is in sight; or the sentence why there is none."""
        found = drawn.figures[self.name]
        if found == "":  # nothing to say either
            return ABSENT
        title = drawn.titles.get(self.name, self.title)
        head = f'<h3 class="figure-title">{safe(title)}</h3>'
        if isinstance(found, str):
            note, body = "", f'<p class="absent">{safe(found)}</p>'
        else:
            found.for_each_trace(lambda trace: trace.update(showlegend=False), lambda trace: lane_of(trace) is not None)
            note = safe(self.note)
            head += menu_html(self.name, title, drawn.lacks.get(self.name, PICKED if self.name in drawn.titles else ""))
            body = (
                f'<div class="plot" id="plot-{self.name}" style="min-height:{found.layout.height:.0f}px">'
                f"<div hidden>{escape(found.to_json() or '', quote=False)}</div></div>"
            )
        return f'<div class="slot" style="--least:{self.min_width}px">{head}<p class="muted">{note}</p>{body}</div>'


@dataclass(frozen=True)
class Stacked:
    """Figures below each other, beside one that is about as tall as they are together."""

    slots: tuple[Slot, ...]

    def html(self, drawn: Drawing) -> str:
        least = max(slot.min_width for slot in self.slots)
        return (
            f'<div class="stacked" style="--least:{least}px">{"".join(slot.html(drawn) for slot in self.slots)}</div>'
        )


Part = Slot | Stacked | str


@dataclass(frozen=True)
class ViewPage:
    """Rows of slots and of finished HTML by name, as one component. A component a figure would cost the browser
    seconds: Gradio searches its whole tree for every output of an event."""

    rows: Sequence[Sequence[Part]]
    place: gr.HTML

    def html(self, drawn: Drawing) -> str:
        return "".join(_row(row, drawn) for row in self.rows)


def create_page(*rows: Sequence[Part]) -> ViewPage:
    return ViewPage(rows, gr.HTML(""))


@dataclass
class View:
    """A tab. ``compute(record, arrays, selection, *picked)`` says what it shows; ``uses`` are the fields of the
    selection that change it; ``fit(record)`` gives updates of the pickers that follow the run."""

    name: str
    words: gr.HTML
    pages: Sequence[ViewPage]
    compute: Callable[..., Drawing]
    uses: tuple[str, ...] = ()
    pickers: Sequence[gr.components.Component] = ()
    fit: Callable[[Record], list[Any]] | None = None
    _drawings: OrderedDict[str, tuple[Record, list[str]]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def outputs(self) -> list[gr.components.Component]:
        return [self.words, *(page.place for page in self.pages)]

    def draw(self, record: Record, arrays: Arrays, at: Selection, picked: Sequence[Any]) -> list[str]:
        """The outputs' values. The last few are kept, for whoever follows a link sees what others saw."""
        key = json.dumps(self.key(record, at, picked), default=str)
        with self._lock:
            of, drawn = self._drawings.get(key, (None, []))
        if of is not record:  # not even this run computed again
            drawn = self._draw(record, arrays, at, picked)
        with self._lock:
            self._drawings[key] = record, drawn
            self._drawings.move_to_end(key)
            while len(self._drawings) > KEPT:
                self._drawings.popitem(last=False)
        return list(drawn)

    def drawn(self, record: Record, arrays: Arrays, at: Selection, picked: Sequence[Any]) -> Drawing:
        """``compute`` of the run, and of maps of the selected layer that can be had from memory."""
        seen = with_maps(record, at.layer) if "layer" in self.uses else record
        return self.compute(seen, arrays, at, *picked)

    def _draw(self, record: Record, arrays: Arrays, at: Selection, picked: Sequence[Any]) -> list[str]:
        found = self.drawn(record, arrays, at, picked)
        drawn_for = json.dumps({"run": record.id, **{name: getattr(at, name) for name in self.uses}})
        return [
            f'<p data-at="{safe(drawn_for)}">{prose(found.words)}</p>',  # js/tabs.js compares it with the selection's
            *(page.html(found) for page in self.pages),
        ]

    def key(self, record: Record, at: Selection, picked: Sequence[Any]) -> list[Any]:
        """What the drawn figures depend on: equal keys need no drawing."""
        lanes = [lane.label for lane in record.lanes]  # of many only some are drawn, see RecordCache.drawn
        return [record.id, lanes, *record.beside, *(getattr(at, name) for name in self.uses), *picked]


def create_words() -> gr.HTML:
    return gr.HTML("", elem_classes=["words"])


def or_absent(found: "go.Figure | None", absent: str) -> "go.Figure | str":
    return absent if found is None else found


def _row(row: Sequence[Part], drawn: Drawing) -> str:
    """Titles, notes and figures of a row that has figures alone stand on lines of their own."""
    parts = [_part(part, drawn) for part in row]
    widths = [part.min_width for part in row if isinstance(part, Slot)]
    even = f' even" style="--least:{max(widths)}px' if len(widths) == len(row) else ""
    moves = ' tabindex="0" role="group"' * (len(parts) > 1)  # on a phone the row is swiped, by the arrow keys too
    return f'<div class="plots{even}"{moves}{" hidden" * (set(parts) == {ABSENT})}>{"".join(parts)}</div>'


def _part(part: Part, drawn: Drawing) -> str:
    return f'<div class="slot" id="{part}">{drawn.html[part]}</div>' if isinstance(part, str) else part.html(drawn)
