"""CommVQ: scores of keys summed up from a codebook, and values as sums of chosen binary digits."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.products import product
from kvq_kernels.triton_ops.tiles import as_float, code_at, locate, read_codes


@triton.jit
def codebook_scores_kernel(
    q, theta, codes, prescale, cos, sin, out, queries, heads, tokens, groups, stages, levels, pairs, row_bytes,
    M: tl.constexpr, BT: tl.constexpr, HP: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """q (rows, kv_heads, queries, 2 * groups * pairs) after RoPE; out (rows, kv_heads, queries, tokens) float32. Grid
    (rows * kv_heads * token tiles,).

    A tile of keys is summed up once for all queries of its KV head. theta (kv_heads, groups, stages, levels, 2, pairs):
    a code (a, b) stands for (x_a - y_b, y_a + x_b). The codes of a head are one bit stream of WIDTH bits a level,
    ordered (groups, tokens, stages, 2). prescale (rows, tokens); cos, sin (tokens, groups * pairs).
    """
    matrix, first = locate(tl.program_id(0), tokens, BT)
    token = first + tl.arange(0, BT)
    token_mask = token < tokens
    prescale += (matrix // heads).to(tl.int64) * tokens
    theta += (matrix % heads).to(tl.int64) * groups * stages * levels * (2 * pairs)
    matrix = matrix.to(tl.int64)
    codes += matrix * row_bytes
    query, channel = tl.arange(0, M), tl.arange(0, HP)
    inside = channel < pairs
    wanted = inside[:, None] & token_mask[None, :]
    asked = (query < queries)[:, None] & inside[None, :]
    scores = tl.zeros((M, BT), tl.float32)
    for group in tl.range(0, groups):
        x = tl.zeros((HP, BT), tl.float32)
        y = tl.zeros((HP, BT), tl.float32)
        for stage in tl.range(0, stages):
            table = theta + (group * stages + stage) * levels * (2 * pairs) + channel[:, None]
            index = ((group * tokens + token).to(tl.int64) * stages + stage) * 2
            one = table + code_at(codes, index, WIDTH, token_mask)[None, :] * (2 * pairs)
            two = table + code_at(codes, index + 1, WIDTH, token_mask)[None, :] * (2 * pairs)
            left, right = tl.load(one, mask=wanted, other=0.0), tl.load(two + pairs, mask=wanted, other=0.0)
            x += (left - right).to(tl.float32)
            left, right = tl.load(one + pairs, mask=wanted, other=0.0), tl.load(two, mask=wanted, other=0.0)
            y += (left + right).to(tl.float32)
        at = token.to(tl.int64)[None, :] * (groups * pairs) + (group * pairs + channel)[:, None]
        c = tl.load(cos + at, mask=wanted, other=0.0)
        s = tl.load(sin + at, mask=wanted, other=0.0)
        line = q + (matrix * queries + query)[:, None] * (2 * groups * pairs) + (group * pairs + channel)[None, :]
        lower = tl.load(line, mask=asked, other=0.0)
        upper = tl.load(line + groups * pairs, mask=asked, other=0.0)
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
