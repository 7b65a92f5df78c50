"""Reading packed codes and their grids: what all kernels share."""

import triton
import triton.language as tl

ASYMMETRIC = tl.constexpr(0)
SYMMETRIC = tl.constexpr(1)
HYBRID = tl.constexpr(2)
WORD = tl.constexpr(32)  # elements whose signs share an int32


@triton.jit
def locate(program, length, SIZE: tl.constexpr):
    """Which matrix, or outer program, a program belongs to, and its first of ``length`` elements, SIZE a program.

    All programs number one grid axis, because the others end at 65,535. Both are int32, whose divisions are cheap.
    """
    tiles = tl.cdiv(length, SIZE)
    return program // tiles, program % tiles * SIZE


@triton.jit
def as_float(code, DTYPE: tl.constexpr):
    """Codes (int32, below 256) as floats. 0x6400 is the float16 1024, whose last bits count ones: cheaper than I2F."""
    if DTYPE == tl.float16:
        return (code | 0x6400).to(tl.uint16).to(tl.float16, bitcast=True) - 1024.0
    else:
        return code.to(DTYPE)


@triton.jit
def code_from(base, bit, bits, mask):
    """The code whose lowest bit is number ``bit`` of the stream that begins at ``base`` (uint8 pointers).

    ``bits``, its width of up to 8, may be a tensor.
    """
    shift = (bit & 7).to(tl.int32)
    at = base + (bit >> 3)
    word = tl.load(at, mask=mask, other=0).to(tl.int32)
    # a code that reaches into the next byte; bits beyond a stream's end are masked off
    word |= tl.load(at + 1, mask=mask & (shift + bits > 8), other=0).to(tl.int32) << 8
    return (word >> shift) & ((1 << bits) - 1)


@triton.jit
def code_at(base, index, bits, mask):
    """Code number ``index`` of a stream whose codes are all ``bits`` wide."""
    return code_from(base, index * bits, bits, mask)


@triton.jit
def read_codes(codes, rows, row_mask, first, count, stride, R: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr):
    """Codes (R, N) int32 of elements first .. first + N of the rows; ``first`` is a multiple of 8."""
    if BITS == 3:
        element = first + tl.arange(0, N)
        base = codes + (rows.to(tl.int64) * stride)[:, None]
        return code_at(base, element[None, :], BITS, row_mask[:, None] & (element < count)[None, :])
    else:
        EACH: tl.constexpr = 8 // BITS
        # whole bytes are read, so that a byte is loaded once for all of its codes
        at = (first * BITS) // 8 + tl.arange(0, N // EACH)
        inside = row_mask[:, None] & (at * EACH < count)[None, :]
        octets = tl.load(codes + (rows.to(tl.int64) * stride)[:, None] + at[None, :], mask=inside, other=0).to(tl.int32)
        if EACH == 1:
            return octets
        else:
            shifts = tl.arange(0, EACH) * BITS
            return tl.reshape((octets[:, :, None] >> shifts[None, None, :]) & ((1 << BITS) - 1), (R, N))


@triton.jit
def read_signs(words, rows, row_mask, first, count, stride, R: tl.constexpr, N: tl.constexpr):
    """Sign bits (R, N) int32, 1 is minus; ``words`` int32, one for 32 elements, ``stride`` words a row."""
    at = first // WORD + tl.arange(0, N // WORD)
    inside = row_mask[:, None] & (at * WORD < count)[None, :]
    found = tl.load(words + (rows.to(tl.int64) * stride)[:, None] + at[None, :], mask=inside, other=0)
    return tl.reshape((found[:, :, None] >> tl.arange(0, WORD)[None, None, :]) & 1, (R, N))


@triton.jit
def read_grid(
    scales, words, rows, row_mask, first, count, scale_stride, word_stride, R: tl.constexpr, N: tl.constexpr,
    GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr,
):  # fmt: skip
    """Scale, zero-point (both float32) and whether the group is symmetric: three (R, N // SPAN).

    A tile holds whole groups or lies in one: SPAN of its elements share a group. In a hybrid tensor the sign bit of the
    scale says that the group is symmetric, and its words hold either the signs of the group or its minimum in the first
    of them.
    """
    SPAN: tl.constexpr = GROUP if GROUP < N else N
    group = first // GROUP + tl.arange(0, N // SPAN)
    inside = row_mask[:, None] & (group * GROUP < count)[None, :]
    row = rows.to(tl.int64)[:, None]
    scale = tl.load(scales + row * scale_stride + group[None, :], mask=inside, other=0.0).to(tl.float32)
    if MODE == ASYMMETRIC:
        zero = tl.load(words + row * word_stride + group[None, :], mask=inside, other=0.0).to(tl.float32)
        return scale, zero, tl.full((R, N // SPAN), False, tl.int1)
    elif MODE == SYMMETRIC:
        return scale, tl.zeros((R, N // SPAN), tl.float32), tl.full((R, N // SPAN), True, tl.int1)
    else:
        symmetric = scale < 0
        word = tl.load(words + row * word_stride + group[None, :] * (GROUP // WORD), mask=inside, other=0)
        if HALF_ZERO:
            zero = (word & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        else:
            zero = word.to(tl.float32, bitcast=True)
        return tl.abs(scale), tl.where(symmetric, 0.0, zero), symmetric


@triton.jit
def signed_codes(
    codes, words, symmetric, rows, row_mask, first, count, code_stride, word_stride, R: tl.constexpr, N: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Codes (R, N) as numbers, those of symmetric groups with their signs: what the scale multiplies."""
    code = read_codes(codes, rows, row_mask, first, count, code_stride, R, N, BITS)
    level = as_float(code, DTYPE)
    if MODE == ASYMMETRIC:
        return level
    else:
        sign = read_signs(words, rows, row_mask, first, count, word_stride, R, N)
        if MODE == HYBRID:
            SPAN: tl.constexpr = GROUP if GROUP < N else N
            each = tl.broadcast_to(symmetric.to(tl.int32)[:, :, None], (R, N // SPAN, SPAN))
            sign = sign & tl.reshape(each, (R, N))
        return tl.where(sign == 1, -level, level)


@triton.jit
def read_tile(
    codes, scales, words, rows, row_mask, first, count, code_stride, scale_stride, word_stride, R: tl.constexpr,
    N: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Dequantized (R, N): elements first .. first + N of ``rows``; masked ones are 0.

    The tile holds whole groups or lies in one.
    """
    SPAN: tl.constexpr = GROUP if GROUP < N else N
    scale, zero, symmetric = read_grid(
        scales, words, rows, row_mask, first, count, scale_stride, word_stride, R, N, GROUP, MODE, HALF_ZERO
    )
    level = signed_codes(
        codes, words, symmetric, rows, row_mask, first, count, code_stride, word_stride, R, N, BITS, GROUP, MODE, DTYPE
    )
    groups = tl.reshape(level, (R, N // SPAN, SPAN))
    groups = groups * scale.to(DTYPE)[:, :, None] + zero.to(DTYPE)[:, :, None]
    return tl.reshape(groups, (R, N))
