"""Bits of every element, how they are spent, bytes by what they are for, and what a longer context would take."""

from typing import Any, Literal

import gradio as gr

from kvq_core.analysis.context_growth import growths
from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.methods import ModelShape
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.bits import bit_map, stored_bytes
from ui.figures.usage import bits_by_length, code_usage, dead_codes, latent_bits, shares
from ui.html.escape import prose, safe
from ui.html.numbers import join_words, percent, size
from ui.selection import Selection
from ui.views.view import Drawing, Slot, View, create_page, create_words, or_absent
from ui.words import storage

MISSING = "Not captured in this run."
TALLEST = 760  # px
ROWS = (
    (
        Slot(
            "bits",
            "Bits of every element",
            "Metadata included. Windows and sinks are at 16. One row where only the token counts. Click to select.",
        ),
    ),
    (
        Slot("codes", "Codes in use", "A code that nothing uses is dead."),
        Slot("latent", "Bits of latent channels", "0: dropped."),
    ),
    (Slot("symmetric", "Groups stored symmetrically"), Slot("outliers", "Elements kept apart as outliers")),
    ["spent"],
    (
        Slot("bytes", "Stored bytes by what they are for"),
        Slot(
            "length",
            "Effective bits against context",
            "Of a prompt that long: windows stay, what is fixed fades.",
        ),
    ),
)
MAX_CONTEXT, MAX_BATCH = 10_000_000, 100_000
# As the models' configurations publish them.
SHAPES = {
    "Llama-3.1-8B": ModelShape(layers=32, query_heads=32, kv_heads=8, head_dim=128, context=131_072),
    "Llama-3.1-70B": ModelShape(layers=80, query_heads=64, kv_heads=8, head_dim=128, context=131_072),
    "Qwen2.5-0.5B": ModelShape(layers=24, query_heads=14, kv_heads=2, head_dim=64, context=32_768),
    "Qwen2.5-7B": ModelShape(layers=28, query_heads=28, kv_heads=4, head_dim=128, context=131_072),
    "Mistral-7B-v0.3": ModelShape(layers=32, query_heads=32, kv_heads=8, head_dim=128, context=32_768),
}
OWN = "This model"
SPENT = (
    ("codes", "codebooks"),
    ("latent", "latent channels"),
    ("symmetric", "symmetric groups"),
    ("outliers", "outliers"),
)


def create_storage() -> View:
    words = create_words()
    with gr.Row(elem_classes=["choices"]):
        kind = gr.Radio(
            [("Keys", "key"), ("Values", "value")], value="key", label="Bits of", elem_id="bits-of", interactive=True
        )
        axis = gr.Radio(
            [("Layers", "layers"), ("KV heads", "heads"), ("Channels", "channels")],
            value="layers",
            label="Rows of the map",
            elem_id="bits-rows",
            interactive=True,
        )
    maps = create_page(*ROWS)
    with gr.Row(elem_classes=["choices"]):
        shape = gr.Dropdown([OWN, *SHAPES], value=OWN, label="Model shape", elem_id="shape", min_width=180)
        context = gr.Number(
            32_768, label="Context, tokens", precision=0, min_width=120, elem_id="context", interactive=True
        )
        batch = gr.Number(1, label="Batch", precision=0, min_width=90, elem_id="batch", interactive=True)
    pickers = [kind, axis, shape, context, batch]
    return View("storage", words, [maps, create_page(["extrapolation"])], compute, ("layer", "head", "token"), pickers)


def compute(
    record: Record,
    arrays: Arrays,
    at: Selection,
    kind: Literal["key", "value"],
    axis: Any,
    shape: str,
    context: Any,
    batch: Any,
) -> Drawing:
    kv_head = at.kv_head(record)
    own = {
        "codes": code_usage(record, arrays, kind, at.layer, kv_head),
        "latent": latent_bits(record, arrays, at.layer) if kind == "key" else None,
        "symmetric": shares(record, arrays, "symmetric", kind),
        "outliers": shares(record, arrays, "outlier", kind),
    }
    figures = {
        "bits": or_absent(bit_map(record, arrays, kind, axis, at.token), MISSING),
        **{name: or_absent(figure, "") for name, figure in own.items()},
        "bytes": stored_bytes(record),
        "length": or_absent(bits_by_length(record), "No lane stored anything."),
    }
    if not isinstance(figures["length"], str):  # as tall as what it stands beside
        figures["length"].update_layout(height=min(TALLEST, max(320, figures["bytes"].layout.height)))
    without = [name for slot, name in SPENT if own[slot] is None]
    said = f"No lane here stores its {kind}s with {join_words(without, 'or')}." if without else ""
    html = {
        "spent": "".join(
            f'<p class="muted">{prose(line)}</p>'
            for line in (dead(record, arrays, kind), said, *by_rule(record))
            if line
        ),
        "extrapolation": extrapolation(record, shape, context, batch),
    }
    return Drawing(storage(record), figures, html, tables={"extrapolation": _rows(record, shape, context, batch)})


def dead(record: Record, arrays: Arrays, kind: str) -> str:
    """How many of its codes each lane never uses, where lanes count them."""
    found = [(lane.label, dead_codes(arrays, i, kind)) for i, lane in enumerate(record.lanes)]
    told = [f"{label} {percent(share, 1)}" for label, share in found if share is not None]
    return f"Dead {kind} codes, over all heads of the layers that have any: {join_words(told)}." if told else ""


def by_rule(record: Record) -> list[str]:
    """What each rule of the lanes that have several stores, and what no rule does."""
    found = []
    for index, lane in enumerate(record.lanes):
        if lane.memory is None or not lane.memory.by_rule:
            continue
        asked = lane_of(record, index)
        names = [rule.title for rule in lane.rules] if asked is None else [rule.named() for rule in asked.every_rule]
        stored = [sum(rule.bytes_by_part.values()) for rule in lane.memory.by_rule]
        rest = lane.memory.stored_bytes - sum(stored)
        told = [f"{name} {size(taken)}" for name, taken in zip(names, stored, strict=True) if taken]
        told += [f"fp16 {size(rest)}"] if rest else []
        found.append(f"Stored by {lane.label}: {join_words(told)}.")
    return found


def extrapolation(record: Record, shape: str, context: Any, batch: Any) -> str:
    """Bytes of every lane's cache for a model shape, a context and a batch, as a table."""
    if not _whole(context, MAX_CONTEXT) or not _whole(batch, MAX_BATCH):
        return (
            f'<p class="error">Give a context from 1 to {MAX_CONTEXT:,} tokens and a batch from 1 to {MAX_BATCH:,}.</p>'
        )
    tokens, copies = int(context), int(batch)
    full, stored = _bytes(record, shape, tokens, copies)
    rows = [f'<tr><th scope="row"><span class="dot ref"></span>FP16 cache</th><td>{size(full)}</td><td>100 %</td></tr>']
    for index, taken in stored.items():
        label, share = record.lanes[index].label, None if taken is None else taken / full
        dot = f'<span class="dot lane-{record.number(index)}"></span>'
        rows.append(
            f'<tr data-of="{index}"><th scope="row">{dot}{safe(label)}</th><td>{size(taken)}</td>'
            f"<td>{percent(share)}</td></tr>"
        )
    return (
        '<div class="scroll" tabindex="0"><table class="plain"><thead><tr>'
        f'<th scope="col">{safe(shape)} at {tokens:,} × {copies:,}</th>'
        '<th scope="col">cache</th><th scope="col">of fp16</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="muted">Counted for prompts of that length, windows and what is fixed (a basis, norms) among them; '
        "bits that follow from data are those of this run; model-wide codebooks not counted.</p>"
    )


def _bytes(record: Record, name: str, tokens: int, copies: int) -> tuple[int, dict[int, float | None]]:
    """Of an fp16 cache, with what windows and states take; and of every lane's by its index, None if unknown."""
    shape = SHAPES.get(name) or shape_of(record)
    full = shape.fp16_bytes(tokens) * copies
    found = growths(record).items()
    return full, {index: None if growth is None else growth.nbytes(shape, tokens, copies) for index, growth in found}


def _rows(record: Record, shape: str, context: Any, batch: Any) -> list[list[Any]]:
    """The extrapolation's table: see ui.views.export."""
    if not _whole(context, MAX_CONTEXT) or not _whole(batch, MAX_BATCH):
        return []
    full, stored = _bytes(record, shape, int(context), int(batch))
    told = [("FP16 cache", full), *((record.lanes[index].label, taken) for index, taken in stored.items())]
    named = ["context, tokens", "batch", f"bytes, {shape}"]
    return [[label, int(context), int(batch), taken, *named] for label, taken in told if taken is not None]


def _whole(value: Any, high: int) -> bool:
    return isinstance(value, int | float) and value == value and 1 <= value <= high
