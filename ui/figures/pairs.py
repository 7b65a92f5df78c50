"""Keys by the pairs of channels that RoPE turns together: what is constant, what differs, what a lane errs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvq_core.analysis.reached import key_counts, steps_taken
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.base import canvas, label_figure, label_of, lanes_with, line_of, of_lane, round_values
from ui.html.colors import BERRY, BRONZE, INK, REFERENCE
from ui.html.numbers import significant

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "key_bias": ("bias", {"mode": "markers", "marker": {"color": BERRY, "symbol": "diamond", "size": 8}}),
    "key_mean": ("mean key", {"mode": "lines", "line": {"color": BRONZE, "width": 2, "dash": "dash"}}),
    "key_spread": ("spread", {"mode": "lines", "line": {"color": REFERENCE, "width": 2.4}}),
}


@dataclass(frozen=True)
class HeadPairs:
    """The pairs of a head, slowest first; channels that are not turned count as one pair, of ``theta`` 0.

    theta (pairs,) radians a token; which of them each captured pair (``place``) and each channel (``of``) is.
    """

    theta: np.ndarray
    place: np.ndarray
    of: np.ndarray

    def of_channels(self, squares: np.ndarray) -> np.ndarray:
        """Sums of squares by channel (head_dim,) over each pair."""
        return np.bincount(self.of, squares.astype(np.float64), len(self.theta))

    def of_captured(self, sizes: np.ndarray) -> np.ndarray:
        """Squares of what was captured by pair."""
        return np.bincount(self.place, sizes[: len(self.place)].astype(np.float64) ** 2, len(self.theta))

    @property
    def along(self) -> np.ndarray:
        """Where they stand on a logarithmic axis of theta: those that are not turned a decade before the slowest."""
        return np.where(self.theta > 0, self.theta, self.theta[self.theta > 0][0] / 10)

    def told(self, tokens: int) -> list[str]:
        """Of each its channels, and how far it turns over so many tokens."""
        said = []
        for pair, theta in enumerate(self.theta):
            own = np.flatnonzero(self.of == pair).tolist()
            radians = float(theta) * tokens
            turns = f"{significant(radians, 2)} rad, {significant(radians / (2 * np.pi), 2)} turns over {tokens} tokens"
            which = f"channels {' and '.join(map(str, own))}" if theta else f"{len(own)} channels"
            said.append(f"{which}: {f'θ {significant(float(theta))}, {turns}' if theta else 'not turned'}")
        return said


def pairs_at(arrays: Arrays, layer: int) -> HeadPairs | None:
    """None where the run did not capture them, does not know them, or RoPE turns none."""
    of, theta = array(arrays, "pairs/of"), array(arrays, "pairs/theta")
    if of is None or theta is None or of[layer].min() < 0 or not theta[layer].any():
        return None
    own = theta[layer][: int(of[layer].max()) + 1]
    order = np.argsort(own, kind="stable")
    order, still = order[own[order] > 0], int((own == 0).any())
    place = np.zeros(len(own), int)
    place[order] = np.arange(len(order)) + still
    return HeadPairs(np.concatenate([np.zeros(still), own[order]]), place, place[of[layer].astype(int)])


def tokens_of(record: Record) -> int:
    """Keys that are there at the end of the run."""
    return int(key_counts(record, [steps_taken(record)])[0])


def pair_squares(arrays: Arrays, name: str, pairs: HeadPairs, layer: int, kv_head: int) -> np.ndarray | None:
    """Squares of one of SIZES, by pair; None where the model has none."""
    held = array(arrays, f"pairs/{name}")
    return None if held is None else pairs.of_captured(held[layer, kv_head])


def key_pairs(record: Record, arrays: Arrays, layer: int, kv_head: int) -> go.Figure | None:
    """Of one head, by pair: bias, mean and spread of its keys before RoPE, and the error of each lane's."""
    pairs = pairs_at(arrays, layer)
    if pairs is None:
        return None
    tokens = tokens_of(record)
    found: list[tuple[str, np.ndarray, dict[str, Any]]] = []
    for index, lane, error in lanes_with(record, arrays, "key_channel_error"):
        style = {"mode": "lines", "line": line_of(record, index, 1.6), "meta": of_lane(index)}
        found.append((label_of(lane, 20), pairs.of_channels(error[layer, kv_head]) / tokens, style))
    for key, (name, style) in SIZES.items():
        if (squares := pair_squares(arrays, key, pairs, layer, kv_head)) is not None:
            found.append((name, squares, style))
    figure = canvas(330, yaxis={"type": "log", "dtick": 1, "title": {"text": "size in the pair"}})
    told = np.array(pairs.told(tokens), dtype=object)
    for name, squares, style in found:
        if (there := squares > 0).any():  # nothing has no place on a logarithmic axis
            figure.add_scatter(
                x=pairs.along[there].astype(np.float32),
                y=round_values(np.sqrt(squares[there]), 6),
                name=name,
                text=told[there].tolist(),
                hovertemplate="%{text}<br>%{y:.3g}<extra>" + name + "</extra>",
                **style,
            )
    figure.add_vline(1 / tokens, line={"color": INK, "width": 1, "dash": "dot"})
    ticks = {10.0**power: f"{10.0**power:g}".replace("e-0", "e-") for power in range(-10, 2, 2)}
    if not pairs.theta[0]:
        ticks[float(pairs.along[0])] = "0"
    reach = (np.log10(pairs.along[[0, -1]]) + [-0.2, 0.2]).tolist()
    where = f"θ, radians a token (layer {layer}, KV head {kv_head})"
    figure.update_xaxes(type="log", range=reach, title_text=where, tickvals=list(ticks), ticktext=list(ticks.values()))
    return label_figure(figure, "Curves: bias, mean and spread of keys and each lane's error, by RoPE pair's theta")
