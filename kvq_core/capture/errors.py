"""Errors of the caches themselves: a forced row's keys and values against the reference's at the end of a run."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.capture.attention import Buckets
from kvq_core.engine.rows import Rows

TOP = 5  # query directions of `in_subspace_error`, the same for every lane
KINDS = ("key", "value")


@dataclass(frozen=True)
class Truth:
    """The reference at the end of a run, which every lane is measured against.

    ``layers_of``: model layers of each device group; directions (layers, kv_heads, head_dim, head_dim) of the prompt's
    queries; ``last`` (layers, query_heads, head_dim) the newest query after RoPE; queries
    (layers, query_heads, n, head_dim), each of which sees the first ``seen`` (n,) keys. Computed from the working copy:
    ``energy`` (layers, kv_heads, head_dim) squared size of each channel over all tokens, ``depth``
    (layers, kv_heads, buckets) of each bucket of tokens, outputs (layers, query_heads, n, head_dim).
    """

    layers_of: list[list[int]]
    directions: Tensor
    last: Tensor
    queries: Tensor
    seen: Tensor
    buckets: Buckets
    energy: dict[str, Tensor]
    depth: dict[str, Tensor]
    outputs: Tensor

    @classmethod
    def of(
        cls, rows: Rows, layers_of: list[list[int]], directions: Tensor, last: Tensor, queries: Tensor, seen: Tensor,
        buckets: Buckets,
    ) -> "Truth":  # fmt: skip
        count, heads, dim = directions.shape[:3]
        energy = {kind: torch.zeros(count, heads, dim) for kind in KINDS}
        depth = {kind: torch.zeros(count, heads, buckets.count) for kind in KINDS}
        outputs = torch.zeros(queries.shape)
        for g, layers in enumerate(layers_of):
            for i, layer in enumerate(layers):
                held = {kind: rows.working(0, g, kind, i) for kind in KINDS}
                for kind, x in held.items():
                    energy[kind][layer], depth[kind][layer] = _squares(x, buckets)
                own = queries[layer].to(held["key"].device)
                outputs[layer] = attended(own, held["key"], held["value"], seen).cpu()
        return cls(layers_of, directions, last, queries, seen, buckets, energy, depth, outputs)


@dataclass
class CacheErrors:
    """Of one lane. ||d|| is a Frobenius norm over tokens and channels; keys are compared after RoPE.

    key, value (layers, kv_heads) relative; channel: squared error of each channel, energy: squared key error along
    each direction of the prompt's queries, strongest first, both (layers, kv_heads, head_dim); depth relative
    (layers, kv_heads, buckets); output, bound (layers, query_heads) as output_error says, for the reference's newest
    query; output_relative (layers, query_heads) ||dO||_F / ||O||_F over several of its queries; the rest are means over
    layers of errors relative to the layer. Outputs are over the keys the lane reads; ``bound`` is None for a lane that
    leaves keys out, for the theorem knows of no such lane.
    """

    key: Tensor
    value: Tensor
    channel: dict[str, Tensor]
    depth: dict[str, Tensor]
    energy: Tensor
    output: Tensor
    bound: Tensor | None
    output_relative: Tensor
    key_rmse: float
    value_rmse: float
    in_subspace_error: float


def cache_errors(rows: Rows, row: int, truth: Truth) -> CacheErrors:
    """Compare a forced row's working copy with the reference's."""
    channel = {kind: torch.zeros_like(truth.energy[kind]) for kind in KINDS}
    depth = {kind: torch.zeros_like(truth.depth[kind]) for kind in KINDS}
    energy = torch.zeros_like(truth.energy["key"])
    output, bound = torch.zeros(truth.last.shape[:2]), torch.zeros(truth.last.shape[:2])
    missed, selects = torch.zeros_like(truth.outputs), False
    for g, layers in enumerate(truth.layers_of):
        for i, layer in enumerate(layers):  # a layer at a time: small intermediates are several times faster on a CPU
            true, read = ({kind: rows.working(r, g, kind, i) for kind in KINDS} for r in (0, row))
            delta = {kind: read[kind] - true[kind] for kind in KINDS}
            for kind in KINDS:
                channel[kind][layer], depth[kind][layer] = _squares(delta[kind], truth.buckets)
            device = delta["key"].device
            energy[layer] = (delta["key"] @ truth.directions[layer].to(device)).square().sum(-2).cpu()
            last = truth.last[layer].to(device)
            newest = rows.read_by(row, layer, last[:, None], torch.tensor([rows.tokens]))
            selects |= newest is not None
            found = output_error(last, true["key"], true["value"], delta["key"], delta["value"], newest)
            output[layer], bound[layer] = (t.cpu() for t in found)
            own = truth.queries[layer].to(device)
            chosen = rows.read_by(row, layer, own, truth.seen)
            missed[layer] = attended(own, read["key"], read["value"], truth.seen, chosen).cpu() - truth.outputs[layer]

    def whole(part: Tensor, kind: str) -> float:
        return (part.sum((-1, -2)) / truth.energy[kind].sum((-1, -2))).sqrt().mean().item()

    relative = {kind: _ratio(channel[kind].sum(-1), truth.energy[kind].sum(-1)) for kind in KINDS}
    return CacheErrors(
        key=relative["key"], value=relative["value"], channel=channel,
        depth={kind: _ratio(depth[kind], truth.depth[kind]) for kind in KINDS}, energy=energy,
        output=output, bound=None if selects else bound,
        output_relative=_ratio(missed.square().sum((-1, -2)), truth.outputs.square().sum((-1, -2))),
        key_rmse=whole(channel["key"], "key"), value_rmse=whole(channel["value"], "value"),
        in_subspace_error=whole(energy[..., :TOP], "key"),
    )  # fmt: skip


def _squares(x: Tensor, buckets: Buckets) -> tuple[Tensor, Tensor]:
    """Squares of x (kv_heads, tokens, head_dim) summed over tokens, and over channels and each bucket of tokens."""
    squares = x.square()
    return squares.sum(-2).cpu(), buckets.sums(squares.sum(-1)).cpu()


def _ratio(error: Tensor, size: Tensor) -> Tensor:
    """Root of the ratio of two sums of squares, 0 where there is nothing."""
    return torch.where(size > 0, error / size.clamp_min(1e-30), 0.0).sqrt()


def attended(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, read: Tensor | None = None) -> Tensor:
    """Attention outputs of queries (query_heads, n, head_dim), of which each sees the first ``seen`` (n,) keys, and of
    these reads those in ``read`` (kv_heads, n, tokens), where given.

    keys, values (kv_heads, tokens, head_dim) -> (query_heads, n, head_dim).
    """
    heads, n, dim = queries.shape
    q = queries.reshape(keys.shape[0], -1, dim)  # (kv_heads, groups * n, head_dim)
    scores = (q @ keys.transpose(-1, -2) * dim**-0.5).unflatten(1, (-1, n))
    unseen = torch.arange(keys.shape[1], device=keys.device) >= seen.to(keys.device)[:, None]
    if read is not None:
        unseen = unseen | ~read[:, None]
    weights = torch.softmax(scores.masked_fill_(unseen, float("-inf")), -1)
    return (weights.flatten(1, 2) @ values).reshape(heads, n, dim)


def output_error(
    queries: Tensor, keys: Tensor, values: Tensor, key_error: Tensor, value_error: Tensor, read: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """||attention(q, K, V) - attention(q, K + dK, V + dV)||_2 per query head, and its bound (SQuat, Theorem 1).

    queries (query_heads, head_dim); the rest (kv_heads, tokens, head_dim). ``read`` (kv_heads, 1, tokens): the keys the
    second attention reads, all where it is None; the bound is for that case alone. It is
    ||V + dV||_F / (2 sqrt(d)) * sum_i |q dk_i| + sum_i ||dv_i||_2. As printed, the theorem has sum_i ||dv_i|| in place
    of the norm, which would promise no output error at all for exact values; the proof gives the norm.
    """
    heads, dim = queries.shape
    q = queries.unflatten(0, (keys.shape[0], -1))  # (kv_heads, groups, head_dim)
    wrong = values + value_error
    scores, shift = q @ keys.transpose(-1, -2) * dim**-0.5, q @ key_error.transpose(-1, -2) * dim**-0.5
    exact = torch.softmax(scores, -1) @ values
    asked = scores + shift if read is None else (scores + shift).masked_fill(~read, float("-inf"))
    actual = (torch.softmax(asked, -1) @ wrong - exact).norm(dim=-1)
    by_keys = wrong.flatten(1).norm(dim=-1)[:, None] / 2 * shift.abs().sum(-1)
    return actual.flatten(), (by_keys + value_error.norm(dim=-1).sum(-1)[:, None]).flatten()
