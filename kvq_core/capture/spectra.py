"""Spectra of the prompt's keys and the subspace its queries span."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from kvq_core.engine.prefill import LayerGroup
from kvq_core.rope import Rope


def singular_values(layers: Iterable[Tensor]) -> Tensor:
    """Singular values of each x (..., n, d), largest first, as the roots of the eigenvalues of xᵀx, stacked: float32.

    The Gram matrix is formed in float64: squaring squares the condition number.
    """
    grams = torch.stack([x.transpose(-1, -2) @ x for x in (layer.double() for layer in layers)])
    return torch.linalg.eigvalsh(grams).clamp_min(0).sqrt().flip(-1).float().cpu()


def key_spectra(group: LayerGroup, rope: Rope) -> dict[str, Tensor]:
    """Singular values of a group's prompt keys: per KV head (layers, kv_heads, head_dim), and with the heads of a
    layer concatenated (layers, kv_heads * head_dim), before and after RoPE. Not centred."""
    found = {}
    for name, keys in (("post", group.keys), ("pre", _unrotated(group.keys, rope))):
        layers = list(keys)
        found[f"key_{name}"] = singular_values(layers)
        # (kv_heads, tokens, head_dim) -> (tokens, kv_heads * head_dim)
        found[f"key_{name}_concat"] = singular_values(k.transpose(0, 1).flatten(1) for k in layers)
    return found


def _unrotated(keys: Tensor, rope: Rope) -> Iterator[Tensor]:
    return (rope.unrotate(layer[None], 0)[0] for layer in keys)


def query_directions(gram: Tensor) -> Tensor:
    """Right singular vectors of queries from their Gram matrices (layers, kv_heads, d, d), strongest first.

    Columns are directions: (layers, kv_heads, d, d) float32.
    """
    return torch.linalg.eigh(gram).eigenvectors.flip(-1).float()


def deviations(queries: Iterable[Tensor], *subspaces: Tensor) -> list[Tensor]:
    """Mean deviation of normalized queries from the top-r subspace, r = 0 .. d (SQuat, Definition 1).

    ||q - Proj(q)||_2 with ||q|| = 1 is sqrt(1 - sum of the first r squared coefficients). ``queries`` gives a layer
    at a time (kv_heads, n, d); each subspace is (layers, kv_heads, d, d) as query_directions makes it, and gets its
    (layers, kv_heads, d + 1), from 1 down to 0.
    """
    found: list[list[Tensor]] = [[] for _ in subspaces]
    for layer, q in enumerate(queries):
        unit = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-20)
        for out, basis in zip(found, subspaces, strict=True):
            left = 1 - (unit @ basis[layer]).square_().cumsum_(-1)
            mean = left.clamp_min_(0).sqrt_().mean(-2)
            out.append(torch.cat([torch.ones_like(mean[:, :1]), mean], -1).cpu())
    return [torch.stack(out) for out in found]
