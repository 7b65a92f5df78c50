"""Spectra of keys and values, and how their channels spread, before and after each lane."""

import gradio as gr

from kvq_core.analysis.looks import distributions_at
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.pairs import key_pairs
from ui.figures.spectra import (
    WITH_MEAN,
    cumulative_energy,
    distributions,
    effective_rank,
    head_spectra,
    is_centred,
    joint_spectra,
    lane_spectra,
    mean_shares,
)
from ui.html.figure_menu import UNKEPT
from ui.html.looks import from_memory, look_html, whole_layer
from ui.selection import Selection
from ui.views.view import Drawing, Slot, View, create_page, create_words, or_absent
from ui.words import spectra
from ui.words.pairs import by_pair, without_pairs

MISSING = "Not captured in this run."
CENTRED = ", centred"  # of older runs these are not
PAIRS_NOTE = (
    "The thick line is how far the prompt's keys spread around their mean before RoPE, lines in lanes' colours are the "
    "errors left in what each reads: root mean squares. Left of the dots pairs turn by less than 1 rad over the run."
)
ROWS = (
    (
        Slot("head-spectra", f"Singular values, per KV head{CENTRED}", "Of the prompt at full precision.", 270),
        Slot("joint-spectra", f"Heads concatenated{CENTRED}", "With the bits a latent method gives them.", 270),
        Slot("energy", f"Energy held{CENTRED}", "Thick: per head. Thin: heads concatenated.", 270),
    ),
    (
        Slot("ranks", f"Effective rank by layer{CENTRED}", "exp of the entropy of the energy, mean over heads.", 270),
        Slot("means", "The mean's share of the energy", "Over the prompt's tokens, channel by channel.", 270),
        Slot("lane-spectra", f"Keys as each lane reads them back{CENTRED}", "", 270),
    ),
    (Slot("key-pairs", "Keys by RoPE pair", PAIRS_NOTE),),
    ["look-keys"],
    (
        Slot("key-channels", "Original key channels", "Band: whole range; dark band: middle half; line: median."),
        Slot("latent-channels", "Latent key channels", "Along the layer's singular vectors, centred."),
    ),
)


def create_spectra() -> View:
    words = create_words()
    with gr.Row(elem_classes=["choices"]):
        kind = gr.Radio(
            [("Keys", "key"), ("Values", "value")],
            value="key",
            label="Spectra of",
            elem_id="spectra-of",
            interactive=True,
        )
    return View("spectra", words, [create_page(*ROWS)], compute, ("layer", "head"), [kind])


def compute(record: Record, arrays: Arrays, at: Selection, kind: str) -> Drawing:
    kv_head, spread = at.kv_head(record), distributions_at(record, arrays, at.layer)
    kept = record.capture.distribution_layers
    not_kept = f"The keys of layer {at.layer} were not kept in this run." if kept else MISSING
    figures = {
        "head-spectra": or_absent(head_spectra(record, arrays, at.layer, kind), MISSING),
        "joint-spectra": or_absent(joint_spectra(record, arrays, at.layer, kind), MISSING),
        "energy": or_absent(cumulative_energy(record, arrays, at.layer, kind), MISSING),
        "ranks": or_absent(effective_rank(record, arrays, at.layer), MISSING),
        "means": or_absent(mean_shares(record, arrays, at.layer), MISSING),
        "lane-spectra": or_absent(lane_spectra(record, arrays, at.layer, kv_head), MISSING),
        "key-pairs": or_absent(key_pairs(record, arrays, at.layer, kv_head), without_pairs(record, arrays, at.layer)),
        "key-channels": or_absent(spread and distributions(*spread, at.layer, "key"), not_kept),
        "latent-channels": or_absent(spread and distributions(*spread, at.layer, "latent"), not_kept),
    }
    titles = {}
    if not is_centred(arrays):
        slots = (slot for row in ROWS for slot in row if isinstance(slot, Slot) and slot.title.endswith(CENTRED))
        titles = {slot.name: slot.title.replace(CENTRED, f", {WITH_MEAN}") for slot in slots}
    missing = whole_layer(at.layer) if spread is None else ""
    html = {"look-keys": look_html(record, arrays, at.layer, at.head, missing, at.layer in kept)}
    own = at.layer in kept or not from_memory(record, at.layer)
    lacks = {} if own else dict.fromkeys(("key-channels", "latent-channels"), UNKEPT)
    words = " ".join(filter(None, [spectra(record, arrays, at.layer), by_pair(record, arrays, at.layer, kv_head)]))
    return Drawing(words, figures, html, titles=titles, lacks=lacks)
