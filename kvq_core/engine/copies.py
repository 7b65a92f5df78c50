"""The dequantized working copies of all rows on one device: where they lie and how they are written."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kvq_core.engine.cache import Kind
from kvq_core.engine.prefill import LayerGroup

SLOTS = 2  # rows of a lane at most: the forced one and, once the texts have parted, its own


class Place(NamedTuple):
    """Where a row lies: its lane among those held, and its slot among the lane's rows."""

    lane: int
    slot: int


@dataclass
class Copies:
    """``prefix`` tokens are held once a lane, the others once a row.

    prefix_keys (layers, lanes + 1, kv_heads, head_dim, tokens), turned because small products read them faster so;
    prefix_values (layers, lanes + 1, kv_heads, tokens, head_dim); tail_keys, tail_values
    (layers, lanes + 1, kv_heads, slots, tokens, head_dim).
    """

    prefix: int
    prefix_keys: Tensor
    prefix_values: Tensor
    tail_keys: Tensor
    tail_values: Tensor

    @classmethod
    def of(cls, group: LayerGroup, lanes: int, prefix: int, tokens: int) -> "Copies":
        """Room for ``lanes`` lanes and the reference, up to ``tokens`` tokens a row."""
        layers, heads, _, dim = group.keys.shape
        held = (layers, lanes + 1, heads)
        tail = (*held, SLOTS, tokens - prefix, dim)
        shapes = ((*held, dim, prefix), (*held, prefix, dim), tail, tail)
        return cls(prefix, *(torch.empty(shape, device=group.device) for shape in shapes))

    @property
    def device(self) -> torch.device:
        return self.tail_keys.device

    def tail(self, kind: Kind) -> Tensor:
        return self.tail_keys if kind == "key" else self.tail_values

    def _prefix(self, kind: Kind) -> Tensor:
        """(layers, lanes + 1, kv_heads, tokens, head_dim)."""
        return self.prefix_keys.mT if kind == "key" else self.prefix_values

    def write(self, kind: Kind, layers: Tensor | slice, place: Place, start: int, x: Tensor) -> None:
        """Put x (layers, kv_heads, tokens, head_dim) at positions start, ... of a row."""
        prefix, tail = self._prefix(kind), self.tail(kind)
        end = start + x.shape[-2]
        if isinstance(layers, Tensor) and layers.numel() == prefix.shape[0]:
            layers = slice(None)  # all of them: a plain copy is much faster than an indexed one
        if start < self.prefix:
            stop = min(end, self.prefix)
            prefix[layers, place.lane, :, start:stop] = x[..., : stop - start, :]
        if end > self.prefix:
            first = max(start, self.prefix)
            held = tail[:, place.lane, :, place.slot]
            held[layers, :, first - self.prefix : end - self.prefix] = x[..., first - start :, :]

    def fresh(self, kind: Kind, layers: Tensor, place: Place, position: int) -> Tensor:
        """One token of a row: (layers, kv_heads, 1, head_dim)."""
        at = position - self.prefix
        held = self.tail(kind)[:, place.lane, :, place.slot, at : at + 1]
        return held if layers.numel() == held.shape[0] else held[layers]

    def patch(self, kind: Kind, layers: Tensor, place: Place, heads: Tensor, positions: Tensor, values: Tensor) -> None:
        """Rewrite single tokens of a row's tail: values (n, head_dim) at layers, heads and positions (n,)."""
        tail = self.tail(kind)
        _, lanes, kv_heads, slots, tokens, dim = tail.shape
        row = ((layers * lanes + place.lane) * kv_heads + heads) * slots + place.slot
        # rows of a flat view: several times faster than indexing three dimensions
        tail.view(-1, dim).index_copy_(0, row * tokens + positions - self.prefix, values)

    def fork(self, lane: int, tokens: int) -> None:
        """Give a lane a second row, a copy of its first as it stands at ``tokens`` tokens."""
        held = tokens - self.prefix
        for tail in (self.tail_keys, self.tail_values):
            tail[:, lane, :, 1, :held] = tail[:, lane, :, 0, :held]

    def move(self, rows: list[tuple[Place, Place]], lanes: list[int], tokens: int) -> None:
        """Rows go from one place to another; ``lanes``: those whose prefix is still held, in their new order."""
        held = tokens - self.prefix
        for layer in range(len(self.tail_keys)):  # a layer at a time: in place, without a second copy
            for tail in (self.tail_keys[layer], self.tail_values[layer]):
                kept = [tail[old.lane, :, old.slot, :held].clone() for old, _ in rows]
                for (_, new), values in zip(rows, kept, strict=True):
                    tail[new.lane, :, new.slot, :held] = values
            if lanes != list(range(len(lanes))):
                for shared in (self.prefix_keys[layer], self.prefix_values[layer]):
                    shared[: len(lanes)] = shared[lanes]

    def working(self, kind: Kind, layer: int, place: Place, tokens: int) -> Tensor:
        """A row's first ``tokens`` tokens in one layer: (kv_heads, tokens, head_dim)."""
        tail = self.tail(kind)[layer, place.lane, :, place.slot, : tokens - self.prefix]
        return torch.cat([self._prefix(kind)[layer, place.lane], tail], -2)
