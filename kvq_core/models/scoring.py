"""What a layer makes of q·k on the way to attention weights, beside scaling it: a soft-cap, a window, sinks."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scoring:
    """Of one layer. Scores are q·k times ``scaling``, then ``softcap`` * tanh(score / softcap) where there is one. A
    query at position p sees the newest ``window`` keys, its own among them, or, of a ``chunk`` of c positions, those
    from c * (p // c) on. ``sinks`` (query_heads,): scores of nothing, which take their share of the softmax.
    ``reads``: the earlier layer whose keys and values are read, of one that holds none.
    """

    scaling: float
    softcap: float | None = None
    window: int | None = None
    chunk: int | None = None
    sinks: Tensor | None = None
    reads: int | None = None

    def holder(self, layer: int) -> int:
        """The layer that holds what a layer of this scoring reads: as a rule itself."""
        return layer if self.reads is None else self.reads

    @property
    def plain(self) -> bool:
        """Whether it is softmax attention over all keys, and nothing else."""
        return self.softcap is None and self.sinks is None and not self.windowed

    @property
    def windowed(self) -> bool:
        return self.window is not None or self.chunk is not None

    def capped_(self, scores: Tensor) -> Tensor:
        """Scaled scores, in place."""
        return scores if self.softcap is None else scores.div_(self.softcap).tanh_().mul_(self.softcap)

    def behind(self, seen: Tensor, tokens: int) -> Tensor | None:
        """Keys before the window of queries of which each sees no more than the first ``seen`` (n,), bool (n, tokens);
        None where all are within it."""
        if self.window is not None:
            first = seen - self.window
        elif self.chunk is not None:
            first = (seen - 1) // self.chunk * self.chunk
        else:
            return None
        if int(first.max()) <= 0:
            return None
        return torch.arange(tokens, device=seen.device) < first[:, None]

    def newest_behind(self, fresh: int, tokens: int, device: torch.device) -> Tensor | None:
        """``behind`` of the last ``fresh`` of so many tokens."""
        if not self.windowed:
            return None
        return self.behind(torch.arange(tokens - fresh, tokens, device=device) + 1, tokens)

    def unseen(self, fresh: int, tokens: int, device: torch.device) -> Tensor:
        """Keys that each of the last ``fresh`` of so many tokens does not see: later ones, and those behind its window,
        bool (fresh, tokens)."""
        later = torch.ones(fresh, tokens, dtype=torch.bool, device=device).triu(tokens - fresh + 1)
        behind = self.newest_behind(fresh, tokens, device)
        return later if behind is None else later | behind

    def softmax(self, scores: Tensor, out: Tensor | None = None) -> Tensor:
        """Weights of scores (..., kv_heads, groups, n, tokens): softmax([scores | sink]) without the sink's share,
        which is softmax(scores) * sigmoid(logsumexp(scores) - sink)."""
        weights = torch.softmax(scores, -1, out=out)
        if self.sinks is not None:
            share = scores.logsumexp(-1) - self.sinks.float().view(*scores.shape[-4:-2], 1)
            weights.mul_(share.sigmoid_().unsqueeze(-1))
        return weights


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
    """Exact attention of the last tokens over all: queries (rows, query_heads, n, head_dim) are the last n of keys.

    Returns (rows, n, query_heads, head_dim of the values).
    """
    n, total = queries.shape[-2], keys.shape[-2]
    if how.softcap is not None or how.sinks is not None:
        return _explicit(queries, keys, values, how).transpose(1, 2)
    groups = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    mask = None
    if n < total:
        mask = torch.ones(n, total, dtype=torch.bool, device=queries.device).tril(total - n)
    if (behind := how.newest_behind(n, total, queries.device)) is not None:
        mask = ~behind if mask is None else mask & ~behind
        mask = mask.tril(total - n)
    out = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None and n > 1, scale=how.scaling
    )
    return out.transpose(1, 2)


def _explicit(queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
    """The same, scores and all, in float32: (rows, query_heads, n, head_dim of the values)."""
    n, total = queries.shape[-2], keys.shape[-2]
    asked = queries.float().unflatten(1, (keys.shape[1], -1))  # (rows, kv_heads, groups, n, head_dim)
    scores = how.capped_(asked @ keys.float().unsqueeze(2).mT * how.scaling)
    weights = how.softmax(scores.masked_fill_(how.unseen(n, total, queries.device), float("-inf")))
    return (weights @ values.float().unsqueeze(2)).flatten(1, 2).to(queries.dtype)
