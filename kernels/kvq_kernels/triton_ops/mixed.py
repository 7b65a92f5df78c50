"""QAQ: tokens of different widths with a few elements kept apart, read where they lie."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.products import product
from kvq_kernels.triton_ops.tiles import code_at, locate


@triton.jit
def mixed_tile(
    codes, starts, sizes, slots, widths, lows, extents, outliers, positions, matrix, first, tokens, rows, units, heads,
    dim, BT: tl.constexpr, DP: tl.constexpr, OUTLIERS: tl.constexpr, TAG: tl.constexpr,
):  # fmt: skip
    """Tokens first .. first + BT of one matrix as float32 (BT, DP): middles of cells, outliers in their places.

    A matrix is one of the ``heads`` of a row; heads // units of them share a unit, side by side.
    """
    token, channel = first + tl.arange(0, BT), tl.arange(0, DP)
    inside = token < tokens
    row, head = matrix // heads, matrix % heads
    shared = heads // units
    at = (token.to(tl.int64) * rows + row) * units + head // shared
    start = (head % shared) * dim  # of this head within its unit
    width = code_at(widths, at, TAG, inside)
    place = tl.load(starts + width, mask=inside, other=0)
    place += tl.load(slots + at, mask=inside, other=0) * tl.load(sizes + width, mask=inside, other=0)
    read = (inside & (width > 0))[:, None] & (channel < dim)[None, :]
    code = code_at(codes + place[:, None], (start + channel)[None, :], width[:, None], read)
    low = tl.load(lows + at, mask=inside, other=0.0).to(tl.float32)
    cell = tl.load(extents + at, mask=inside, other=0.0).to(tl.float32) * tl.exp2(-width.to(tl.float32))
    values = (code.to(tl.float32) + 0.5) * cell[:, None] + low[:, None]
    for i in tl.static_range(OUTLIERS):
        where = (tl.load(positions + at * OUTLIERS + i, mask=inside, other=0).to(tl.int32) & 0xFFFF) - start
        value = tl.load(outliers + at * OUTLIERS + i, mask=inside, other=0.0).to(tl.float32)
        values = tl.where(channel[None, :] == where[:, None], value[:, None], values)
    return tl.where(inside[:, None] & (channel < dim)[None, :], values, 0.0)


@triton.jit
def mixed_scores_kernel(
    q, codes, starts, sizes, slots, widths, lows, extents, outliers, positions, out, queries, tokens, rows, units,
    heads, dim, M: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, OUTLIERS: tl.constexpr, TAG: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """q (matrices, queries, dim) times mixed keys: out (matrices, queries, tokens). Grid (matrices * token tiles,)."""
    matrix, first = locate(tl.program_id(0), tokens, BT)
    query, channel, token = tl.arange(0, M), tl.arange(0, DP), first + tl.arange(0, BT)
    mask = (query < queries)[:, None] & (channel < dim)[None, :]
    line = (matrix.to(tl.int64) * queries + query)[:, None]
    vector = tl.load(q + line * dim + channel[None, :], mask=mask, other=0.0)
    keys = mixed_tile(
        codes, starts, sizes, slots, widths, lows, extents, outliers, positions, matrix, first, tokens, rows, units,
        heads, dim, BT, DP, OUTLIERS, TAG,
    )  # fmt: skip
    scores = product(vector.to(tl.float32), tl.trans(keys), DTYPE)
    tl.store(out + line * tokens + token[None, :], scores, mask=(query < queries)[:, None] & (token < tokens)[None, :])


@triton.jit
def mixed_values_kernel(
    p, codes, starts, sizes, slots, widths, lows, extents, outliers, positions, out, queries, tokens, rows, units,
    heads, dim, chunk, matrices, M: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, OUTLIERS: tl.constexpr,
    TAG: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """p (matrices, queries, tokens) times mixed values: partial sums (splits, matrices, queries, dim).

    Grid (matrices, splits)."""
    matrix, split = tl.program_id(0), tl.program_id(1)
    query, channel = tl.arange(0, M), tl.arange(0, DP)
    line = matrix.to(tl.int64) * queries + query
    sums = tl.zeros((M, DP), tl.float32)
    for first in tl.range(split * chunk, tl.minimum(split * chunk + chunk, tokens), BT):
        token = first + tl.arange(0, BT)
        mask = (query < queries)[:, None] & (token < tokens)[None, :]
        weights = tl.load(p + line[:, None] * tokens + token[None, :], mask=mask, other=0.0)
        values = mixed_tile(
            codes, starts, sizes, slots, widths, lows, extents, outliers, positions, matrix, first, tokens, rows, units,
            heads, dim, BT, DP, OUTLIERS, TAG,
        )  # fmt: skip
        sums += product(weights.to(tl.float32), values, DTYPE)
    at = out + (split.to(tl.int64) * matrices * queries + line)[:, None] * dim + channel[None, :]
    tl.store(at, sums, mask=(query < queries)[:, None] & (channel < dim)[None, :])
