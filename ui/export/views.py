"""The figures that leave the page as static pictures, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures import damage_grid, distortion_rate, effective_rank, kld_strips, stored_bytes
from ui.html.escape import safe


@dataclass(frozen=True)
class Picture:
    """A figure and its caption; ``draw`` gives None where a run has nothing to draw."""

    title: str
    words: str
    draw: Callable[[Record, Arrays], go.Figure | None]


def caption(view: Picture) -> str:
    return f"<figcaption>{safe(view.title)}<small>{safe(view.words)}</small></figcaption>"


def _error(kind: Literal["key", "value"], record: Record, arrays: Arrays) -> go.Figure | None:
    return damage_grid(record, arrays, "relative", kind, 0, 0)


def _error_of(kind: Literal["key", "value"]) -> Picture:
    return Picture(f"Relative {kind} error", "Layer by KV head, at the end of the run.", partial(_error, kind))


VIEWS = {
    "kld": Picture(
        "KLD of every token",
        "Dots: flips; rings: flips near a tie of the reference.",
        lambda record, arrays: kld_strips(record, arrays, 0),
    ),
    "rate": Picture(
        "Distance against bits",
        "Low and left is better.",
        lambda record, arrays: distortion_rate(record, arrays, "kld"),
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
