"""Products of vectors with packed keys and values, dequantized on the way.

Grouped along the dimension a product reduces over ("inner"), scale and zero-point meet the sum over a group instead of
every element: sum_c q_c (s code_c + z) = s (q . code) + z sum_c q_c (InnerQ, Section 4.4). Grouped along the other
dimension ("outer"), every element is scaled by itself before the product.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.products import product, rotated_product
from kvq_kernels.triton_ops.tiles import locate, read_grid, read_tile, signed_codes


@triton.jit
def packed_scores_kernel(
    q, cos, sin, codes, scales, words, out, queries, tokens, dim, code_stride, scale_stride, word_stride, capacity,
    M: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
    HALF_ZERO: tl.constexpr, INNER: tl.constexpr, TURN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """q (matrices, queries, dim) times packed keys (matrices, tokens, dim): out (matrices, queries, tokens) float32.

    Grid (matrices * token tiles,). TURN rotates keys stored before RoPE; they are grouped along tokens then.
    """
    matrix, first = locate(tl.program_id(0), tokens, BT)
    matrix = matrix.to(tl.int64)
    query = tl.arange(0, M)
    token = first + tl.arange(0, BT)
    base = q + (matrix * queries + query)[:, None] * dim
    if INNER:
        rows, row_mask = matrix * capacity + token, token < tokens
        sums = tl.zeros((M, BT), tl.float32)
        PART: tl.constexpr = GROUP if GROUP < 32 else 32  # large groups in pieces, for which the registers suffice
        for part in tl.static_range(DP // PART):
            channel = part * PART + tl.arange(0, PART)
            mask = (query < queries)[:, None] & (channel < dim)[None, :]
            vector = tl.load(base + channel[None, :], mask=mask, other=0.0).to(tl.float32)
            scale, zero, symmetric = read_grid(
                scales, words, rows, row_mask, part * PART, dim, scale_stride, word_stride, BT, PART, GROUP, MODE,
                HALF_ZERO,
            )  # fmt: skip
            level = signed_codes(
                codes, words, symmetric, rows, row_mask, part * PART, dim, code_stride, word_stride, BT, PART, BITS,
                GROUP, MODE, DTYPE,
            )  # fmt: skip
            scale, zero = tl.reshape(scale, (1, BT)), tl.reshape(zero, (1, BT))
            sums += product(vector, tl.trans(level), DTYPE) * scale + tl.sum(vector, 1)[:, None] * zero
    elif TURN:
        HP: tl.constexpr = DP // 2
        half, channel = dim // 2, tl.arange(0, HP)
        mask = (query < queries)[:, None] & (channel < half)[None, :]
        one = tl.load(base + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        two = tl.load(base + half + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        lower = read_tile(
            codes, scales, words, matrix * capacity + channel, channel < half, first, tokens, code_stride, scale_stride,
            word_stride, HP, BT, BITS, GROUP, MODE, HALF_ZERO, tl.float32,
        )  # fmt: skip
        upper = read_tile(
            codes, scales, words, matrix * capacity + half + channel, channel < half, first, tokens, code_stride,
            scale_stride, word_stride, HP, BT, BITS, GROUP, MODE, HALF_ZERO, tl.float32,
        )  # fmt: skip
        sums = rotated_product(one, two, lower, upper, cos, sin, token, token < tokens, half, HP, DTYPE)
    else:
        channel = tl.arange(0, DP)
        mask = (query < queries)[:, None] & (channel < dim)[None, :]
        vector = tl.load(base + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        keys = read_tile(
            codes, scales, words, matrix * capacity + channel, channel < dim, first, tokens, code_stride, scale_stride,
            word_stride, DP, BT, BITS, GROUP, MODE, HALF_ZERO, DTYPE,
        )  # fmt: skip
        sums = product(vector, keys, DTYPE)
    at = out + (matrix * queries + query)[:, None] * tokens + token[None, :]
    tl.store(at, sums, mask=(query < queries)[:, None] & (token < tokens)[None, :])


@triton.jit
def packed_values_kernel(
    p, codes, scales, words, out, queries, tokens, dim, chunk, matrices, code_stride, scale_stride, word_stride,
    capacity, M: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    MODE: tl.constexpr, HALF_ZERO: tl.constexpr, INNER: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """p (matrices, queries, tokens) times packed values: partial sums (splits, matrices, queries, dim) float32.

    Grid (matrices, splits); a split is ``chunk`` tokens, a multiple of the tile. INNER reads a group of tokens a turn,
    or a piece of one.
    """
    matrix = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    query, channel = tl.arange(0, M), tl.arange(0, DP)
    start = split * chunk
    base = p + (matrix * queries + query)[:, None] * tokens
    sums = tl.zeros((M, DP), tl.float32)
    for first in tl.range(start, tl.minimum(start + chunk, tokens), BT):
        token = first + tl.arange(0, BT)
        mask = (query < queries)[:, None] & (token < tokens)[None, :]
        weights = tl.load(base + token[None, :], mask=mask, other=0.0).to(tl.float32)
        if INNER:
            rows, row_mask = matrix * capacity + channel, channel < dim
            scale, zero, symmetric = read_grid(
                scales, words, rows, row_mask, first, tokens, scale_stride, word_stride, DP, BT, GROUP, MODE, HALF_ZERO
            )
            level = signed_codes(
                codes, words, symmetric, rows, row_mask, first, tokens, code_stride, word_stride, DP, BT, BITS, GROUP,
                MODE, DTYPE,
            )  # fmt: skip
            scale, zero = tl.reshape(scale, (1, DP)), tl.reshape(zero, (1, DP))
            sums += product(weights, tl.trans(level), DTYPE) * scale + tl.sum(weights, 1)[:, None] * zero
        else:
            values = read_tile(
                codes, scales, words, matrix * capacity + token, token < tokens, 0, dim, code_stride, scale_stride,
                word_stride, BT, DP, BITS, GROUP, MODE, HALF_ZERO, DTYPE,
            )  # fmt: skip
            sums += product(weights, values, DTYPE)
    at = out + ((split.to(tl.int64) * matrices + matrix) * queries + query)[:, None] * dim + channel[None, :]
    tl.store(at, sums, mask=(query < queries)[:, None] & (channel < dim)[None, :])
