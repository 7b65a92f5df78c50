"""The rotations of OSCAR: from what attention reads to orthogonal matrices, and the file that its engine reads."""

from typing import Any

import torch
from torch import Tensor

from kvq_core.codecs.hadamard import Hadamard

RIDGE = 1e-6  # of the mean eigenvalue, where too few rows leave directions undecided


def fitted_rotation(covariance: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Eigenvectors of covariances (layers, d, d) float64 of so many ``rows``, times the Hadamard matrix, in the order
    of the authors' bit reversal (compute_kv_rotation.py, r_h_pbr), and the eigenvalues, ascending; both float32."""
    dim = covariance.shape[-1]
    if rows < dim:
        mean = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None]
        rising = torch.linspace(1, 2, dim, dtype=covariance.dtype, device=covariance.device)
        covariance = covariance + torch.diag_embed(RIDGE * mean * rising)
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    reversed_bits = torch.tensor([int(f"{i:0{dim.bit_length() - 1}b}"[::-1], 2) for i in range(dim)])
    order = torch.empty(dim, dtype=torch.long)
    order[reversed_bits] = torch.arange(dim - 1, -1, -1)  # the largest first
    mixed = vectors.float() @ Hadamard.of(dim, covariance.device).matrix
    return mixed[..., order.to(mixed.device)].contiguous(), values.float()


def covariances(keys: Tensor, values: Tensor, gram: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of what keys and values are to be rotated by, float64 (layers, d, d), means over a layer's KV heads.

    keys after RoPE and values (layers, kv_heads, tokens, d). ``gram`` (layers, kv_heads, d, d) float64, QᵀQ over the
    rows of the queries that read them (target qqt): keys' covariance is that of the queries, values' their own, each
    weighted by its key's k QᵀQ kᵀ over the mean of these, squared scores before the softmax. None (target ktk): of keys
    and of values as they are.
    """
    tokens = keys.shape[-2]
    if gram is None:
        own = (
            torch.stack([(x.double().mT @ x.double()).mean(0) for x in tensor]) / tokens for tensor in (keys, values)
        )
        of_keys, of_values = own
        return of_keys, of_values
    weighted = []
    for k, v, own_gram in zip(keys, values, gram, strict=True):
        k, v = k.double(), v.double()
        weights = ((k @ own_gram) * k).sum(-1)
        weights = weights / weights.mean(-1, keepdim=True).clamp_min(1e-12 / tokens)
        weighted.append((v.mT @ (v * weights[..., None])).mean(0) / tokens)
    return gram.mean(1), torch.stack(weighted)


def engine_file(rotation: Tensor, eigenvalues: Tensor, layers: tuple[int, ...], objective: str) -> dict[str, Any]:
    """Rotations (layers, d, d) of these layers of a model, with their eigenvalues (layers, d), as SGLang's
    load_oscar_rotations reads them with torch.load."""
    kept = zip(layers, rotation, eigenvalues, strict=True)
    by_layer = {layer: {"layer_id": layer, "rotation": r, "eigenvalues": values} for layer, r, values in kept}
    return {"format_version": 1, "objective": objective, "source_grouping": "layer", "layers": by_layer}
