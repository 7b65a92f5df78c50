"""Where queries look, and how much of each lane's key error lies there."""

from typing import Any

import gradio as gr

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.subspace import angles, deviation, error_inside, error_split
from ui.html.looks import layers_html, look_html, whole_layer
from ui.selection import Selection
from ui.views.view import Drawing, Slot, View, create_page, create_words, or_absent
from ui.words import subspace

OTHERS = (("same_kind", "Another prompt of its kind"), ("other_kind", "Another kind"))
MISSING = "Not captured in this run."
ANGLES = {"angles-query": "Angles between queries and keys", "angles-key": "Angles between keys and the lane's keys"}
ROWS = (
    ["look-layers"],
    (
        Slot("deviation", "How far queries lie from a subspace", "0: every query lies in it.", 270),
        Slot("error-inside", "Key error inside the subspace", "Of the prompt's queries.", 270),
        Slot("error-split", "Key error inside and outside", "Over all layers and KV heads.", 270),
    ),
    ["look-angles"],
    (
        Slot("angles-query", ANGLES["angles-query"], "0°: the same direction; 90°: unrelated."),
        Slot("angles-key", ANGLES["angles-key"]),
    ),
)


def create_subspace() -> View:
    words = create_words()
    rank = gr.Slider(
        1, 64, value=5, step=1, label="Rank r of the query subspace", elem_id="pick-rank", buttons=[], interactive=True
    )
    return View("subspace", words, [create_page(*ROWS)], compute, ("layer", "head"), [rank], fit)


def fit(record: Record) -> list[Any]:
    return [gr.update(maximum=record.environment.head_dim)]


def compute(record: Record, arrays: Arrays, at: Selection, rank: Any) -> Drawing:
    rank = min(max(1, int(rank or 1)), record.environment.head_dim)
    kv_head = at.kv_head(record)
    kept = record.capture.angle_ranks
    no_angles = f"Angles at rank {rank} were not kept: {_listed(kept)}." if kept else MISSING
    figures = {
        "deviation": or_absent(deviation(record, arrays, at.layer, rank), MISSING),
        "error-inside": or_absent(error_inside(record, arrays, at.layer, rank), MISSING),
        "error-split": or_absent(error_split(record, arrays, rank), MISSING),
        "angles-query": or_absent(angles(record, arrays, at.layer, kv_head, rank, "query_key"), no_angles),
        "angles-key": or_absent(angles(record, arrays, at.layer, kv_head, rank, "key_key"), no_angles),
    }
    texts = record.capture.subspace_texts
    others = [f"{name}: {texts[key]}." for key, name in OTHERS if texts.get(key)]
    missing = whole_layer(at.layer) if isinstance(figures["angles-query"], str) else ""
    html = {
        "look-layers": layers_html(record, arrays, "key_error_energy"),
        "look-angles": look_html(record, arrays, at.layer, at.head, missing, rank in kept),
    }
    titles = {name: f"{title}, top {rank}" for name, title in ANGLES.items()}
    return Drawing(" ".join([subspace(record, arrays, rank), *others]), figures, html, titles=titles)


def _listed(ranks: list[int]) -> str:
    said = " and ".join(filter(None, (", ".join(map(str, ranks[:-1])), str(ranks[-1]))))
    return f"of this run rank{'s' * (len(ranks) > 1)} {said} {'are' if ranks[1:] else 'is'}"
