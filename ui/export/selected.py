"""Figures of one layer, head or token that leave the page, by name, and where in a run they look."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import plotly.graph_objects as go

from kvq_core.analysis.looks import distributions_at, looked_at, steps_at
from kvq_core.errors import SpecError, excerpt
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.export.views import Picture
from ui.figures import (
    attention_rows,
    channel_errors,
    depth_error,
    distributions,
    key_pairs,
    lane_spectra,
    mean_shares,
    score_map,
    sink_change,
)
from ui.selection import Selection, last_token, start

Asked = Mapping[str, int | None]  # layer, head and token, as far as they are told
At = Callable[[Record, Arrays, Selection], go.Figure | None]
_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class Selected:
    """A picture of what is selected."""

    title: str
    words: str
    draw: At

    def of(self, at: Selection) -> Picture:
        where = f" at layer {at.layer}, query head {at.head}, token {at.token}"
        return Picture(self.title, self.words, lambda record, arrays: self.draw(record, arrays, at), where)


def _scores(record: Record, arrays: Arrays, at: Selection) -> go.Figure | None:
    maps = looked_at(record, arrays, at.layer, at.head)
    return maps and score_map(*maps, at.layer, at.head, at.step)


def _attention(record: Record, arrays: Arrays, at: Selection) -> go.Figure | None:
    rows = steps_at(record, arrays, at.layer, at.head, at.step)
    return rows and attention_rows(*rows, at.layer, at.head, at.step)


def _channels(kind: str) -> At:
    return lambda record, arrays, at: channel_errors(record, arrays, kind, at.layer, at.kv_head(record))


def _spread(what: str) -> At:
    def draw(record: Record, arrays: Arrays, at: Selection) -> go.Figure | None:
        spread, kept = distributions_at(record, arrays, at.layer), record.capture.distribution_layers
        if spread is None and kept:
            has = f"run {record.id} has layers {', '.join(map(str, kept))}"
            raise SpecError(f"layer = {at.layer} is not allowed for the spread of key channels; {has}.")
        return spread and distributions(*spread, at.layer, what)

    return draw


SELECTED = {
    "scores": Selected("Score deltas, step by step", "The strongest of each bin with its sign, centred.", _scores),
    "attention": Selected("Attention at one token", "The reference's row and each lane's.", _attention),
    "sinks": Selected(
        "Attention on the first tokens",
        "Lane minus reference, mean over heads and steps.",
        lambda record, arrays, at: sink_change(record, arrays),
    ),
    "key-channels": Selected("Key channels that carry the error", "Of one layer and KV head.", _channels("key")),
    "value-channels": Selected("Value channels that carry the error", "Of one layer and KV head.", _channels("value")),
    "depth": Selected(
        "Error against context depth",
        "Mean over all layers and heads.",
        lambda record, arrays, at: depth_error(record, arrays, "relative"),
    ),
    "means": Selected(
        "The mean's share of the energy",
        "Over the prompt's tokens, channel by channel.",
        lambda record, arrays, at: mean_shares(record, arrays, at.layer),
    ),
    "spectra": Selected(
        "Keys as each lane reads them back",
        "Singular values of one head.",
        lambda record, arrays, at: lane_spectra(record, arrays, at.layer, at.kv_head(record)),
    ),
    "pairs": Selected(
        "Keys by RoPE pair",
        "Bias, mean and spread before RoPE, and each lane's error, of one KV head.",
        lambda record, arrays, at: key_pairs(record, arrays, at.layer, at.kv_head(record)),
    ),
    "key-spread": Selected(
        "Original key channels", "Band: whole range; dark band: middle half; line: median.", _spread("key")
    ),
    "latent-spread": Selected("Latent key channels", "Along the layer's singular vectors, centred.", _spread("latent")),
}


def place_of(record: Record, arrays: Arrays, asked: Asked) -> Selection:
    """Where to look: ``layer``, ``head`` and ``token`` as far as they are asked for, else where a run is opened. Raises
    SpecError for one that the run does not have."""
    env = record.environment
    most = {"layer": env.layers - 1, "head": env.query_heads - 1, "token": last_token(record)}
    given = {name: value for name, value in asked.items() if value is not None}
    for name, value in given.items():
        if not 0 <= value <= most[name]:
            raise SpecError(f"{name} = {value} is not allowed; run {record.id} has {name}s 0 to {most[name]}.")
    return replace(start(record, arrays), **given)


def read_place(text: str) -> Asked:
    """``at`` of an address, as "12.6.25"; nothing of an empty one. Raises SpecError."""
    numbers = _NUMBERS.fullmatch(text)
    if numbers is None and text:
        raise SpecError(f"at = {excerpt(text)} is not allowed; give layer, query head and token, as 12.6.25.")
    return dict(zip(asdict(Selection()), map(int, numbers.groups()), strict=True)) if numbers else {}
