"""CommVQ: scores through commuted tables, and values as sums of chosen binary digits."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.products import product
from kvq_kernels.triton_ops.tiles import as_float, code_at, locate, read_codes


@triton.jit
def codebook_scores_kernel(
    tables, codes, prescale, cos, sin, out, queries, heads, tokens, groups, stages, levels, pairs, stream,
    BT: tl.constexpr, WIDE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """tables (rows, kv_heads, queries, groups, stages, 2, levels, 2 pairs); out (rows, kv_heads, queries, tokens).

    Grid (rows * kv_heads * queries * token tiles,). The codes of a head are one bit stream of WIDTH bits a level,
    ordered (groups, tokens, stages, 2). prescale (rows, tokens); cos, sin (tokens, groups * pairs).
    """
    line, first = locate(tl.program_id(0), tokens, BT)
    token = first + tl.arange(0, BT)
    token_mask = token < tokens
    base = codes + (line // queries).to(tl.int64) * stream
    prescale += (line // (queries * heads)).to(tl.int64) * tokens
    line = line.to(tl.int64)
    column = tl.arange(0, WIDE)
    wanted = token_mask[:, None] & (column < 2 * pairs)[None, :]
    scores = tl.zeros((BT,), tl.float32)
    for group in tl.range(0, groups):
        sums = tl.zeros((BT, WIDE), tl.float32)
        for stage in tl.range(0, stages):
            table = tables + (((line * groups + group) * stages + stage) * 2) * levels * (2 * pairs)
            for place in tl.static_range(2):  # first and second level of the code
                index = ((group * tokens + token).to(tl.int64) * stages + stage) * 2 + place
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
    p, digits, weights, out, lines, tokens, count, chunk, rows, size, M: tl.constexpr, BT: tl.constexpr,
    N: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """p (rows, lines, tokens) times weights (rows, tokens) times binary digits (rows, tokens, count): partial sums
    (splits, rows, lines, count).

    Grid (rows, splits, count tiles); digits are packed 8 to a byte, ``size`` bytes a token.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    first = tl.program_id(2) * N
    line = tl.arange(0, M)
    line_mask = line < lines
    sums = tl.zeros((M, N), tl.float32)
    for start in tl.range(split * chunk, tl.minimum(split * chunk + chunk, tokens), BT):
        token = start + tl.arange(0, BT)
        token_mask = token < tokens
        at = p + (row * lines + line)[:, None] * tokens + token[None, :]
        factor = tl.load(at, mask=line_mask[:, None] & token_mask[None, :], other=0.0).to(tl.float32)
        factor *= tl.load(weights + row * tokens + token, mask=token_mask, other=0.0).to(tl.float32)[None, :]
        digit = read_codes(digits, row * tokens + token, token_mask, first, count, size, BT, N, 1)
        sums += product(factor, as_float(digit, DTYPE), DTYPE)
    column = first + tl.arange(0, N)
    at = out + ((split * rows + row) * lines + line)[:, None] * count + column[None, :]
    tl.store(at, sums, mask=line_mask[:, None] & (column < count)[None, :])
