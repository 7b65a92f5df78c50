"""Errors of the caches themselves: a forced row's keys and values against the reference's at the end of a run."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.engine.rows import Rows

TOP = 5  # query directions of `in_subspace_error`, the same for every lane


@dataclass
class CacheErrors:
    """Of one lane. ||d|| is a Frobenius norm over tokens and channels; keys are compared after RoPE.

    key, value (layers, kv_heads) relative; energy (layers, kv_heads, head_dim) squared key error along each direction
    of the prompt's queries, strongest first; output, bound (layers, query_heads) as output_error says, for the
    reference's last query; the rest are means over layers of errors relative to the layer.
    """

    key: Tensor
    value: Tensor
    energy: Tensor
    output: Tensor
    bound: Tensor
    key_rmse: float
    value_rmse: float
    in_subspace_error: float


def cache_errors(rows: Rows, row: int, layers_of: list[list[int]], directions: Tensor, queries: Tensor) -> CacheErrors:
    """Compare a forced row's working copy with the reference's.

    ``layers_of``: model layers of each device group; directions (layers, kv_heads, head_dim, head_dim); queries
    (layers, query_heads, head_dim), the reference's at one step, after RoPE.
    """
    count, heads, dim = directions.shape[:3]
    size = {kind: torch.zeros(count, heads) for kind in ("key", "value")}
    error = {kind: torch.zeros(count, heads) for kind in ("key", "value")}
    energy = torch.zeros(count, heads, dim)
    output, bound = torch.zeros(queries.shape[:2]), torch.zeros(queries.shape[:2])
    for g, layers in enumerate(layers_of):
        for i, layer in enumerate(layers):  # a layer at a time: small intermediates are several times faster on a CPU
            true = {kind: rows.working(0, g, kind, i) for kind in size}
            delta = {kind: rows.working(row, g, kind, i) - true[kind] for kind in size}
            for kind in size:
                size[kind][layer] = true[kind].square().sum((-1, -2)).cpu()
                error[kind][layer] = delta[kind].square().sum((-1, -2)).cpu()
            device = delta["key"].device
            energy[layer] = (delta["key"] @ directions[layer].to(device)).square().sum(-2).cpu()
            found = output_error(queries[layer].to(device), true["key"], true["value"], delta["key"], delta["value"])
            output[layer], bound[layer] = (t.cpu() for t in found)

    def whole(part: Tensor, kind: str) -> float:
        return (part.sum(-1) / size[kind].sum(-1)).sqrt().mean().item()

    relative = {kind: (error[kind] / size[kind]).sqrt() for kind in size}
    return CacheErrors(
        relative["key"], relative["value"], energy, output, bound,
        key_rmse=whole(error["key"], "key"), value_rmse=whole(error["value"], "value"),
        in_subspace_error=whole(energy[..., :TOP].sum(-1), "key"),
    )  # fmt: skip


def output_error(
    queries: Tensor, keys: Tensor, values: Tensor, key_error: Tensor, value_error: Tensor
) -> tuple[Tensor, Tensor]:
    """||attention(q, K, V) - attention(q, K + dK, V + dV)||_2 per query head, and its bound (SQuat, Theorem 1).

    queries (query_heads, head_dim); the rest (kv_heads, tokens, head_dim). The bound is
    ||V + dV||_F / (2 sqrt(d)) * sum_i |q dk_i| + sum_i ||dv_i||_2. As printed, the theorem has sum_i ||dv_i|| in place
    of the norm, which would promise no output error at all for exact values; the proof gives the norm.
    """
    heads, dim = queries.shape
    q = queries.unflatten(0, (keys.shape[0], -1))  # (kv_heads, groups, head_dim)
    read = values + value_error
    scores, shift = q @ keys.transpose(-1, -2) * dim**-0.5, q @ key_error.transpose(-1, -2) * dim**-0.5
    exact = torch.softmax(scores, -1) @ values
    actual = (torch.softmax(scores + shift, -1) @ read - exact).norm(dim=-1)
    by_keys = read.flatten(1).norm(dim=-1)[:, None] / 2 * shift.abs().sum(-1)
    return actual.flatten(), (by_keys + value_error.norm(dim=-1).sum(-1)[:, None]).flatten()
