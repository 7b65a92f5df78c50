"""Attention-score deltas of forced rows against the reference, bounded in size."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from kvq_core.engine.tap import StepScores
from kvq_core.methods import ModelShape

STEP_BINS = 64
POSITION_BINS = 256
MAP_BYTES = 40_000_000  # of all lanes' int8 maps together, where nobody asks for certain layers
SCORE_BYTES = 52_000_000  # of maps and statistics together


def weights_of(quantized: list[tuple[int, int]], tokens: int, device: torch.device) -> Tensor:
    """1 at the positions each lane holds quantized, at all where it holds none: (lanes, 1, 1, tokens)."""
    weights = torch.zeros(len(quantized), 1, 1, tokens)
    for lane, (start, end) in enumerate(quantized):
        weights[lane, ..., slice(start, end) if end > start else slice(None)] = 1
    return weights.to(device)


def span(places: list[int]) -> slice | list[int]:
    """Consecutive places as a slice, which no index has to be sent to a device for."""
    return slice(places[0], places[-1] + 1) if places == list(range(places[0], places[-1] + 1)) else places


def to_host(tap: object) -> None:
    """Take over what a tap gathered where the scores were: once, for each copy waits for the device."""
    for name, held in vars(tap).items():
        if isinstance(held, Tensor):
            setattr(tap, name, held.cpu())


@dataclass(frozen=True)
class Extent:
    """Sizes of the run a tap is made for."""

    layers: int
    query_heads: int
    head_dim: int
    lanes: int  # forced rows, the noise floor last
    steps: int  # scored positions
    tokens: int  # key positions at the end of the run
    floor: bool = True  # whether the last of them is the noise floor
    whole: int = 0  # forced rows of the run, where it goes in batches and these are one's
    looked: tuple[int, ...] = ()  # layers that are looked at; the others stay 0
    value_dim: int = 0  # channels of a value, where they are others than head_dim

    @property
    def drawn(self) -> int:
        """Forced rows that get pictures: the noise floor is a number to compare with."""
        return max(0, self.lanes - self.floor)

    @classmethod
    def of(cls, shape: ModelShape, lanes: int, prompt: int, new: int, floor: bool = True, whole: int = 0) -> "Extent":
        """``prompt`` tokens and ``new`` ones: the first comes from the prefill, and the last enters no cache."""
        steps = max(0, new - 1)
        sizes = shape.layers, shape.query_heads, shape.head_dim
        return cls(*sizes, lanes, steps, prompt + steps, floor, whole, shape.captured, shape.value_dim)


class ScoreTap:
    """Sees every decode step's scores (engine.tap.Tap) and keeps statistics and a coarse signed map.

    A delta is the forced row's scaled q.k minus the reference's, centred per row: softmax ignores what all positions
    share. Statistics are over the positions whose keys the lane holds quantized (all positions where it
    holds none, as the noise floor does). Kept: mean and maximum of |delta| per (lane, layer, query head, step); what
    centring took away; and for ``map_layers`` the signed extreme of each bin of steps x positions.
    """

    def __init__(self, extent: Extent, map_layers: list[int], map_heads: list[int], device: torch.device | str = "cpu"):
        """``device``: where it gathers what it sees, see ``to_host``."""
        e = self.extent = extent
        self.map_layers, self.map_heads = map_layers, map_heads
        self._row_of = {layer: i for i, layer in enumerate(map_layers)}
        shape = (e.lanes, e.layers, e.query_heads, e.steps)
        self.mean, self.max, self.offset = (torch.zeros(shape, device=device) for _ in range(3))
        self.queries = torch.zeros(e.layers, e.query_heads, e.steps, e.head_dim, device=device)
        self.step_bins = max(1, min(STEP_BINS, e.steps))
        self.bin_width = -(-e.tokens // POSITION_BINS)
        self.position_bins = -(-e.tokens // self.bin_width)
        maps = (e.drawn, len(map_layers), len(map_heads), self.step_bins, self.position_bins)
        self.map = torch.zeros(maps, device=device)
        self.step = 0
        self.quantized: list[tuple[int, int]] = []  # the range of key positions each lane holds quantized in this step
        self._every_head = map_heads == list(range(e.query_heads))

    @property
    def step_edges(self) -> list[int]:
        """First scored position of each step bin, and the end."""
        steps = self.extent.steps
        return [-(-b * steps // self.step_bins) for b in range(self.step_bins + 1)]

    @property
    def position_edges(self) -> list[int]:
        return [min(b * self.bin_width, self.extent.tokens) for b in range(self.position_bins + 1)]

    def begin(self, quantized: list[tuple[int, int]]) -> None:
        """Call before a step: the range of key positions each lane holds quantized, (0, 0) for none."""
        self.quantized = quantized

    def advance(self, fresh: int) -> None:
        """Call after a step of ``fresh`` tokens."""
        self.step += fresh

    def scores(self, seen: StepScores) -> None:
        layers, own, device = span(seen.layers), seen.own, self.map.device
        fresh, tokens = own.shape[-2:]
        now = slice(self.step, self.step + fresh)
        self.queries[layers, :, now] = seen.queries.to(device)
        weights = weights_of(self.quantized, tokens, own.device)
        count = weights.sum(-1)

        def keep(where: Tensor, values: Tensor) -> None:
            where[:, layers, :, now] = values.transpose(0, 1).to(device)

        delta, offset = self._centred(own[:, 1:] - own[:, :1])
        keep(self.offset, offset)
        drawn = [i for i, layer in enumerate(seen.layers) if layer in self._row_of]
        if drawn and self.map.shape[0]:
            some = delta if len(drawn) == len(seen.layers) else delta[drawn]
            heads = some if self._every_head else some[:, :, self.map_heads]
            self._pool([self._row_of[seen.layers[i]] for i in drawn], heads)
        size = delta.abs_().mul_(weights)
        keep(self.mean, size.sum(-1) / count)
        keep(self.max, size.amax(-1))

    @staticmethod
    def _centred(delta: Tensor) -> tuple[Tensor, Tensor]:
        """Less each row's mean over the positions it sees, and that mean; those it does not see become 0.

        Changes ``delta`` where that saves a copy.
        """
        fresh = delta.shape[-2]
        if fresh == 1:
            mean = delta.mean(-1, keepdim=True)
            return delta.sub_(mean), mean[..., 0]
        seen = torch.ones(fresh, delta.shape[-1], dtype=torch.bool, device=delta.device)
        seen[:, -fresh:] = seen[:, -fresh:].tril()
        delta = torch.where(seen, delta, 0.0)
        mean = delta.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
        return torch.where(seen, delta - mean, 0.0), mean[..., 0]

    def _bin(self, step: int) -> int:
        return step * self.step_bins // max(1, self.extent.steps)

    def _pool(self, rows: list[int], delta: Tensor) -> None:
        """Keep the signed extreme of each bin of positions; delta (map layers, lanes, map heads, fresh, positions).

        Changes the signs of ``delta``.
        """
        flat = delta.reshape(-1, 1, delta.shape[-1])
        width = self.bin_width
        high = max_pool1d(flat, width, width, ceil_mode=True)
        low = max_pool1d(flat.neg_(), width, width, ceil_mode=True)
        # the larger of both with the sign it came from; torch.where would take ten times as long on a CPU
        extreme = torch.maximum(high, low).copysign_(high.sub_(low)).view(*delta.shape[:-1], -1)
        extreme, at = extreme[:, : self.extent.drawn].to(self.map.device), span(rows)
        bins = extreme.shape[-1]
        for i in range(delta.shape[-2]):
            step = self.step + i
            held, new = self.map[..., self._bin(step), :bins], extreme[..., i, :].transpose(0, 1)
            begins = step == 0 or self._bin(step) > self._bin(step - 1)
            held[:, at] = new if begins else torch.where(new.abs() > held[:, at].abs(), new, held[:, at])

    def int8_map(self, lane: int) -> tuple[Tensor, Tensor]:
        """A lane's map as int8 (map layers, map heads, step bins, position bins), its scale (map layers, map heads)."""
        values = self.map[lane]
        scale = values.abs().amax((-1, -2)) / 127
        safe = torch.where(scale > 0, scale, 1.0)
        return (values / safe[..., None, None]).round().to(torch.int8), scale
