"""SVDq: keys rebuilt from latent channels of mixed widths, rotated and multiplied with the queries in one pass."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.products import product, rotated_product
from kvq_kernels.triton_ops.tiles import code_from, locate


@triton.jit
def latent_scores_kernel(
    q, codes, offsets, widths, scales, zeros, basis, mean, cos, sin, out, queries, tokens, kept, channels, heads,
    row_bytes, HALF: tl.constexpr, M: tl.constexpr, BT: tl.constexpr, LATENT: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """q (matrices, queries, 2 HALF) after RoPE; out (matrices, queries, tokens) float32. Grid
    (matrices * token tiles,).

    A matrix is a KV head of a row, a unit ``heads`` of them side by side. Latent channel c is a bit stream of widths[c]
    bits a token that begins at bit offsets[c] of its unit's stream. Rebuilt keys live in registers as two halves, the
    ones RoPE mixes.
    """
    matrix, first_token = locate(tl.program_id(0), tokens, BT)
    unit, head = (matrix // heads).to(tl.int64), matrix % heads
    matrix = matrix.to(tl.int64)
    token = first_token + tl.arange(0, BT)
    token_mask = token < tokens
    channel = head * (2 * HALF) + tl.arange(0, HALF)  # of the basis: this head's
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
        bit = offset[:, None] + token[None, :] * width[:, None]
        code = code_from(codes + unit * row_bytes, bit, width[:, None], inside[:, None] & token_mask[None, :])
        values = code.to(tl.float32) * scale[:, None] + zero[:, None]  # (LATENT, BT)
        at = basis + (unit * channels + channel)[:, None] * kept + latent[None, :]
        first += product(tl.load(at, mask=inside[None, :], other=0.0), values, DTYPE)
        second += product(tl.load(at + HALF * kept, mask=inside[None, :], other=0.0), values, DTYPE)
    query = tl.arange(0, M)
    base = q + (matrix * queries + query)[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    asked = (query < queries)[:, None]
    one = tl.load(base, mask=asked, other=0.0).to(tl.float32)
    two = tl.load(base + HALF, mask=asked, other=0.0).to(tl.float32)
    scores = rotated_product(one, two, first, second, cos, sin, token, token_mask, HALF, HALF, DTYPE)
    at = out + (matrix * queries + query)[:, None] * tokens + token[None, :]
    tl.store(at, scores, mask=asked & token_mask[None, :])
