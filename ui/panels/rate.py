"""Distortion against rate, in five measures."""

import gradio as gr

from kvq_core.record import Record
from ui.figures.base import Arrays
from ui.figures.rate import distortion_rate
from ui.panels.view import Drawn, View, create_slot, create_words, or_absent
from ui.selection import Selection
from ui.words.rate import rates

MISSING = "Not captured in this run, or no lane changes it."


def create_rate() -> View:
    words = create_words()
    with gr.Row(elem_classes=["plots"]):
        slots = [
            create_slot(
                "rate-kld", "KLD of the next token",
                "Dotted: the Pareto front. Triangles: lanes that quantize keys (▲) or values (▼) only.",
            ),
            create_slot("rate-flips", "Flips of the most probable token"),
        ]  # fmt: skip
    with gr.Row(elem_classes=["plots"]):
        slots += [
            create_slot(
                "rate-key", "Key error",
                "Grey: a Gaussian source with the captured covariance at its limit; a reference, not a bound.",
            ),
            create_slot("rate-value", "Value error"),
        ]  # fmt: skip
    with gr.Row(elem_classes=["plots"]):
        slots += [create_slot("rate-output", "Error of the attention output")]
    return View("rate", words, slots, compute)


def compute(record: Record, arrays: Arrays, at: Selection) -> Drawn:
    figures = {
        f"rate-{what}": or_absent(distortion_rate(record, arrays, what), MISSING)
        for what in ("kld", "flips", "key", "value", "output")
    }
    return Drawn(rates(record, arrays), figures)
