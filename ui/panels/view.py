"""A view: a sentence, figures each under a title, tables; and what of the selection it depends on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from kvq_core.record import Record
from ui.figures.base import Arrays
from ui.selection import Selection
from ui.text import safe


@dataclass(frozen=True)
class Drawn:
    """What a view shows: text that is escaped here, figures by the name of their slot (a sentence where the run kept
    nothing to draw), finished HTML by name, and titles of slots that follow a picker."""

    words: str
    figures: Mapping[str, "go.Figure | str"] = field(default_factory=dict)
    html: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Slot:
    """A figure's place: its title, what it shows, or the sentence why there is none."""

    name: str
    title: str
    note: str
    head: gr.HTML
    plot: gr.Plot

    def fill(self, found: "go.Figure | str", title: str = "") -> list[Any]:
        heading = f'<h3 class="figure-title">{safe(title or self.title)}</h3>'
        if isinstance(found, str):  # "": nothing to say either, the place disappears
            said = f'{heading}<p class="absent">{safe(found)}</p>' if found else ""
            return [said, gr.update(value=None, visible=False)]
        note = f'<p class="muted">{safe(self.note)}</p>' if self.note else ""
        return [heading + note, gr.update(value=found, visible=True)]


def create_slot(name: str, title: str, note: str = "", min_width: int = 300) -> Slot:
    """A titled figure; call inside a row."""
    with gr.Column(min_width=min_width, elem_classes=["slot"]):
        head = gr.HTML("", elem_id=f"title-{name}")
        plot = gr.Plot(show_label=False, container=False, elem_id=f"plot-{name}", elem_classes=["plot"], visible=False)
    return Slot(name, title, note, head, plot)


@dataclass
class View:
    """A tab. ``compute(record, arrays, selection, *picked)`` says what it shows; ``uses`` are the fields of the
    selection that change it; ``fit(record)`` gives updates of the pickers that follow the run."""

    name: str
    words: gr.HTML
    slots: Sequence[Slot]
    compute: Callable[..., Drawn]
    uses: tuple[str, ...] = ()
    pickers: Sequence[gr.components.Component] = ()
    html: Mapping[str, gr.HTML] = field(default_factory=dict)
    fit: Callable[[Record], list[Any]] | None = None
    tab: gr.Tab | None = None

    @property
    def outputs(self) -> list[gr.components.Component]:
        return [self.words, *(part for slot in self.slots for part in (slot.head, slot.plot)), *self.html.values()]

    def draw(self, record: Record, arrays: Arrays, at: Selection, picked: Sequence[Any]) -> list[Any]:
        found = self.compute(record, arrays, at, *picked)
        figures = [part for slot in self.slots for part in self._filled(slot, found)]
        return [f"<p>{safe(found.words)}</p>", *figures, *(found.html[name] for name in self.html)]

    @staticmethod
    def _filled(slot: Slot, found: Drawn) -> list[Any]:
        return slot.fill(found.figures[slot.name], found.titles.get(slot.name, ""))

    def key(self, run: str, at: Selection, picked: Sequence[Any]) -> list[Any]:
        """What the drawn figures depend on: equal keys need no drawing."""
        return [run, *(getattr(at, name) for name in self.uses), *picked]


def create_words() -> gr.HTML:
    return gr.HTML("", elem_classes=["words"])


def or_absent(found: "go.Figure | None", absent: str) -> "go.Figure | str":
    return absent if found is None else found
