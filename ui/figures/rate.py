"""Distortion against rate: every lane a point, the Pareto front, and what a Gaussian source would need."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvq_core.record import LaneRecord, Record
from ui.colors import NOISE, REFERENCE, lane_color
from ui.figures.base import Arrays, array, canvas, decades, label_of, labelled, of_lane, rounded

SYMBOLS = {"both": "circle", "keys": "triangle-up", "values": "triangle-down"}


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
        touched = asked.of == "whole" or lane.tensors in ("both", f"{asked.of}s")
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
    figure.update_yaxes(decades(min([floor, *drawn]), max([*positive, *drawn], default=1.0)))
    step = front(found)
    figure.add_scatter(
        x=[p[1] for p in step], y=[max(p[2], floor) for p in step], mode="lines", name="Pareto front", hoverinfo="skip",
        showlegend=False, line={"color": REFERENCE, "width": 1.2, "shape": "hv", "dash": "dot"},
    )  # fmt: skip
    for rank, (index, bits, value) in enumerate(found):
        lane = record.lanes[index]
        zero = "" if value > 0 else " (0, drawn at the edge)"
        figure.add_scatter(
            x=[bits], y=[max(value, floor)], mode="markers", name=label_of(lane, 20), cliponaxis=False,
            meta=of_lane(index),
            # points on top of one another stay visible as rings
            marker={"size": 17 - 7 * rank / max(1, len(found) - 1),
                    "color": lane_color(index), "symbol": SYMBOLS.get(lane.tensors, "circle")},
            hovertemplate=f"%{{x:.2f}} bits: %{{y:.3g}}{zero}<extra>{label_of(lane)}</extra>",
        )  # fmt: skip
    whose = {"whole": "an element", "key": "a key element", "value": "a value element"}[asked.of]
    figure.update_xaxes(title_text=f"stored bits {whose}", range=[max(0, low - margin), high + margin])
    return labelled(figure, f"Scatter: {asked.title} against stored bits, one point a lane")


def _curve(figure: go.Figure, arrays: Arrays, asked: Distortion, low: float, high: float) -> list[float]:
    """Draws the curve between two rates; its highest and lowest value, none where there is no curve."""
    bits, error = array(arrays, "gaussian/bits"), array(arrays, asked.curve) if asked.curve else None
    if bits is None or error is None:
        return []
    kept = (bits >= low) & (bits <= high) & (error > 0)
    if not kept.any():
        return []
    figure.add_scatter(
        x=rounded(bits[kept], 3), y=rounded(100 * error[kept], 5), mode="lines", name="Gaussian source",
        showlegend=False, line={"color": NOISE, "width": 1.6},
        hovertemplate="Gaussian source, %{x:.1f} bits: %{y:.3g} %<extra></extra>",
    )  # fmt: skip
    return [100 * float(error[kept].max()), 100 * float(error[kept].min())]


def dominated(record: Record, arrays: Arrays, what: str) -> list[int]:
    """Lanes that some other lane beats in bits and in distortion."""
    found = points(record, arrays, what)
    kept = {index for index, *_ in front(found)}
    return [index for index, *_ in found if index not in kept]
