"""CommVQ: scores through commuted tables, and values as sums of chosen binary digits."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.gemv import product
from kvq_kernels.triton_ops.tiles import as_float, code_at, read_codes


@triton.jit
def codebook_scores_kernel(
    tables, codes, prescale, cos, sin, out, queries, tokens, groups, stages, levels, pairs, stream, BT: tl.constexpr,
    WIDE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """tables (kv_heads, queries, groups, stages, 2, levels, 2 pairs) of each query; out (kv_heads, queries, tokens).

    Grid (kv_heads * queries, token tiles). The codes of a head are one bit stream of WIDTH bits a level, ordered
    (groups, tokens, stages, 2). cos, sin (tokens, groups * pairs).
    """
    line = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BT + tl.arange(0, BT)
    token_mask = token < tokens
    base = codes + (line // queries) * stream
    column = tl.arange(0, WIDE)
    wanted = token_mask[:, None] & (column < 2 * pairs)[None, :]
    scores = tl.zeros((BT,), tl.float32)
    for group in tl.range(0, groups):
        sums = tl.zeros((BT, WIDE), tl.float32)
        for stage in tl.range(0, stages):
            table = tables + (((line * groups + group) * stages + stage) * 2) * levels * (2 * pairs)
            for place in tl.static_range(2):  # first and second level of the code
                index = ((group * tokens.to(tl.int64) + token) * stages + stage) * 2 + place
                level = code_at(base, index, WIDTH, token_mask) + place * levels
                sums += tl.load(table + level[:, None] * (2 * pairs) + column[None, :], mask=wanted, other=0.0)
        pair = column % pairs
        at = token.to(tl.int64)[:, None] * (groups * pairs) + (group * pairs + pair)[None, :]
        turn = tl.load(cos + at, mask=wanted & (column < pairs)[None, :], other=0.0)
        turn += tl.load(sin + at, mask=wanted & (column >= pairs)[None, :], other=0.0)
        scores += tl.sum(sums * turn, 1)
    scale = tl.load(prescale + token, mask=token_mask, other=0.0).to(tl.float32)
    tl.store(out + line * tokens + token, scores * scale, mask=token_mask)


@triton.jit
def digit_sums_kernel(
    p, digits, weights, out, rows, tokens, count, chunk, stride, M: tl.constexpr, BT: tl.constexpr, N: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """p (rows, tokens) times weights (tokens,) times binary digits (tokens, count): partial sums (splits, rows, count).

    Grid (splits, count tiles); digits are packed 8 to a byte, ``stride`` bytes a token.
    """
    split = tl.program_id(0)
    first = tl.program_id(1) * N
    row = tl.arange(0, M)
    sums = tl.zeros((M, N), tl.float32)
    for start in tl.range(split * chunk, tl.minimum(split * chunk + chunk, tokens), BT):
        token = start + tl.arange(0, BT)
        token_mask = token < tokens
        at = p + row.to(tl.int64)[:, None] * tokens + token[None, :]
        factor = tl.load(at, mask=(row < rows)[:, None] & token_mask[None, :], other=0.0).to(tl.float32)
        factor *= tl.load(weights + token, mask=token_mask, other=0.0).to(tl.float32)[None, :]
        digit = read_codes(digits, token, token_mask, first, count, stride, BT, N, 1)
        sums += product(factor, as_float(digit, DTYPE), DTYPE)
    column = first + tl.arange(0, N)
    at = out + (split.to(tl.int64) * rows + row)[:, None] * count + column[None, :]
    tl.store(at, sums, mask=(row < rows)[:, None] & (column < count)[None, :])
