"""One layer's attention in a decode step, lane by lane, so that a lane's prefix is read once for all its rows."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kvq_core.engine import products
from kvq_core.machine import threads
from kvq_core.models.scoring import Scoring

# (lane among those held, slot) -> the keys this row reads in this step, (kv_heads, tokens), True where read
Hidden = dict[tuple[int, int], Callable[[], Tensor]]


class SharedAttention:
    """Softmax attention over [prefix of the lane | tail of the row].

    queries (lanes, kv_heads, slots, n, head_dim), scaled: slot s of a lane is one row that reads its prefix; the first
    ``slots`` of them attend, a further one is only scored. tail (lanes, kv_heads, slots, n, tail tokens): scores over
    the tails. keys (lanes, kv_heads, head_dim, prefix tokens), values (lanes, kv_heads, prefix tokens, head_dim).
    n: the query heads of a KV head, each with its ``fresh`` tokens, of whose scores the layer makes what ``how`` says.

    After ``compute``: scores, of shape ``every``: (lanes, kv_heads, all slots, n, tokens), and weights, of the slots
    that attend; and, of the prefix alone, out (lanes, kv_heads, slots, n, head_dim).
    """

    scores: Tensor

    def __init__(
        self,
        queries: Tensor,
        tail: Tensor,
        keys: Tensor,
        values: Tensor,
        slots: int,
        hidden: Hidden,
        how: Scoring,
        fresh: int,
    ):
        lanes, heads, every, n, _ = queries.shape
        self.how, self.fresh = how, fresh
        self.keys, self.values, self.hidden = keys, values, hidden
        self._queries, self._tail = queries.flatten(2, 3), tail.flatten(2, 3)
        self.prefix = values.shape[-2]
        tokens = self.prefix + tail.shape[-1]
        self.every = (lanes, heads, every, n, tokens)
        self.weights = queries.new_empty(lanes, heads, slots, n, tokens)
        self.out = queries.new_empty(lanes, heads, slots, n, values.shape[-1])

    def compute(self, scores: Tensor, cores: int) -> None:
        """All lanes, divided among ``cores``, into memory for ``scores``."""
        self.scores = scores
        parts = threads.shares(len(scores), cores)
        threads.together([partial(self._compute, part) for part in parts])

    def _compute(self, part: slice) -> None:
        scores = self.scores[part].flatten(2, 3)
        prefix = scores[..., : self.prefix].flatten(0, 1)  # a view: bmm writes into the scores themselves
        products.product(self._queries[part].flatten(0, 1), self.keys[part].flatten(0, 1), prefix)
        scores[..., self.prefix :] = self._tail[part]
        self.how.capped_(scores)
        weights = self.weights[part]
        if self.how.sinks is None:
            torch.softmax(self._read(part), -1, out=weights)
        else:
            self.how.softmax(self._of_heads(self._read(part)), self._of_heads(weights))
        attended = weights.flatten(2, 3).flatten(0, 1)[..., : self.prefix]
        out = self.out[part].flatten(2, 3).flatten(0, 1)
        products.add_values(out, attended, self.values[part].flatten(0, 1), first=True)

    def _read(self, part: slice) -> Tensor:
        """Scores of the slots that attend; a copy where a row leaves keys out, for the scores are shown as they are."""
        scores = self.scores[part, :, : self.weights.shape[2]]
        hidden = {at: read for at, read in self.hidden.items() if part.start <= at[0] < part.stop}
        behind = self.how.newest_behind(self.fresh, scores.shape[-1], scores.device)
        if hidden or behind is not None:
            scores = scores.clone()
        if behind is not None:
            scores.unflatten(-2, (-1, self.fresh)).masked_fill_(behind, float("-inf"))
        for (lane, slot), read in hidden.items():
            scores[lane - part.start, :, slot].masked_fill_(~read()[:, None], float("-inf"))
        return scores

    def _of_heads(self, x: Tensor) -> Tensor:
        """x (lanes, kv_heads, slots, n, tokens) as (lanes, slots, kv_heads, groups, fresh, tokens)."""
        return x.unflatten(3, (-1, self.fresh)).transpose(1, 2)


def hide_future(scores: Tensor, fresh: int) -> None:
    """Scores (..., n, tokens) of the last ``fresh`` tokens, in place: none of those after a query's own."""
    if fresh > 1:
        own = torch.ones(fresh, fresh, dtype=torch.bool, device=scores.device).triu(1)
        scores.unflatten(-2, (-1, fresh))[..., -fresh:].masked_fill_(own, float("-inf"))
