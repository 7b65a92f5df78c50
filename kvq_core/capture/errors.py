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
    of the prompt's queries, strongest first; the rest are means over layers of errors relative to the layer.
    """

    key: Tensor
    value: Tensor
    energy: Tensor
    key_rmse: float
    value_rmse: float
    in_subspace_error: float


def cache_errors(rows: Rows, row: int, layers_of: list[list[int]], directions: Tensor) -> CacheErrors:
    """Compare a forced row's working copy with the reference's.

    ``layers_of``: model layers of each device group; directions (layers, kv_heads, head_dim, head_dim).
    """
    count, heads, dim = directions.shape[:3]
    size = {kind: torch.zeros(count, heads) for kind in ("key", "value")}
    error = {kind: torch.zeros(count, heads) for kind in ("key", "value")}
    energy = torch.zeros(count, heads, dim)
    for g, layers in enumerate(layers_of):
        for i, layer in enumerate(layers):  # a layer at a time: small intermediates are several times faster on a CPU
            for kind in ("key", "value"):
                true = rows.working(0, g, kind, i)
                delta = rows.working(row, g, kind, i) - true
                size[kind][layer] = true.square().sum((-1, -2)).cpu()
                error[kind][layer] = delta.square().sum((-1, -2)).cpu()
                if kind == "key":
                    energy[layer] = (delta @ directions[layer].to(delta.device)).square().sum(-2).cpu()

    def whole(part: Tensor, kind: str) -> float:
        return (part.sum(-1) / size[kind].sum(-1)).sqrt().mean().item()

    relative = {kind: (error[kind] / size[kind]).sqrt() for kind in size}
    return CacheErrors(
        relative["key"], relative["value"], energy,
        key_rmse=whole(error["key"], "key"), value_rmse=whole(error["value"], "value"),
        in_subspace_error=whole(energy[..., :TOP].sum(-1), "key"),
    )  # fmt: skip
