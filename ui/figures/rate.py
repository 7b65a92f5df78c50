"""Distortion against rate: every lane a point, the Pareto front, and what a Gaussian source would need."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record
from ui.figures.base import canvas, decades, label_figure, label_of, of_lane, round_values, symbols_of
from ui.figures.text_differs import differs
from ui.html.colors import LANES, NOISE, REFERENCE

SYMBOLS: dict[tuple[str, ...], str] = {
    ("keys",): "triangle-up",
    ("values",): "triangle-down",
}  # of lanes that quantize one alone


LONG_TICKS = 72  # px beside an axis whose ticks are as long as 0.00001
OVER_TOKENS = ("kld_mean", "flip_rate")  # what js/rates.js computes of some tokens, too


@dataclass(frozen=True)
class Distortion:
    """A measure: where it is in a lane's metrics, whose bits it is drawn against, and its reference curve."""

    name: str
    of: str  # whole, key or value: whose bits
    factor: float
    title: str
    curve: str | None = None


DISTORTIONS = {
    "kld": Distortion("kld_mean", "whole", 1, "mean KLD, nats"),
    "flips": Distortion("flip_rate", "whole", 100, "flips, %"),
    "key": Distortion("key_rmse", "key", 100, "‖ΔK‖/‖K‖, %", "gaussian/key_error"),
    "value": Distortion("value_rmse", "value", 100, "‖ΔV‖/‖V‖, %", "gaussian/value_error"),
    "output": Distortion("output_relative", "whole", 100, "‖ΔO‖/‖O‖, %"),
}


def rate(lane: LaneRecord, of: str) -> float | None:
    """Stored bits an element of the whole cache, its keys or its values, windows and metadata included."""
    if lane.memory is None:
        return None
    widths = {"key": lane.memory.key_bits, "value": lane.memory.value_bits}
    return widths[of] if of in widths else (widths["key"] + widths["value"]) / 2


def points(record: Record, arrays: Arrays, what: str) -> list[tuple[int, float, float]]:
    """(lane, bits, distortion) of the lanes that have both."""
    asked, found = DISTORTIONS[what], []
    for index, lane in enumerate(record.lanes):
        if lane.status != "done" or lane.metrics is None:
            continue
        value, bits = getattr(lane.metrics, asked.name, None), rate(lane, asked.of)
        if asked.name == "output_relative":
            output = array(arrays, f"lane/{index}/output_relative")
            value = None if output is None else float(output.mean())
        # a lane that leaves the keys alone says nothing about keys
        touched = asked.of == "whole" or f"{asked.of}s" in lane.quantized
        if value is not None and bits is not None and np.isfinite(value) and touched:
            found.append((index, bits, asked.factor * value))
    return found


def front(found: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """The lanes no other lane beats in both, from few bits to many."""
    best: list[tuple[int, float, float]] = []
    for point in sorted(found, key=lambda p: (p[1], p[2])):
        if not best or point[2] < best[-1][2]:
            best.append(point)
    return best


def distortion_rate(record: Record, arrays: Arrays, what: str) -> go.Figure | None:
    """Lanes as points on logarithmic distortion; the front as a step line; the Gaussian curve where there is one."""
    asked, found = DISTORTIONS[what], points(record, arrays, what)
    if not found:
        return None
    positive = [value for *_, value in found if value > 0]
    floor = min(positive, default=1e-6) / 3
    low, high = min(bits for _, bits, _ in found), max(bits for _, bits, _ in found)
    margin = max(0.6, 0.22 * (high - low))
    figure = canvas(340, yaxis={"type": "log", "title": {"text": asked.title}})
    drawn = _curve(figure, arrays, asked, max(0, low - margin), high + margin)
    ticks = decades(min([floor, *drawn]), max([*positive, *drawn], default=1.0))
    if len(positive) < len(found):  # a logarithmic axis has no 0: its place is told, at the lower edge
        above = [at for at in ticks["tickvals"] if at > 1.5 * floor and positive]
        ticks = {"tickvals": [floor, *above], "ticktext": ["0", *(f"{at:g}" for at in above)]}
    figure.update_yaxes(ticks)
    draw_front(figure, [(bits, max(value, floor)) for _, bits, value in front(found)])
    for rank, (index, bits, value) in enumerate(found):
        lane = record.lanes[index]
        declared = " declared" if lane.memory and lane.memory.declared else ""
        figure.add_scatter(
            x=[bits],
            y=[max(value, floor)],
            mode="markers",
            name=label_of(lane, 20),
            cliponaxis=False,
            meta=of_lane(index),
            # points on top of one another stay visible as rings
            marker=symbols_of(record, index, 17 - 7 * rank / max(1, len(found) - 1), **_symbol(record, index)),
            customdata=[differs(record, index)],
            text=[f"{value:.3g}"],
            hovertemplate=f"%{{x:.2f}} bits{declared}: %{{text}}<br>%{{customdata}}<extra>{label_of(lane)}</extra>",
        )
    whose = {"whole": "an element", "key": "a key element", "value": "a value element"}[asked.of]
    figure.update_xaxes(title_text=f"stored bits {whose}", range=[max(0, low - margin), high + margin])
    figure.update_layout(margin_l=LONG_TICKS)
    spanned = {"rate": {"name": asked.name, "factor": asked.factor}} if asked.name in OVER_TOKENS else {}
    return label_figure(figure, f"Scatter: {asked.title} against stored bits, one point a lane", opens=True, **spanned)


def draw_front(figure: go.Figure, steps: list[tuple[float, float]]) -> None:
    """The steps of (size, loss) of those that no other betters."""
    figure.add_scatter(
        x=[bits for bits, _ in steps],
        y=[value for _, value in steps],
        mode="lines",
        name="Pareto front",
        hoverinfo="skip",
        meta={"front": True},
        showlegend=False,
        line={"color": REFERENCE, "width": 1.2, "shape": "hv", "dash": "dot"},
    )


def _symbol(record: Record, index: int) -> dict[str, str]:
    """Of a lane that quantizes keys or values alone; hollow from the ninth lane on, whose own symbol it replaces."""
    alone = SYMBOLS.get(record.lanes[index].quantized)
    return {} if alone is None else {"symbol": alone if record.number(index) < len(LANES) else f"{alone}-open"}


def _curve(figure: go.Figure, arrays: Arrays, asked: Distortion, low: float, high: float) -> list[float]:
    """Draws the curve between two rates; its highest and lowest value, none where there is no curve."""
    bits, error = array(arrays, "gaussian/bits"), array(arrays, asked.curve) if asked.curve else None
    if bits is None or error is None:
        return []
    kept = (bits >= low) & (bits <= high) & (error > 0)
    if not kept.any():
        return []
    figure.add_scatter(
        x=round_values(bits[kept], 3),
        y=round_values(100 * error[kept], 5),
        mode="lines",
        name="Gaussian source",
        showlegend=False,
        line={"color": NOISE, "width": 1.6},
        hovertemplate="Gaussian source, %{x:.1f} bits: %{y:.3g} %<extra></extra>",
    )
    return [100 * float(error[kept].max()), 100 * float(error[kept].min())]


def beaten(found: list[tuple[int, float, float]]) -> tuple[list[int], list[int]]:
    """Lanes off the front: those that another beats in both, and those beaten in one at an equal other, with bits equal
    where they are shown equal."""
    kept = {index for index, *_ in front(found)}
    off = [(index, round(bits, 2), value) for index, bits, value in found if index not in kept]
    both = [i for i, bits, value in off if any(round(b, 2) < bits and v < value for _, b, v in found)]
    return both, [i for i, *_ in off if i not in both]
