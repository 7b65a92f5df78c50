"""Spectra of the prompt's keys and values, and the subspace its queries span."""

from collections.abc import Iterable

import torch
from torch import Tensor

from kvq_core.engine.prefill import LayerGroup
from kvq_core.models.rope import Rope

RANKS = [1, 2, 3, 5, 8, 12, 16]  # of the subspaces whose principal angles are kept


def singular_values(layers: Iterable[Tensor]) -> Tensor:
    """Singular values of each x (..., n, d), largest first, as roots of the eigenvalues of xᵀx, stacked: float32."""
    grams = torch.stack([x.transpose(-1, -2) @ x for x in (layer.double() for layer in layers)])
    return eigenvalues(grams).sqrt().float().cpu()


def spectra(group: LayerGroup, rope: Rope) -> dict[str, Tensor]:
    """Singular values and covariance eigenvalues of a group's prompt keys, before and after RoPE, and of its values.

    All less their mean over the prompt, as methods that centre encode them. For each of key_post, key_pre and value:
    ``centred/{name}`` (layers, kv_heads, head_dim) and, heads of a layer side by side, ``centred/{name}_concat``
    (layers, kv_heads * head_dim); ``mean/{name}`` (layers, kv_heads), the norm of the mean times the root of the
    tokens; ``gaussian/{name}`` (layers, kv_heads, head_dim), eigenvalues of the covariance. All largest first.
    """
    found = {}
    pre = (before_rope(keys, rope.on([layer])) for layer, keys in zip(group.layers, group.keys, strict=True))
    for name, layers in (("key_post", group.keys), ("key_pre", pre), ("value", group.values)):
        heads, concat, mean = (torch.stack(parts) for parts in zip(*map(_grams, layers), strict=True))
        squares = eigenvalues(heads)
        found[f"centred/{name}"] = squares.sqrt()
        found[f"centred/{name}_concat"] = eigenvalues(concat).sqrt()
        found[f"mean/{name}"] = mean
        found[f"gaussian/{name}"] = squares / group.keys.shape[-2]
    return {name: values.float().cpu() for name, values in found.items()}


def _grams(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """XᵀX of x (kv_heads, tokens, head_dim) less its mean: a head's each, and that of the heads side by side; and the
    norm of each head's mean times the root of the tokens.

    Formed in float64: squaring squares the condition number.
    """
    heads, tokens, dim = x.shape
    side = x.transpose(0, 1).flatten(1).double()  # (tokens, kv_heads * head_dim)
    mean = side.mean(0)
    side = side - mean
    gram = side.T @ side
    own = gram.view(heads, dim, heads, dim).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    return own, gram, tokens**0.5 * mean.view(heads, dim).norm(dim=-1)


def eigenvalues(grams: Tensor) -> Tensor:
    """Of symmetric matrices (..., d, d) without negative ones, largest first."""
    return torch.linalg.eigvalsh(grams).clamp_min(0).flip(-1)


def before_rope(keys: Tensor, rope: Rope) -> Tensor:
    """Keys of a layer before RoPE, from those after it (kv_heads, tokens, head_dim); zeros where its rotation is not
    known."""
    return rope.unrotate(keys[None], 0)[0] if rope.known else torch.zeros_like(keys)


def query_directions(gram: Tensor) -> Tensor:
    """Right singular vectors of queries (or keys) from their Gram matrices (layers, kv_heads, d, d), strongest first.

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


def principal_angles(left: Tensor, right: Tensor, ranks: list[int]) -> Tensor:
    """Angles in degrees between the spans of the first r columns of two bases, smallest first, for each r of ``ranks``.

    left, right (layers, kv_heads, d, d) orthonormal -> (layers, kv_heads, ranks, max rank); there is no angle beyond
    the r-th, and 90 stands there. Their cosines are the singular values of the r x r block of leftᵀright.
    """
    most = max(ranks)
    cosines = left[..., :most].double().transpose(-1, -2) @ right[..., :most].double()
    found = torch.full((*left.shape[:2], len(ranks), most), 90.0)
    for i, rank in enumerate(ranks):
        angles = torch.linalg.svdvals(cosines[..., :rank, :rank]).clamp(0, 1).arccos().rad2deg()
        found[..., i, :rank] = angles.cpu()
    return found


def thin(x: Tensor, most: int) -> Tensor:
    """At most ``most`` of the rows (second-last dimension) of x, evenly spaced, ends included."""
    return x if x.shape[-2] <= most else x[..., evenly_spaced(x.shape[-2], most).to(x.device), :]


def evenly_spaced(count: int, most: int) -> Tensor:
    """At most ``most`` of 0 .. count - 1, evenly spaced, ends included."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()
