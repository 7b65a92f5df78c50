"""CommVQ: scores of keys summed up from a codebook, and values as sums of chosen binary digits."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.products import product
from kvq_kernels.triton_ops.tiles import as_float, code_at, locate, read_codes


@triton.jit
def query_tables_kernel(
    q, theta, tables, heads, groups, entries, PAIRS: tl.constexpr, HP: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """The codebook in the frame of the query, which turns with each key as the codebook would (Eq. 19): every u of
    theta (kv_heads, groups, entries, PAIRS, 2) times conj(q), of q (rows, kv_heads, 2 * groups * PAIRS) after RoPE:
    tables (rows, kv_heads, groups, entries, 2, PAIRS). Grid (rows * kv_heads * groups * tiles of entries,).
    """
    part, first = locate(tl.program_id(0), entries, BT)
    matrix, group = (part // groups).to(tl.int64), part % groups
    entry, pair = first + tl.arange(0, BT), tl.arange(0, HP)
    inside = (entry < entries)[:, None] & (pair < PAIRS)[None, :]
    asked = q + matrix * (2 * groups * PAIRS) + group * PAIRS + pair
    one = tl.load(asked, mask=pair < PAIRS, other=0.0).to(tl.float32)[None, :]
    two = tl.load(asked + groups * PAIRS, mask=pair < PAIRS, other=0.0).to(tl.float32)[None, :]
    row = ((matrix % heads) * groups + group) * entries
    at = theta + (row + entry)[:, None] * (2 * PAIRS) + 2 * pair[None, :]
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(at + 1, mask=inside, other=0.0).to(tl.float32)
    at = tables + (part.to(tl.int64) * entries + entry)[:, None] * (2 * PAIRS) + pair[None, :]
    tl.store(at, one * x + two * y, mask=inside)
    tl.store(at + PAIRS, one * y - two * x, mask=inside)


@triton.jit
def codebook_scores_kernel(
    q, theta, codes, prescale, cos, sin, out, queries, heads, tokens, groups, stages, row_bytes,
    M: tl.constexpr, BT: tl.constexpr, HP: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr,
    PAIRS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """q (rows, kv_heads, queries, 2 * groups * PAIRS) after RoPE; out (rows, kv_heads, queries, tokens) float32. Grid
    (rows * kv_heads * token tiles,).

    A tile of keys is summed up once for all queries of its KV head. theta (kv_heads, groups, stages, LEVELS, 2, PAIRS):
    a code (a, b) stands for (x_a - y_b, y_a + x_b). With q None theta is that query's tables (rows, kv_heads, ...),
    and a sum times the key's turn is already its score: real parts are all that is asked of it. The codes of a head are
    one bit stream of WIDTH bits a level, ordered (groups, tokens, stages, 2). prescale (rows, tokens); cos, sin
    (tokens, groups * PAIRS).
    """
    matrix, first = locate(tl.program_id(0), tokens, BT)
    token = first + tl.arange(0, BT)
    token_mask = token < tokens
    prescale += (matrix // heads).to(tl.int64) * tokens
    theta += (matrix if q is None else matrix % heads).to(tl.int64) * groups * stages * (LEVELS * 2 * PAIRS)
    matrix = matrix.to(tl.int64)
    codes += matrix * row_bytes
    query, channel = tl.arange(0, M), tl.arange(0, HP)
    inside = channel < PAIRS
    wanted = inside[:, None] & token_mask[None, :]
    scores = tl.zeros((M, BT), tl.float32)
    for group in tl.range(0, groups):
        x = tl.zeros((HP, BT), tl.float32)
        y = tl.zeros((HP, BT), tl.float32)
        for stage in tl.range(0, stages):
            # without a mask, which costs what a load costs: level 0 and channels of a real pair stand in for none
            table = theta + (group * stages + stage) * (LEVELS * 2 * PAIRS) + (channel % PAIRS)[:, None]
            index = ((group * tokens + token).to(tl.int64) * stages + stage) * 2
            one = table + code_at(codes, index, WIDTH, token_mask)[None, :] * (2 * PAIRS)
            two = table + code_at(codes, index + 1, WIDTH, token_mask)[None, :] * (2 * PAIRS)
            x += (tl.load(one) - tl.load(two + PAIRS)).to(tl.float32)
            y += (tl.load(one + PAIRS) + tl.load(two)).to(tl.float32)
        at = token.to(tl.int64)[None, :] * (groups * PAIRS) + (group * PAIRS + channel)[:, None]
        c = tl.load(cos + at, mask=wanted, other=0.0)
        s = tl.load(sin + at, mask=wanted, other=0.0)
        if q is None:
            scores += tl.sum(x * c - y * s, 0)[None, :]
        else:
            asked = (query < queries)[:, None] & inside[None, :]
            line = q + (matrix * queries + query)[:, None] * (2 * groups * PAIRS) + (group * PAIRS + channel)[None, :]
            lower = tl.load(line, mask=asked, other=0.0)
            upper = tl.load(line + groups * PAIRS, mask=asked, other=0.0)
            scores += product(lower, x * c - y * s, DTYPE) + product(upper, y * c + x * s, DTYPE)
    scale = tl.load(prescale + token, mask=token_mask, other=0.0).to(tl.float32)
    at = out + (matrix * queries + query)[:, None] * tokens + token[None, :]
    tl.store(at, scores * scale[None, :], mask=(query < queries)[:, None] & token_mask[None, :])


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
