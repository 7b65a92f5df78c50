"""Bit widths from error tolerances: how many bits a unit needs so that attention stays within a given spread."""

from dataclasses import dataclass
from math import ceil, expm1, inf, log1p, log2, sqrt

import torch
from torch import Tensor

from kvq_core.codecs.codec import layer_slices
from kvq_core.methods.qaq.pools import bounds, units_of


@dataclass(frozen=True)
class BitRule:
    """Bits of every unit: of keys where ``norms``, those of query_norms (layers, units), are given, else of values."""

    bits_min: int
    bits_max: int
    window: int
    kv_heads: int
    unit: str
    norms: Tensor | None
    tolerance: float = inf

    def __call__(self, extents: Tensor, rows: tuple[Tensor, ...], start: int, tokens: int) -> Tensor:
        if self.norms is None and len(rows) < self.window:  # nothing is known to be unimportant yet
            return torch.full(extents.shape, self.bits_max, dtype=torch.uint8, device=extents.device)
        bits = self.bits(self.demand(extents, rows, start, tokens), log2(self.limit(tokens)))
        bits[max(0, tokens - self.window + 1 - start) :] = self.bits_max
        return bits.to(torch.uint8)

    def demand(self, extents: Tensor, rows: tuple[Tensor, ...], start: int, tokens: int) -> Tensor:
        """log2 of range / (2 sqrt(3) sigma) at a limit of 1: (stored tokens, layers, units)."""
        needed = (extents / (2 * sqrt(3))).log2()
        if self.norms is not None:
            return needed + 0.5 * self.norms.log2()
        largest = extents.new_zeros(*extents.shape[1:], tokens)
        for row in rows:
            seen = largest[..., : row.shape[-1]]
            torch.maximum(seen, row, out=seen)
        stored = largest[..., start : start + len(extents)].permute(2, 0, 1)
        return needed + stored.log2() + 0.5 * log2(tokens)

    def limit(self, tokens: int) -> float:
        """Keys: the largest standard deviation of a score; values: sigma_max itself."""
        if self.norms is None:
            return self.tolerance
        return sqrt(log1p(tokens**3 / max(1, tokens - 1) * self.tolerance**2))  # T = 1 has no other token to disturb

    def bits(self, demand: Tensor, limit: float) -> Tensor:
        """B of Section 4 between the bounds, for log2 of a limit."""
        return (demand - limit).ceil_().clamp_(self.bits_min, self.bits_max)

    def solve(self, extents: Tensor, rows: tuple[Tensor, ...], target: float) -> float:
        """The tightest tolerance whose mean width on the prompt is at most ``target``, by bisection.

        The newest tokens count with their bits_max, except on prompts so short that nothing could make up for them.
        """
        tokens = len(extents)
        forced = min(tokens, self.window - 1)
        demand = self.demand(extents, rows, 0, tokens)[: tokens - forced]
        rest = (target * tokens - self.bits_max * forced) / max(1, tokens - forced)
        if rest < self.bits_min:
            demand, rest = self.demand(extents, rows, 0, tokens), target
        low, high = -60.0, 60.0 if self.norms is None else 4.6  # of log2 of the limit; e^(2^9.2) is near overflow
        for _ in range(48):
            middle = (low + high) / 2
            if self.bits(demand, middle).mean() > rest:
                low = middle
            else:
                high = middle
        if self.norms is None:
            return 2.0**high
        return sqrt(expm1(4.0**high) * max(1, tokens - 1) / tokens**3)

    def remember(self, rows: tuple[Tensor, ...], attention: Tensor) -> tuple[Tensor, ...]:
        if self.norms is not None:
            return ()
        fresh = by_unit(attention, self.kv_heads, self.unit).unbind(2)
        return (*rows, *fresh)[-self.window :]


def by_unit(x: Tensor, kv_heads: int, unit: str) -> Tensor:
    """Largest over the query heads of each unit: (layers, query_heads, ...) -> (layers, units, ...)."""
    return x.unflatten(1, (1 if unit == "layer" else kv_heads, -1)).amax(2)


def extents(x: Tensor, unit: str, outliers: int, metadata: torch.dtype) -> Tensor:
    """Ranges without outliers of x (layers, kv_heads, tokens, head_dim): (tokens, layers, units) float32."""
    parts = [bounds(units_of(x[s].float(), unit), outliers, metadata)["extents"] for s in layer_slices(x)]
    return torch.cat(parts, 1).float()


def query_norms(queries: Tensor, kv_heads: int, unit: str, scaling: tuple[float, ...]) -> Tensor:
    """Squared size of the queries (layers, query_heads, tokens, head_dim), times a layer's ``scaling`` of scores, that
    90% of them do not exceed."""
    squares = queries.square().sum(-1) * queries.new_tensor(scaling).square()[:, None, None]
    return by_unit(squares.kthvalue(ceil(0.9 * squares.shape[-1]), -1).values, kv_heads, unit)


def attention_rows(
    queries: Tensor, keys: Tensor, window: int, unit: str, scaling: tuple[float, ...]
) -> tuple[Tensor, ...]:
    """Attention of the prompt's last ``window`` queries, oldest first: (layers, units, tokens) each. ``scaling``: of
    the scores of each layer."""
    tokens = keys.shape[-2]
    window = min(window, tokens)
    future = torch.ones(window, tokens, dtype=torch.bool, device=keys.device).triu(tokens - window + 1)
    rows = []
    for q, k, factor in zip(queries[..., -window:, :], keys, scaling, strict=True):  # layer by layer
        scores = q.unflatten(0, (len(k), -1)) @ k.unsqueeze(1).transpose(-1, -2) * factor
        weights = scores.masked_fill(future, -inf).softmax(-1)  # (kv_heads, groups, window, tokens)
        rows.append(by_unit(weights.flatten(0, 1)[None], len(k), unit)[0])
    return torch.stack(rows).unbind(2)
