"""The figures that leave the page as static pictures, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures import confidence, damage_grid, distortion_rate, effective_rank, kld_strips, stored_bytes
from ui.html.escape import safe


@dataclass(frozen=True)
class Picture:
    """A figure and its caption; ``draw`` gives None where a run has nothing to draw, or has not ``where`` it looks."""

    title: str
    words: str
    draw: Callable[[Record, Arrays], go.Figure | None]
    where: str = ""


def caption(view: Picture) -> str:
    return f"<figcaption>{safe(view.title)}<small>{safe(view.words)}</small></figcaption>"


def _error(kind: Literal["key", "value"], record: Record, arrays: Arrays) -> go.Figure | None:
    return damage_grid(record, arrays, "relative", kind, 0, 0)


def _error_of(kind: Literal["key", "value"]) -> Picture:
    return Picture(f"Relative {kind} error", "Layer by KV head, at the end of the run.", partial(_error, kind))


def _rate_of(what: str, title: str, words: str = "Low and left is better.") -> Picture:
    return Picture(title, words, lambda record, arrays: distortion_rate(record, arrays, what))


GAUSSIAN = "Low and left is better. Grey: a Gaussian source with the captured covariance."
VIEWS = {
    "kld": Picture(
        "KLD of every token",
        "Dots: flips; rings: flips near a tie of the reference.",
        lambda record, arrays: kld_strips(record, arrays, 0),
    ),
    "rate": _rate_of("kld", "Distance against bits"),
    "rate-flips": _rate_of("flips", "Flips against bits"),
    "rate-keys": _rate_of("key", "Key error against bits", GAUSSIAN),
    "rate-values": _rate_of("value", "Value error against bits", GAUSSIAN),
    "rate-output": _rate_of("output", "Error of the attention output against bits"),
    "confidence": Picture(
        "KLD where the reference is unsure, and where it is sure",
        "Mean of the positions in five buckets of its top probability.",
        confidence,
    ),
    "bytes": Picture(
        "Stored bytes",
        "Keys and values apart, the fp16 cache for scale.",
        lambda record, _: stored_bytes(record),
    ),
    "keys": _error_of("key"),
    "values": _error_of("value"),
    "rank": Picture(
        "Effective rank",
        "How many directions the prompt's keys and values spread over.",
        lambda record, arrays: effective_rank(record, arrays, 0),
    ),
}
