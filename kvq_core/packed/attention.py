"""Attention over keys and values that are packed in different ways: scores, softmax, weighted sum."""

from typing import NamedTuple

import torch
from torch import Tensor

from kvq_core.models.scoring import Scoring
from kvq_core.packed.tensors import Side

ROWS = 64  # query rows of a KV head in one call of an operation


class Fresh(NamedTuple):
    """A step's own tokens as they are stored: keys (rows, kv_heads, n, head_dim) after RoPE, values the same."""

    keys: Tensor
    values: Tensor


class StepQueries(NamedTuple):
    """A step's queries (rows, query_heads, n, head_dim) after RoPE as they meet the keys of its own tokens, and as they
    meet the cache's, for which a kernel may have rounded them."""

    own: Tensor
    met: Tensor


def attention(
    asked: StepQueries, keys: Side, values: Side, fresh: Fresh, how: Scoring, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of n new tokens over the cache and over themselves, causally.

    hidden bool (rows, kv_heads, tokens + n): keys a row leaves out. Returns the output (rows, n, query_heads, head_dim)
    and the weights (rows, query_heads, n, tokens + n) float32.
    """
    heads, count = asked.own.shape[1:3]
    step = max(1, ROWS // (heads // fresh.keys.shape[1]))
    spans = [slice(first, first + step) for first in range(0, count, step)]
    parts = [
        _part(StepQueries(*(q[..., at, :] for q in asked)), at.start, keys, values, fresh, how, hidden) for at in spans
    ]
    out, weights = (torch.cat(tensors, 2) for tensors in zip(*parts, strict=True))
    return out.transpose(1, 2), weights


def _part(
    asked: StepQueries, first: int, keys: Side, values: Side, fresh: Fresh, how: Scoring, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The queries of some of the new tokens, from the ``first`` on: output and weights (rows, query_heads, n, ...)."""
    rows, heads, n, dim = asked.own.shape
    kv_heads, own = fresh.keys.shape[1:3]
    q, met = (x.reshape(rows, kv_heads, -1, dim) for x in asked)  # heads of a KV head, each with its n tokens
    scores = torch.cat([keys.scores(met), q.float() @ fresh.keys.float().transpose(-1, -2)], -1).mul_(how.scaling)
    how.capped_(scores)
    future = torch.ones(n, own, dtype=torch.bool, device=q.device).triu(first + 1)
    by_token = scores.unflatten(2, (-1, n))
    by_token[..., -own:].masked_fill_(future, float("-inf"))
    if hidden is not None:
        scores.masked_fill_(hidden.unsqueeze(-2), float("-inf"))
    total = scores.shape[-1]
    seen = torch.arange(total - own + first, total - own + first + n, device=q.device) + 1
    if (behind := how.behind(seen, total)) is not None:
        by_token.masked_fill_(behind, float("-inf"))
    weights = how.softmax(by_token).flatten(2, 3)
    # rounded where the model is: products of half-precision numbers are what a GPU is fast at
    p = weights if q.dtype == torch.float32 else weights.half()
    out = values.weigh(p[..., :-own]) + p[..., -own:].float() @ fresh.values.float()
    return out.view(rows, heads, n, -1), weights.view(rows, heads, n, -1)
