"""Singular values of the prompt's keys."""

import gradio as gr

from kvq_core.record import Record
from ui.figures import cumulative_energy, head_spectra, joint_spectra
from ui.figures.base import Arrays
from ui.panels.view import Drawn, View, create_slot, create_words, or_absent
from ui.selection import Selection
from ui.words import spectra

MISSING = "Not captured in this run."


def create_spectra() -> View:
    words = create_words()
    with gr.Row(elem_classes=["plots"]):
        slots = [
            create_slot("head-spectra", "Singular values, per KV head"),
            create_slot("joint-spectra", "Singular values, heads concatenated"),
            create_slot("energy", "Energy held by the strongest directions"),
        ]
    return View("spectra", words, slots, compute, ("layer",))


def compute(record: Record, arrays: Arrays, at: Selection) -> Drawn:
    figures = {
        "head-spectra": or_absent(head_spectra(record, arrays, at.layer), MISSING),
        "joint-spectra": or_absent(joint_spectra(record, arrays, at.layer), MISSING),
        "energy": or_absent(cumulative_energy(record, arrays, at.layer), MISSING),
    }
    return Drawn(spectra(record, arrays, at.layer), figures)
