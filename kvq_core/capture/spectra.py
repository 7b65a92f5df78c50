"""Spectra of the prompt's keys and the subspace its queries span."""

import torch
from torch import Tensor

from kvq_core.engine.prefill import LayerGroup
from kvq_core.rope import Rope


def singular_values(x: Tensor) -> Tensor:
    """Singular values of x (..., n, d), largest first, as the roots of the eigenvalues of xᵀx.

    (..., d) float32. The Gram matrix is formed in float64: squaring squares the condition number.
    """
    x = x.double()
    return torch.linalg.eigvalsh(x.transpose(-1, -2) @ x).clamp_min(0).sqrt().flip(-1).float()


def key_spectra(group: LayerGroup, rope: Rope) -> dict[str, Tensor]:
    """Singular values of a group's prompt keys: per KV head (layers, kv_heads, head_dim), and with the heads of a
    layer concatenated (layers, kv_heads * head_dim), before and after RoPE. Not centred."""
    found = {}
    for name, keys in (("post", group.keys), ("pre", rope.unrotate(group.keys, 0))):
        found[f"key_{name}"] = singular_values(keys)
        # (layers, kv_heads, tokens, head_dim) -> (layers, tokens, kv_heads * head_dim)
        found[f"key_{name}_concat"] = singular_values(keys.transpose(1, 2).flatten(2))
    return {name: values.cpu() for name, values in found.items()}


def by_kv_head(queries: Tensor, kv_heads: int) -> Tensor:
    """Queries (layers, query_heads, n, d) of the heads that share a KV head, stacked: (layers, kv_heads, groups * n, d)."""
    layers, heads, n, d = queries.shape
    return queries.reshape(layers, kv_heads, heads // kv_heads * n, d)


def query_directions(stacked: Tensor) -> Tensor:
    """Right singular vectors of stacked queries (layers, kv_heads, n, d), strongest first: (layers, kv_heads, d, d).

    Columns are directions. They are the eigenvectors of the Gram matrix, formed in float64.
    """
    q = stacked.double()
    return torch.linalg.eigh(q.transpose(-1, -2) @ q).eigenvectors.flip(-1).float()


def deviation(stacked: Tensor, directions: Tensor) -> Tensor:
    """Mean deviation of normalized queries from the top-r subspace, r = 0 .. d (SQuat, Definition 1).

    ||q - Proj(q)||_2 with ||q|| = 1 is sqrt(1 - sum of the first r squared coefficients). Queries
    (layers, kv_heads, n, d), directions (layers, kv_heads, d, d) -> (layers, kv_heads, d + 1), from 1 down to 0.
    """
    out = []
    for q, basis in zip(stacked, directions, strict=True):  # layer by layer: the coefficients are as large as the queries
        unit = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-20)
        left = 1 - ((unit @ basis) ** 2).cumsum(-1)
        tail = left.clamp_min(0).sqrt().mean(-2)
        out.append(torch.cat([torch.ones_like(tail[:, :1]), tail], -1))
    return torch.stack(out).cpu()
