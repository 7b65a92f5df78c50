"""SVDq: keys rebuilt from latent channels of mixed widths, rotated and multiplied with the queries in one pass."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.gemv import product
from kvq_kernels.triton_ops.tiles import code_at


@triton.jit
def latent_scores_kernel(
    q, codes, offsets, widths, scales, zeros, basis, mean, cos, sin, out, queries, tokens, kept, units, channels,
    stream, HALF: tl.constexpr, M: tl.constexpr, BT: tl.constexpr, LATENT: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """q (kv_heads, queries, 2 HALF) after RoPE; out (kv_heads, queries, tokens) float32. Grid (kv_heads, token tiles).

    Latent channel c is a bit stream of widths[c] bits a token that begins at byte offsets[c] of its unit's stream; a
    unit is a head, or all heads side by side. Rebuilt keys live in registers as two halves, the ones RoPE mixes.
    """
    head = tl.program_id(0)
    unit = (head % units).to(tl.int64)
    row = tl.where(units == 1, head * 2 * HALF, 0)  # of the basis, where this head's channels begin
    token = tl.program_id(1) * BT + tl.arange(0, BT)
    token_mask = token < tokens
    channel = row + tl.arange(0, HALF)
    lower = tl.load(mean + unit * channels + channel).to(tl.float32)
    upper = tl.load(mean + unit * channels + channel + HALF).to(tl.float32)
    first = tl.zeros((HALF, BT), tl.float32) + lower[:, None]
    second = tl.zeros((HALF, BT), tl.float32) + upper[:, None]
    for start in tl.range(0, kept, LATENT):
        latent = start + tl.arange(0, LATENT)
        inside = latent < kept
        width = tl.load(widths + latent, mask=inside, other=1)
        offset = tl.load(offsets + latent, mask=inside, other=0)
        scale = tl.load(scales + unit * kept + latent, mask=inside, other=0.0).to(tl.float32)
        zero = tl.load(zeros + unit * kept + latent, mask=inside, other=0.0).to(tl.float32)
        base = codes + unit * stream + offset.to(tl.int64)[:, None]
        code = code_at(base, token[None, :], width[:, None], inside[:, None] & token_mask[None, :])
        values = code.to(tl.float32) * scale[:, None] + zero[:, None]  # (LATENT, BT)
        at = basis + (unit * channels + channel)[:, None] * kept + latent[None, :]
        first += product(tl.load(at, mask=inside[None, :], other=0.0), values, DTYPE)
        second += product(tl.load(at + HALF * kept, mask=inside[None, :], other=0.0), values, DTYPE)
    half = tl.arange(0, HALF)
    table = token.to(tl.int64)[None, :] * (2 * HALF) + half[:, None]
    c1, s1, c2, s2 = (
        tl.load(cos + table, mask=token_mask[None, :], other=0.0),
        tl.load(sin + table, mask=token_mask[None, :], other=0.0),
        tl.load(cos + table + HALF, mask=token_mask[None, :], other=0.0),
        tl.load(sin + table + HALF, mask=token_mask[None, :], other=0.0),
    )
    query = tl.arange(0, M)
    base = q + (head.to(tl.int64) * queries + query)[:, None] * (2 * HALF) + half[None, :]
    asked = (query < queries)[:, None]
    one = tl.load(base, mask=asked, other=0.0).to(tl.float32)
    two = tl.load(base + HALF, mask=asked, other=0.0).to(tl.float32)
    scores = product(one, first * c1 - second * s1, DTYPE) + product(two, second * c2 + first * s2, DTYPE)
    at = out + (head.to(tl.int64) * queries + query)[:, None] * tokens + token[None, :]
    tl.store(at, scores, mask=asked & token_mask[None, :])
