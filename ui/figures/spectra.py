"""Singular values of keys and values: how few directions hold them, and how their channels spread."""

import math

import numpy as np
import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.base import (
    TICK,
    canvas,
    color_of,
    label_figure,
    label_of,
    lane_rows,
    lanes_with,
    line_of,
    of_lane,
    round_values,
)
from ui.figures.by_layer import every_layer, of_layers
from ui.html.colors import ACCENT, BERRY, BRONZE, REFERENCE, with_alpha

Curve = tuple[str, str, str, str]  # array, name, colour, dash
SPACES: dict[str, tuple[Curve, ...]] = {
    "key": (("key_pre", "before RoPE", ACCENT, "dash"), ("key_post", "after RoPE", BERRY, "solid")),
    "value": (("value", "values", BERRY, "solid"),),
}
RANKS: tuple[Curve, ...] = (*SPACES["key"], ("value", "values", BRONZE, "dot"))
WITH_MEAN = "mean included"
DECADES = {"type": "log", "dtick": 1, "automargin": True}


def is_centred(arrays: Arrays) -> bool:
    """Whether a run's singular values are those of keys and values less their mean; of older runs they are not."""
    return "spectra/key_pre" not in arrays


def spectrum(arrays: Arrays, name: str) -> np.ndarray | None:
    """Singular values of the prompt's keys or values, as ``is_centred`` says."""
    return array(arrays, f"{'centred' if is_centred(arrays) else 'spectra'}/{name}")


def _curves(arrays: Arrays, kind: str, suffix: str = "") -> list[tuple[np.ndarray, str, str, str]]:
    told = "" if is_centred(arrays) else f", {WITH_MEAN}"
    return [
        (values, name + told, color, dash)
        for key, name, color, dash in SPACES[kind]
        if (values := spectrum(arrays, f"{key}{suffix}")) is not None
    ]


def head_spectra(record: Record, arrays: Arrays, layer: int, kind: str = "key") -> go.Figure | None:
    """Singular values of each KV head of a layer, relative to the layer's largest."""
    curves = _curves(arrays, kind)
    if not curves:
        return None
    figure = canvas(300, yaxis={**DECADES, "title": {"text": "singular value / largest"}})
    top = max(float(values[layer].max()) for values, *_ in curves) or 1.0
    for values, name, color, dash in curves:
        for head, line in enumerate(values[layer]):
            figure.add_scatter(
                x=np.arange(1, line.size + 1),
                y=_relative(line, top),
                mode="lines",
                legendgroup=name,
                name=name,
                showlegend=head == 0,
                line={"color": with_alpha(color, 1 - 0.25 * (head % 3)), "width": 1.6, "dash": dash},
                hovertemplate=f"direction %{{x}}: %{{y:.3g}}<extra>KV head {head}, {name}</extra>",
            )
    figure.update_xaxes(title_text=f"direction of a KV head (layer {layer})")
    return label_figure(figure, f"Curves: singular values of each KV head's {kind}s in layer {layer}")


def joint_spectra(record: Record, arrays: Arrays, layer: int, kind: str = "key") -> go.Figure | None:
    """Singular values with the heads of the layer concatenated; over them the bits that latent methods give them."""
    curves = _curves(arrays, kind, "_concat")
    if not curves:
        return None
    figure = canvas(300, yaxis={**DECADES, "title": {"text": "singular value / largest"}})
    top = max(float(values[layer].max()) for values, *_ in curves) or 1.0
    for values, name, color, dash in curves:
        line = values[layer]
        figure.add_scatter(
            x=np.arange(1, line.size + 1),
            y=_relative(line, top),
            mode="lines",
            name=name,
            line={"color": color, "width": 1.6, "dash": dash},
            hovertemplate="direction %{x}: %{y:.3g}<extra>" + name + "</extra>",
        )
    if kind == "key":
        _schedules(figure, record, arrays, layer)
    figure.update_xaxes(title_text=f"direction, all heads (layer {layer})")
    return label_figure(figure, f"Curves: singular values of all heads' {kind}s of layer {layer} together")


def _schedules(figure: go.Figure, record: Record, arrays: Arrays, layer: int) -> None:
    """Code bits of each latent channel on a second axis."""
    lanes = list(lanes_with(record, arrays, "key_latent_bits"))
    for index, lane, widths in lanes:
        line = widths[layer]
        figure.add_scatter(
            x=np.arange(1, line.size + 1),
            y=round_values(line, 2),
            mode="lines",
            name=f"bits, {label_of(lane, 18)}",
            meta=of_lane(index),
            yaxis="y2",
            line=line_of(record, index, 1.6, shape="hv"),
            hovertemplate="channel %{x}: %{y:.3g} bits<extra>" + label_of(lane) + "</extra>",
        )
    if lanes:
        axis = {"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False}
        figure.update_layout(
            yaxis2={**axis, "title": {"text": "code bits", "standoff": 8, "font": {"size": TICK}}}, margin={"r": 46}
        )


def cumulative_energy(record: Record, arrays: Arrays, layer: int, kind: str = "key") -> go.Figure | None:
    """Share of the squared norm that the strongest directions hold: mean over heads, and heads concatenated."""
    figure = canvas(300, yaxis={"title": {"text": "energy held, %"}, "range": [0, 102]}, showlegend=False)
    drawn = False
    for suffix, how, width in (("", "per head", 2.2), ("_concat", "concatenated", 1.2)):
        for values, name, color, dash in _curves(arrays, kind, suffix):
            held = energy(values[layer])
            held = held.mean(0) if held.ndim > 1 else held
            share = np.arange(1, held.size + 1) / held.size
            figure.add_scatter(
                x=round_values(100 * share, 2),
                y=round_values(100 * held, 2),
                mode="lines",
                name=f"{name}, {how}",
                line={"color": color, "width": width, "dash": dash},
                hovertemplate=f"%{{x:.0f}} % of directions hold %{{y:.1f}} %<extra>{name}, {how}</extra>",
            )
            drawn = True
    figure.update_xaxes(title_text="directions, %")
    return label_figure(figure, f"Curves: energy held by the strongest directions of {kind}s") if drawn else None


def effective_rank(record: Record, arrays: Arrays, layer: int) -> go.Figure | None:
    """exp of the entropy of the energy: how many directions a head's keys and values really use, by layer."""
    figure = canvas(300, yaxis={"title": {"text": "directions in use"}, "rangemode": "tozero"})
    drawn = False
    for key, name, color, dash in RANKS:
        values = spectrum(arrays, key)
        if values is None:
            continue
        drawn = True
        title = (f"keys {name}" if key.startswith("key") else name) + ("" if is_centred(arrays) else f", {WITH_MEAN}")
        figure.add_scatter(
            **of_layers(record, ranks(values).mean(-1)),
            name=title,
            line={"color": color, "width": 2, "dash": dash},
            hovertemplate="layer %{x}: %{y:.1f} directions<extra>" + title + "</extra>",
        )
    figure.add_vline(layer, line={"color": ACCENT, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(title_text=f"layer (of {record.environment.head_dim} directions a head)", **every_layer(record))
    return label_figure(figure, "Curves: effective rank by layer", {"layer": "x"}) if drawn else None


def mean_shares(record: Record, arrays: Arrays, layer: int) -> go.Figure | None:
    """Share of the energy of keys and values that is their mean over the prompt's, by layer."""
    figure = canvas(300, yaxis={"title": {"text": "energy in the mean, %"}, "range": [0, 102]})
    drawn = False
    for key, name, color, dash in RANKS:
        share = mean_share(arrays, key)
        if share is None:
            continue
        drawn = True
        title = f"keys {name}" if key.startswith("key") else name
        figure.add_scatter(
            **of_layers(record, 100 * share),
            name=title,
            line={"color": color, "width": 2, "dash": dash},
            hovertemplate="layer %{x}: %{y:.1f} %<extra>" + title + "</extra>",
        )
    figure.add_vline(layer, line={"color": ACCENT, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(title_text="layer", **every_layer(record))
    return label_figure(figure, "Curves: the mean's share of the energy by layer", {"layer": "x"}) if drawn else None


def mean_share(arrays: Arrays, name: str) -> np.ndarray | None:
    """Share of each layer's energy that is its mean over the prompt: (layers,); None where runs did not keep it."""
    mean, rest = array(arrays, f"mean/{name}"), array(arrays, f"centred/{name}")
    if mean is None or rest is None:
        return None
    held, left = (x.astype(np.float64) ** 2 for x in (mean, rest))
    return held.sum(1) / np.maximum(held.sum(1) + left.sum((1, 2)), 1e-30)


def lane_spectra(record: Record, arrays: Arrays, layer: int, kv_head: int) -> go.Figure | None:
    """Singular values of one head's keys as each lane reads them back, beside the prompt's at full precision."""
    told = "" if is_centred(arrays) else f", {WITH_MEAN}"
    lanes = list(lanes_with(record, arrays, "centred_key" if is_centred(arrays) else "spectrum_key"))
    if not lanes:
        return None
    figure = canvas(300, yaxis={**DECADES, "title": {"text": "singular value / its largest"}})
    own = spectrum(arrays, "key_post")
    whole = {"color": REFERENCE, "width": 2.4}
    lines = [] if own is None else [(-1, "full precision, prompt" + told, whole, own[layer, kv_head])]
    lines += [(i, label_of(lane, 20) + told, line_of(record, i, 1.4), v[layer, kv_head]) for i, lane, v in lanes]
    for index, name, style, line in lines:
        figure.add_scatter(
            x=np.arange(1, line.size + 1),
            y=_relative(line, float(line.max()) or 1.0),
            mode="lines",
            name=name,
            meta=of_lane(index),
            line=style,
            hovertemplate="direction %{x}: %{y:.3g}<extra>" + name + "</extra>",
        )
    figure.update_xaxes(title_text=f"direction (layer {layer}, KV head {kv_head}, after RoPE)")
    return label_figure(figure, "Curves: singular values of the keys as each lane reads them")


def distributions(record: Record, arrays: Arrays, layer: int, what: str) -> go.Figure | None:
    """Spread of every original or latent key channel, at full precision and in each lane, on one scale."""
    info = record.capture
    own = array(arrays, f"spectra/{what}_quantiles")
    if own is None or layer not in info.distribution_layers or len(info.quantiles) < 3:
        return None
    at = info.distribution_layers.index(layer)
    rows, lanes = [(-1, "Full precision", REFERENCE, own[at])], lanes_with(record, arrays, f"{what}_quantiles")
    rows += [(i, label_of(lane), color_of(record, i), v[at]) for i, lane, v in lanes]
    figure = lane_rows([name for _, name, *_ in rows], 62, [color for *_, color, _ in rows], gap=26)
    for row, (index, name, color, levels) in enumerate(rows, 1):
        _fan(figure, row, index, name, color, levels, info.quantiles)
    low, high = (float(f([v for *_, v in rows])) for f in (np.min, np.max))
    tick = _round_below(max(-low, high))
    figure.update_yaxes(range=[1.05 * low, 1.05 * high], tickvals=[-tick, 0, tick])
    named = "channel before RoPE, all heads" if what == "key" else "latent channel, strongest first"
    figure.update_xaxes(title_text=f"{named} (layer {info.distribution_layers[at]})", row=len(rows), col=1)
    figure.update_layout(showlegend=False)
    return label_figure(figure, f"Bands: spread of every {named.split(',')[0]}, full precision and lanes")


def _round_below(reach: float) -> float:
    """The largest 1, 2 or 5 times a power of ten that ``reach`` holds; 1 where it is 0."""
    power = 10.0 ** math.floor(math.log10(reach or 1.0))
    return max(step * power for step in (1, 2, 5) if step * power <= (reach or 1.0))


def _fan(figure: go.Figure, row: int, index: int, name: str, color: str, levels: np.ndarray, at: list[float]) -> None:
    """The whole range and the middle half as bands, the median as a line; levels (channels, quantiles)."""
    x = np.arange(1, levels.shape[0] + 1)
    middle = [min(range(len(at)), key=lambda f: abs(at[f] - q)) for q in (0.25, 0.75, 0.5)]
    for low, high, alpha in ((0, len(at) - 1, 0.22), (middle[0], middle[1], 0.5)):
        for edge, fill in ((low, None), (high, "tonexty")):
            figure.add_scatter(
                x=x,
                y=round_values(levels[:, edge], 3),
                mode="lines",
                name=f"{name}, quantile {at[edge]:g}",
                meta=of_lane(index),
                fill=fill,
                line={"width": 0, "color": color},
                fillcolor=with_alpha(color, alpha),
                hoverinfo="skip",
                row=row,
                col=1,
            )
    figure.add_scatter(
        x=x,
        y=round_values(levels[:, middle[2]], 3),
        mode="lines",
        name=f"{name}, median",
        meta=of_lane(index),
        row=row,
        col=1,
        line={"color": color, "width": 1.2},
        hovertemplate="channel %{x}: median %{y:.3g}<extra>" + name + "</extra>",
    )


def ranks(singular: np.ndarray) -> np.ndarray:
    """exp(entropy) of the energy along the last axis."""
    squares = singular.astype(np.float64) ** 2
    share = squares / np.maximum(squares.sum(-1, keepdims=True), 1e-30)
    return np.exp(-(share * np.log(np.maximum(share, 1e-30))).sum(-1))


def energy(singular: np.ndarray) -> np.ndarray:
    """Cumulative share of the energy along the last axis."""
    squares = singular.astype(np.float64) ** 2
    total = np.maximum(squares.sum(-1, keepdims=True), 1e-30)
    return np.cumsum(squares, -1) / total


def _relative(line: np.ndarray, top: float) -> np.ndarray:
    return np.maximum(line / top, 1e-6).astype(np.float32)
