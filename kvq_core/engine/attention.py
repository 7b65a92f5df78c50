"""One layer's attention in a decode step, so that a lane's prefix is read once for all its rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvq_core.engine import threads
from kvq_core.engine.copies import Place

# place of a row -> the keys it reads in this step, (kv_heads, tokens), True where read
Hidden = dict[Place, Callable[[], Tensor]]


@dataclass
class SharedAttention:
    """Softmax attention over [prefix of the lane | tail of the row].

    queries (lanes, kv_heads, every, n, head_dim), scaled: n = query heads of a KV head x new tokens. The first
    ``slots`` of a lane's ``every`` attend with the tail of their own row; a further one is only scored, with the tail
    of the first. prefix_keys (lanes, kv_heads, head_dim, tokens), prefix_values (lanes, kv_heads, tokens, head_dim),
    tail_keys, tail_values (lanes, kv_heads, slots, tokens, head_dim), of which the last ``fresh`` tokens are new.

    After ``compute``: scores, of shape ``every``, weights, of shape ``attending``: (lanes, kv_heads, every or slots, n,
    tokens); out (lanes, kv_heads, slots, n, head_dim).
    """

    queries: Tensor
    prefix_keys: Tensor
    prefix_values: Tensor
    tail_keys: Tensor
    tail_values: Tensor
    fresh: int
    hidden: Hidden

    def __post_init__(self) -> None:
        lanes, heads, every, n, dim = self.queries.shape
        self.heads, self.slots, self.prefix = heads, self.tail_keys.shape[2], self.prefix_values.shape[-2]
        tokens = self.prefix + self.tail_keys.shape[-2]
        self.every, self.attending = (lanes, heads, every, n, tokens), (lanes, heads, self.slots, n, tokens)
        self.out = self.queries.new_empty(lanes, heads, self.slots, n, dim)
        self.scores = self.weights = self.queries

    def compute(self, scores: Tensor, weights: Tensor, cores: int) -> None:
        """All KV heads of all lanes, divided among ``cores``, into memory for ``scores`` and ``weights``."""
        self.scores, self.weights = scores, weights
        parts = threads.shares(len(scores) * self.heads, cores)
        threads.together([partial(self._compute, part) for part in parts])

    def _compute(self, part: slice) -> None:
        """``part``: of the KV heads of all lanes, one after the other."""
        queries, tail_keys, tail_values, scores, weights, out = (
            x.flatten(0, 1)[part]
            for x in (self.queries, self.tail_keys, self.tail_values, self.scores, self.weights, self.out)
        )
        prefix = scores.flatten(1, 2)[..., : self.prefix]  # a view: bmm writes into the scores themselves
        torch.bmm(queries.flatten(1, 2), self.prefix_keys.flatten(0, 1)[part], out=prefix)
        scores[:, : self.slots, :, self.prefix :] = queries[:, : self.slots] @ tail_keys.mT
        if queries.shape[1] > self.slots:
            scores[:, -1, :, self.prefix :] = queries[:, -1] @ tail_keys[:, 0].mT
        self._hide_future(scores)
        torch.softmax(self._read(scores[:, : self.slots], part), -1, out=weights)
        attended = weights.flatten(1, 2)[..., : self.prefix]
        torch.bmm(attended, self.prefix_values.flatten(0, 1)[part], out=out.flatten(1, 2))
        out += weights[..., self.prefix :] @ tail_values

    def _hide_future(self, scores: Tensor) -> None:
        if self.fresh > 1:
            own = torch.ones(self.fresh, self.fresh, dtype=torch.bool, device=scores.device).triu(1)
            scores.unflatten(-2, (-1, self.fresh))[..., -self.fresh :].masked_fill_(own, float("-inf"))

    def _read(self, scores: Tensor, part: slice) -> Tensor:
        """Scores of the slots that attend; a copy where a row leaves keys out, for the scores are shown as they are."""
        units = range(part.start, part.stop)
        hidden = {place: read for place, read in self.hidden.items() if self._heads_in(place, units)}
        if hidden:
            scores = scores.clone()
        for place, read in hidden.items():
            for unit in self._heads_in(place, units):
                left_out = ~read()[unit % self.heads]
                scores[unit - part.start, place.slot].masked_fill_(left_out, float("-inf"))
        return scores

    def _heads_in(self, place: Place, units: range) -> list[int]:
        first = place.lane * self.heads
        return [unit for unit in range(first, first + self.heads) if unit in units]
