"""Errors of the caches themselves: a forced row's keys and values against the reference's at the end of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.capture.attention import Buckets
from kvq_core.engine.rows import Rows
from kvq_core.models.scoring import Scoring

TOP = 5  # query directions of `in_subspace_error`, the same for every lane
KINDS = ("key", "value")


@dataclass(frozen=True)
class ReferenceCache:
    """The reference at the end of a run, which every lane is measured against.

    ``places``: of each layer that is looked at, its group and its place there; directions (layers, kv_heads, head_dim,
    head_dim) of the prompt's queries; ``scoring`` of every layer; queries (layers, query_heads, n, head_dim) after
    RoPE, each of which sees the first ``seen`` (n,) keys: a few and, last, the newest, which sees all. Computed from
    the working copy:
    ``energy`` (layers, kv_heads, head_dim) squared size of each channel over all tokens, ``depth``
    (layers, kv_heads, buckets) of each bucket of tokens, outputs (layers, query_heads, n, head_dim), ``attention``
    (layers, query_heads, tokens) of all queries but the newest, their mean, and ``weighted`` (layers, query_heads), the
    squared size of values that it weighs. Values, and with them outputs, may have another head_dim than keys.
    """

    places: dict[int, tuple[int, int]]
    directions: Tensor
    scoring: Sequence[Scoring | None]
    queries: Tensor
    seen: Tensor
    buckets: Buckets
    energy: dict[str, Tensor]
    depth: dict[str, Tensor]
    outputs: Tensor
    attention: Tensor
    weighted: Tensor

    @classmethod
    def of(
        cls,
        rows: Rows,
        places: dict[int, tuple[int, int]],
        directions: Tensor,
        scoring: Sequence[Scoring | None],
        queries: Tensor,
        seen: Tensor,
        buckets: Buckets,
    ) -> "ReferenceCache":
        count, heads, dim = directions.shape[:3]
        g, i = next(iter(places.values()))
        wide = rows.working(0, g, "value", i).shape[-1]
        energy = {"key": torch.zeros(count, heads, dim), "value": torch.zeros(count, heads, wide)}
        depth = {kind: torch.zeros(count, heads, buckets.count) for kind in KINDS}
        outputs = torch.zeros(*queries.shape[:-1], wide)
        attention = torch.zeros(*queries.shape[:2], rows.tokens)
        weighted = torch.zeros(queries.shape[:2])
        for layer, (g, i) in places.items():
            held = {kind: rows.working(0, g, kind, i) for kind in KINDS}
            for kind, x in held.items():
                energy[kind][layer], depth[kind][layer] = _squares(x, buckets)
            own, how = queries[layer].to(held["key"].device), scoring[layer]
            assert how is not None
            weights = attention_weights(own, held["key"], how, seen)
            outputs[layer] = _outputs(weights, held["value"]).cpu()
            attention[layer] = weights[:, :, :-1].mean(2).flatten(0, 1).cpu()
            weighted[layer] = _weighed(attention[layer], held["value"])
        what = places, directions, scoring, queries, seen, buckets
        return cls(*what, energy, depth, outputs, attention, weighted)


@dataclass
class CacheErrors:
    """Of one lane. ||d|| is a Frobenius norm over tokens and channels; keys are compared after RoPE.

    key, value (layers, kv_heads) relative; channel: squared error of each channel, energy: squared key error along
    each direction of the prompt's queries, strongest first, both (layers, kv_heads, head_dim); depth relative
    (layers, kv_heads, buckets); output (layers, query_heads) ||change of the attention output||_2 at the reference's
    newest query, bound (layers, query_heads) as output_bound says; output_relative (layers, query_heads)
    ||dO||_F / ||O||_F over its other queries; value_weighted (layers, query_heads) the root of sum_i a_i ||dv_i||^2
    over sum_i a_i ||v_i||^2 with a_i these queries' mean attention of the reference; the rest are means over layers of
    errors relative to the layer. Outputs are over the keys the lane reads; ``bound`` is None for a lane that leaves
    keys or biases out, for the theorem knows of no such lane; biases left out are no error of keys, and what they cost
    is one of outputs.
    """

    key: Tensor
    value: Tensor
    channel: dict[str, Tensor]
    depth: dict[str, Tensor]
    energy: Tensor
    output: Tensor
    bound: Tensor | None
    output_relative: Tensor
    value_weighted: Tensor
    key_rmse: float
    value_rmse: float
    in_subspace_error: float


def _whole(truth: ReferenceCache, part: Tensor, kind: str) -> float:
    """Relative error of all tokens and channels, the mean over the layers that are looked at."""
    own = sorted(truth.places)
    return (part[own].sum((-1, -2)) / truth.energy[kind][own].sum((-1, -2))).sqrt().mean().item()


def cache_errors(rows: Rows, row: int, truth: ReferenceCache) -> CacheErrors:
    """Compare a forced row's working copy with the reference's."""
    channel = {kind: torch.zeros_like(truth.energy[kind]) for kind in KINDS}
    depth = {kind: torch.zeros_like(truth.depth[kind]) for kind in KINDS}
    energy = torch.zeros_like(truth.energy["key"])
    weighted = torch.zeros_like(truth.weighted)
    changed, bound, beyond = torch.zeros_like(truth.outputs), torch.zeros(truth.outputs.shape[:2]), False
    for layer, (g, i) in truth.places.items():  # one at a time: small intermediates are several times faster on a CPU
        true, read = ({kind: rows.working(r, g, kind, i) for kind in KINDS} for r in (0, row))
        whole = read | {"key": rows.left_out.with_them(layer, rows.lane_of[row], read["key"])}
        delta = {kind: whole[kind] - true[kind] for kind in KINDS}
        for kind in KINDS:
            channel[kind][layer], depth[kind][layer] = _squares(delta[kind], truth.buckets)
        weighted[layer] = _weighed(truth.attention[layer], delta["value"])
        device = delta["key"].device
        # directions first: keys lie in memory channel by channel, and so does what is summed over tokens
        energy[layer] = (truth.directions[layer].to(device).mT @ delta["key"].mT).square_().sum(-1).cpu()
        queries, how = truth.queries[layer].to(device), truth.scoring[layer]
        assert how is not None
        chosen = rows.read_by(row, layer, queries, truth.seen)
        beyond |= chosen is not None or whole["key"] is not read["key"]
        own = attention_outputs(queries, read["key"], read["value"], how, truth.seen, chosen)
        changed[layer] = own.cpu() - truth.outputs[layer]
        bound[layer] = output_bound(queries[:, -1], delta["key"], read["value"], delta["value"], how.scaling).cpu()

    relative = {kind: _ratio(channel[kind].sum(-1), truth.energy[kind].sum(-1)) for kind in KINDS}
    return CacheErrors(
        key=relative["key"],
        value=relative["value"],
        channel=channel,
        depth={kind: _ratio(depth[kind], truth.depth[kind]) for kind in KINDS},
        energy=energy,
        output=changed[:, :, -1].norm(dim=-1),
        bound=None if beyond else bound,
        output_relative=_ratio(*(x[:, :, :-1].square().sum((-1, -2)) for x in (changed, truth.outputs))),
        value_weighted=_ratio(weighted, truth.weighted),
        key_rmse=_whole(truth, channel["key"], "key"),
        value_rmse=_whole(truth, channel["value"], "value"),
        in_subspace_error=_whole(truth, energy[..., :TOP], "key"),
    )


def _squares(x: Tensor, buckets: Buckets) -> tuple[Tensor, Tensor]:
    """Squares of x (kv_heads, tokens, head_dim) summed over tokens, and over channels and each bucket of tokens."""
    squares = x.square()
    return squares.sum(-2).cpu(), buckets.sums(squares.sum(-1)).cpu()


def _weighed(attention: Tensor, x: Tensor) -> Tensor:
    """Squares of x (kv_heads, tokens, head_dim) summed over channels, and over tokens by an attention (query_heads,
    tokens): (query_heads,)."""
    return (attention.unflatten(0, (len(x), -1)) @ x.square().sum(-1, keepdim=True).cpu()).flatten()


def _ratio(error: Tensor, size: Tensor) -> Tensor:
    """Root of the ratio of two sums of squares, 0 where there is nothing."""
    return torch.where(size > 0, error / size.clamp_min(1e-30), 0.0).sqrt()


def attention_outputs(
    queries: Tensor, keys: Tensor, values: Tensor, how: Scoring, seen: Tensor, read: Tensor | None = None
) -> Tensor:
    """Attention outputs of queries (query_heads, n, head_dim), of which each sees the first ``seen`` (n,) keys, and of
    these reads those in ``read`` (kv_heads, n, tokens), where given. Scores are what the layer makes of them.

    keys, values (kv_heads, tokens, head_dim) -> (query_heads, n, head_dim of the values).
    """
    return _outputs(attention_weights(queries, keys, how, seen, read), values)


def _outputs(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.flatten(1, 2) @ values).reshape(-1, weights.shape[2], values.shape[-1])


def attention_weights(queries: Tensor, keys: Tensor, how: Scoring, seen: Tensor, read: Tensor | None = None) -> Tensor:
    """What ``attention_outputs`` weighs values by: (kv_heads, groups, n, tokens)."""
    n, dim = queries.shape[1:]
    q = (queries * how.scaling).reshape(keys.shape[0], -1, dim)  # (kv_heads, groups * n, head_dim)
    scores = how.capped_((q @ keys.mT).unflatten(1, (-1, n)))
    first, device = int(seen.min()), keys.device
    unseen = torch.arange(first, keys.shape[1], device=device) >= seen.to(device)[:, None]
    scores[..., first:].masked_fill_(unseen, float("-inf"))
    if read is not None:
        scores.masked_fill_(~read[:, None], float("-inf"))
    if (behind := how.behind(seen.to(device), keys.shape[1])) is not None:
        scores.masked_fill_(behind, float("-inf"))
    return how.softmax(scores)


def output_bound(queries: Tensor, key_error: Tensor, values: Tensor, value_error: Tensor, scaling: float) -> Tensor:
    """What ||attention(q, K, V) - attention(q, K + dK, V + dV)||_2 cannot exceed, per query head (SQuat, Theorem 1).

    queries (query_heads, head_dim); key_error dK, values V + dV and value_error dV (kv_heads, tokens, head_dim). It is
    ||V + dV||_F / 2 * scaling * sum_i |q dk_i| + sum_i ||dv_i||_2, the theorem's scaling being 1/sqrt(d), and holds
    where all keys are read. As printed, the theorem has sum_i ||dv_i|| in place of the norm, which would promise no
    output error at all for exact values; the proof gives the norm.
    """
    q = queries.unflatten(0, (len(values), -1))  # (kv_heads, groups, head_dim)
    shift = (q @ key_error.mT).abs().sum(-1) * scaling
    by_keys = values.flatten(1).norm(dim=-1)[:, None] / 2 * shift
    return (by_keys + value_error.norm(dim=-1).sum(-1)[:, None]).flatten()


def score_error(queries: Tensor, key_error: Tensor, scaling: float, first: int) -> Tensor:
    """Root mean square of the scaled q·Δk over causal pairs, centred per row: what the keys' errors do to the scores,
    less the row's mean, which softmax does not see.

    queries (query_heads, n, head_dim) after RoPE at positions ``first``, first + 1, ...; key_error Δk (kv_heads,
    tokens, head_dim) from position 0 on -> a scalar, in nats.
    """
    n, tokens = queries.shape[1], key_error.shape[1]
    positions = torch.arange(first, first + n)
    seen = (torch.arange(tokens)[None] <= positions[:, None]).to(key_error.device)  # (n, tokens)
    counts = seen.sum(-1, keepdim=True)
    grouped = queries.unflatten(0, (len(key_error), -1))  # (kv_heads, groups, n, head_dim)
    delta = grouped @ key_error.unsqueeze(1).transpose(-1, -2) * scaling
    delta = delta * seen
    delta = (delta - delta.sum(-1, keepdim=True) / counts) * seen
    return (delta.square().sum() / (counts.sum() * len(queries))).sqrt()
