"""The left column while one reads: what was asked, the lanes as the one legend, and what to try next."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.analysis.explain import explain
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.escape import safe, shorten
from ui.html.legend import legend_html
from ui.html.numbers import plural
from ui.service.records import drawn_lanes

MOST_SUGGESTED = 3
OPEN_FORM = '<button type="button" class="plain-button" data-form="open">Edit and run</button>'
FOLD_FORM = '<button type="button" class="plain-button" data-form="fold">Back to the run</button>'


@dataclass
class Instruments:
    asked: gr.HTML
    legend: gr.HTML
    next: gr.HTML

    @property
    def outputs(self) -> list[gr.HTML]:
        return [self.asked, self.legend, self.next]


def create_asked() -> gr.HTML:
    """Stands above the form, which it unfolds."""
    return gr.HTML("", elem_id="asked", elem_classes=["instrument"])


def create_instruments(asked: gr.HTML, between: Callable[[], Any]) -> tuple[Instruments, Any]:
    """The boxes below the form, with what ``between`` puts between the lanes and what to try."""
    legend = gr.HTML("", elem_id="legend", elem_classes=["instrument"])
    found = between()
    return Instruments(asked, legend, gr.HTML("", elem_id="next", elem_classes=["instrument"])), found


def show_instruments(record: Record, arrays: Arrays, shown: dict[str, Any]) -> list[str]:
    """Updates of ``Instruments.outputs``: ``record`` is the whole run."""
    legend = legend_html(record, arrays, drawn_lanes(record, shown))
    return [asked_html(record), legend, next_html(record, arrays)]


def asked_html(record: Record) -> str:
    """What was asked in two lines."""
    ref, spec = record.reference, record.spec
    temperature = spec.get("temperature") or 0
    facts = [
        f"{len(ref.prompt_token_ids):,} tokens",
        f"{len(ref.token_ids):,} {'scored' if spec.get('continuation') else 'new'}",
        f"temperature {temperature:g}" if temperature else "greedy",
        *(["stressed"] if record.stress is not None else []),
    ]
    return (
        f'<div class="asked-box"><p><q>{safe(shorten(record.question, 110))}</q></p><p class="muted">'
        f"{safe(' · '.join(facts))}</p>{OPEN_FORM}{FOLD_FORM}</div>"
    )


def next_html(record: Record, arrays: Arrays) -> str:
    """Lanes that change one thing of those that suffer; each once, by its label."""
    found: dict[str, tuple[int, str]] = {}
    for index in range(len(record.lanes)):
        told = explain(record, arrays, index)
        if told.suggestion is not None:
            found.setdefault(told.suggestion.label, (index, told.because))
    items = "".join(
        f'<button type="button" class="try-lane" data-suggest="{index}"><span>{safe(label)}</span>'
        f"<small>{safe(because)}; not known until it is run</small></button>"
        for label, (index, because) in list(found.items())[:MOST_SUGGESTED]
    )
    if not items:
        return ""
    return f'<div class="next-box"><h2>Try <span>{plural(len(found), "lane")} to compare with</span></h2>{items}</div>'
