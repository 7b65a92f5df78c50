"""Singular values of the prompt's keys: how few directions hold them, before and after RoPE."""

import numpy as np
import plotly.graph_objects as go

from kvq_core.record import Record
from ui.colors import ACCENT, faded
from ui.figures.base import Arrays, array, canvas, rounded

SPACES = (("pre", "before RoPE", ACCENT, "dash"), ("post", "after RoPE", "#b3366f", "solid"))


def head_spectra(record: Record, arrays: Arrays, layer: int) -> go.Figure | None:
    """Singular values of each KV head of a layer, relative to the layer's largest."""
    curves = [(array(arrays, f"spectra/key_{space}"), name, color, dash) for space, name, color, dash in SPACES]
    if any(values is None for values, *_ in curves):
        return None
    figure = canvas(300, yaxis={"type": "log", "title": {"text": "singular value / largest"}})
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
                line={"color": faded(color, 1 - 0.25 * (head % 3)), "width": 1.6, "dash": dash},
                hovertemplate=f"direction %{{x}}: %{{y:.3g}}<extra>KV head {head}, {name}</extra>",
            )
    figure.update_xaxes(title_text=f"direction of a KV head (layer {layer})")
    return figure


def joint_spectra(record: Record, arrays: Arrays, layer: int) -> go.Figure | None:
    """Singular values with the heads of the layer concatenated."""
    curves = [(array(arrays, f"spectra/key_{space}_concat"), name, color, dash) for space, name, color, dash in SPACES]
    if any(values is None for values, *_ in curves):
        return None
    figure = canvas(300, yaxis={"type": "log", "title": {"text": "singular value / largest"}})
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
    figure.update_xaxes(title_text=f"direction, all heads (layer {layer})")
    return figure


def cumulative_energy(record: Record, arrays: Arrays, layer: int) -> go.Figure | None:
    """Share of the squared norm that the strongest directions hold: mean over heads, and heads concatenated."""
    figure = canvas(300, yaxis={"title": {"text": "energy held, %"}, "range": [0, 102]})
    drawn = False
    for space, name, color, dash in SPACES:
        for suffix, kind, width in (("", "per head", 2.2), ("_concat", "concatenated", 1.2)):
            values = array(arrays, f"spectra/key_{space}{suffix}")
            if values is None:
                continue
            held = energy(values[layer])
            held = held.mean(0) if held.ndim > 1 else held
            share = np.arange(1, held.size + 1) / held.size
            figure.add_scatter(
                x=rounded(100 * share, 2),
                y=rounded(100 * held, 2),
                mode="lines",
                name=f"{name}, {kind}",
                line={"color": color, "width": width, "dash": dash},
                hovertemplate="%{x:.0f} % of directions hold %{y:.1f} %<extra></extra>",
            )
            drawn = True
    figure.update_xaxes(title_text="directions, %")
    figure.update_layout(showlegend=False)
    return figure if drawn else None


def energy(singular: np.ndarray) -> np.ndarray:
    """Cumulative share of the energy along the last axis."""
    squares = singular.astype(np.float64) ** 2
    total = np.maximum(squares.sum(-1, keepdims=True), 1e-30)
    return np.cumsum(squares, -1) / total


def _relative(line: np.ndarray, top: float) -> np.ndarray:
    return np.maximum(line / top, 1e-6).astype(np.float32)
