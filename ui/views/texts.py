"""The texts token by token: followed and own, the most probable tokens at each, any two texts compared."""

from typing import Any

import gradio as gr

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.spec import MAX_LANES
from ui.figures.prompt import prompt_kld
from ui.figures.texts import kld_strips
from ui.html.cards import lane_body
from ui.html.diff import diff, text_of, top_lists, top_rows
from ui.html.escape import safe
from ui.selection import Selection
from ui.views.view import Drawing, Slot, View, create_page, create_words, or_absent
from ui.words.texts import texts

ROWS = (
    (
        Slot(
            "kld-strips",
            "KLD of every token",
            "A dot is a flip, a hollow one a flip where the reference was near a tie. Click a bar to select the token.",
        ),
    ),
    ("top-lists",),
    (
        Slot(
            "prompt-kld",
            "KLD along the prompt, read through the lanes' own caches",
            "Scored against the prompt read in full precision, from the longest first chunk on.",
        ),
    ),
    ("text-forced", "text-free"),
    ("text-diff",),
)
TEXTS = ("top-lists", "text-forced", "text-free", "text-diff")


def create_texts() -> View:
    words = create_words()
    with gr.Row(elem_classes=["choices"]):
        lane = _picker("Lane", "text-lane")
        other = _picker("Compare with", "text-other")
    return View("texts", words, [create_page(*ROWS)], compute, ("token",), [lane, other], fit)


def _picker(label: str, name: str) -> gr.Dropdown:
    return gr.Dropdown([], value=None, label=label, elem_id=name, interactive=True, min_width=180, filterable=False)


def fit(record: Record) -> list[Any]:
    """The lanes of the run; the one that moved furthest first, against the full-precision text."""
    lanes = [(lane.label, i) for i, lane in enumerate(record.lanes)]
    moved = [(lane.metrics.kld_mean or 0.0, i) for i, lane in enumerate(record.lanes) if lane.metrics]
    worst = max(moved)[1] if moved else 0 if lanes else None
    return [
        gr.update(choices=lanes, value=worst),
        gr.update(choices=[("Full precision", -1), *lanes], value=-1),
    ]


def compute(record: Record, arrays: Arrays, at: Selection, lane: Any, other: Any) -> Drawing:
    figures = {
        "kld-strips": or_absent(kld_strips(record, arrays, at.token), "No lane of this run was scored."),
        "prompt-kld": or_absent(prompt_kld(record, arrays), ""),
    }
    if not record.lanes:
        return Drawing("This run is without lanes: there is one text.", figures, dict.fromkeys(TEXTS, ""))
    index, against = _index(record, lane, 0), _index(record, other, -1)
    body = lane_body(record, arrays, index)
    html = {
        "top-lists": top_lists(record, arrays, index, at.token),
        "text-forced": _text("Same tokens: the reference's, read here", body, "forced"),
        "text-free": _text("Own tokens: what this cache writes", body, "free"),
        "text-diff": f'<h3 class="figure-title">Difference of the two texts</h3>'
        f"{diff(text_of(record, against), text_of(record, index))}",
    }
    return Drawing(texts(record, arrays, index), figures, html, tables={"top-lists": top_rows(record, arrays, index)})


def _text(title: str, body: str, kind: str) -> str:
    named = f'id="tokens-{kind}" aria-label="{safe(title)}"'
    text = f'<div class="tokens {kind}" {named} tabindex="0" role="group" data-tokens>{body}</div>'
    return f'<h3 class="figure-title">{safe(title)}</h3>{text}'


def _index(record: Record, picked: Any, default: int) -> int:
    """The lane a picker names; -1 is the reference."""
    number = picked if isinstance(picked, int) else default
    return number if -1 <= number < min(len(record.lanes), MAX_LANES) else default
