"""Additive vector quantization with codebooks that commute with RoPE (CommVQ), in plain torch.

A group is ``P`` RoPE-tied channel pairs of one head. A level l of a stage is one 2-D vector a pair, u_l = (x_l, y_l);
a code is two levels (a, b), and its centre is u_a + J u_b with J(x, y) = (-y, x), the rotation by 90 degrees: pair j of
the centre is (x_a - y_b, y_a + x_b). J commutes with every 2-D rotation, hence so does the whole codebook.

Shapes: theta (..., stages, levels, P, 2) · group vectors (..., n, 2P) with all x before all y · codes
(..., n, stages, 2) uint8, the two levels of each stage. Leading dimensions are batch dimensions.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

_ELEMENTS = 1 << 19  # distances held at once: larger intermediates fall out of a CPU's cache


class Work(NamedTuple):
    """Of a KV head's scores, for each of its channel pairs; an addition that a multiplication brings is counted there.
    ``moved``: numbers that are read and written again before there is a score."""

    additions: int
    multiplications: int
    moved: int


def split_pairs(x: Tensor, pairs: int) -> Tensor:
    """Heads (..., n, head_dim), channel i tied to i + head_dim / 2, as group vectors (..., groups, n, 2 * pairs)."""
    half = x.shape[-1] // 2
    # (..., n, 2, groups, pairs) -> (..., groups, n, 2, pairs)
    return x.unflatten(-1, (2, half // pairs, pairs)).movedim(-2, -4).flatten(-2)


def join_pairs(z: Tensor) -> Tensor:
    """Inverse of :func:`split_pairs`: (..., groups, n, 2 * pairs) -> (..., n, head_dim)."""
    return z.unflatten(-1, (2, -1)).movedim(-4, -2).flatten(-3)


def code_vectors(theta: Tensor) -> Tensor:
    """The vectors a code adds up, u_l and J u_l: theta (..., levels, P, 2) -> (..., 2, levels, 2P)."""
    x, y = theta.unbind(-1)
    return torch.stack([torch.cat([x, y], -1), torch.cat([-y, x], -1)], -3)


def half_norms(vectors: Tensor) -> Tensor:
    """|u_a + J u_b|^2 / 2 of every centre: code vectors (..., 2, levels, 2P) -> (..., levels, levels)."""
    first, second = vectors.unbind(-3)
    own = first.square().sum(-1) / 2  # J keeps lengths, so |J u_b| = |u_b|
    return own[..., :, None] + own[..., None, :] + first @ second.transpose(-1, -2)


def nearest_codes(z: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of one stage for z (batch, n, 2P), code vectors (batch, 2, levels, 2P).

    |z - u_a - J u_b|^2 / 2 = |z|^2 / 2 - z.u_a - z.J u_b + |u_a + J u_b|^2 / 2: 2 * levels products a token instead of
    levels^2, and no table of centres. Returns codes (batch, n, 2) uint8 and |z - centre|^2 (batch, n).
    """
    levels = vectors.shape[-2]
    dots = z @ vectors.flatten(-3, -2).transpose(-1, -2)  # (batch, n, 2 * levels)
    table = half_norms(vectors)[:, None]
    best, index = [], []
    step = max(1, _ELEMENTS // (z.shape[0] * levels * levels))
    for start in range(0, z.shape[1], step):
        part = dots[:, start : start + step]
        scores = (table - part[..., :levels, None]).sub_(part[..., None, levels:]).flatten(-2)
        value, at = scores.min(-1)
        best.append(value)
        index.append(at)
    at = torch.cat(index, -1)
    codes = torch.stack([at // levels, at % levels], -1).to(torch.uint8)
    return codes, (2 * torch.cat(best, -1) + z.square().sum(-1)).clamp_min_(0)


def stage_centres(codes: Tensor, vectors: Tensor) -> Tensor:
    """Centres of one stage: codes (batch, n, 2), code vectors (batch, 2, levels, 2P) -> (batch, n, 2P)."""
    batch = torch.arange(codes.shape[0], device=codes.device)[:, None]
    at = codes.long()
    return vectors[batch, 0, at[..., 0]].add_(vectors[batch, 1, at[..., 1]])


def encode_pairs(z: Tensor, theta: Tensor) -> Tensor:
    """Greedy residual coding: z (..., n, 2P), theta (..., stages, levels, P, 2) -> codes (..., n, stages, 2) uint8."""
    lead, rest = z.shape[:-2], z.flatten(0, -3).clone()
    vectors = code_vectors(theta.to(z.dtype)).flatten(0, -5)  # (batch, stages, 2, levels, 2P)
    stages = []
    for stage in vectors.unbind(1):
        codes, _ = nearest_codes(rest, stage)
        rest -= stage_centres(codes, stage)
        stages.append(codes)
    return torch.stack(stages, -2).unflatten(0, lead)


def decode_pairs(codes: Tensor, theta: Tensor) -> Tensor:
    """Sum of the stages' centres: codes (..., n, stages, 2), theta as above -> float32 (..., n, 2P)."""
    return _sum_rows(code_vectors(theta.float()), codes)


def score_tables(query: Tensor, theta: Tensor) -> Tensor:
    """What the scores of one query need of the codebook, whatever the number of keys (Eq. 19).

    query (..., 2P) of a group, rotated to its own position; theta (..., stages, levels, P, 2). With P = q_x x + q_y y
    and M = q_y x - q_x y of every pair and level, the rows [P | M] of a first and [M | -P] of a second level:
    (..., stages, 2, levels, 2P).
    """
    qx, qy = (part[..., None, None, :] for part in query.chunk(2, -1))
    x, y = theta.to(query.dtype).unbind(-1)
    p, m = qx * x + qy * y, qy * x - qx * y
    return torch.stack([torch.cat([p, m], -1), torch.cat([m, -p], -1)], -3)


def commuted_scores(tables: Tensor, codes: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """q . RoPE(key) (..., n) without decoding a key: tables of a query, codes (..., n, stages, 2), cos and sin (n, P).

    Because centres commute with the rotation R_i of key i, q R_i (u_a + J u_b) = sum over pairs of
    cos_i (P[a] + M[b]) + sin_i (M[a] - P[b]). Pairs are rotated by +theta, as rotate-half models do.
    """
    return (_sum_rows(tables, codes) * torch.cat([cos, sin], -1)).sum(-1)


def scores_work(queries: int, tokens: int, stages: int, levels: int, commuted: bool) -> Work:
    """What the scores of a KV head's queries take: from its keys, each summed up and turned once for all of them, or
    ``commuted``, from tables that every query has for itself.

    2R rows of two numbers a pair are added either way. To turn a key takes 4 products and a score 2; a table has R * L
    entries of 4, made of two numbers of the codebook and two numbers long, and a sum over its rows is a score after 2.
    """
    sums, entries = 4 * stages * tokens, 4 * stages * levels
    if commuted:
        return Work(queries * sums, queries * (entries + 2 * tokens), queries * entries)
    return Work(sums, (4 + 2 * queries) * tokens, 0)


def _sum_rows(rows: Tensor, codes: Tensor) -> Tensor:
    """Chosen rows added: rows (..., stages, 2, levels, width), codes (..., n, stages, 2) -> (..., n, width)."""
    *lead, stages, _, levels, width = rows.shape
    batch = prod(lead)
    first = torch.arange(batch * stages * 2, device=codes.device).view(batch, 1, stages, 2) * levels
    index = (codes.reshape(batch, -1, stages, 2) + first).flatten(2)  # (batch, n, 2 * stages) rows of all tables
    out = torch.nn.functional.embedding_bag(index.flatten(0, 1), rows.reshape(-1, width), mode="sum")
    return out.view(*codes.shape[:-2], width)
