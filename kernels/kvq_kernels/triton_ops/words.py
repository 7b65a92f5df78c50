"""Words of packed codes, their signs and grids as they lie in memory, and codes as numbers without taking them out."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.tiles import ASYMMETRIC, HYBRID, SYMMETRIC, WORD

PLAIN = tl.constexpr(2.0**10)  # a level is a code divided by this,
SIGNED = tl.constexpr(2.0**19)  # or by this where it has a sign: both exact, and never infinite on the way


@triton.jit
def read_words(
    base, rows, row_mask, first, count, stride, N: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """Words first .. first + N of the rows, as uint16 (R, N); a word has SIZE bytes, a row ``count`` words.

    WHOLE: all of them exist. A mask would split the loads of 16 bytes.
    """
    row = base + rows.to(tl.int64) * stride
    if SIZE == 2:
        row = row.to(tl.pointer_type(tl.uint16))
    at = first + tl.arange(0, N)
    if WHOLE:
        return tl.load(row[:, None] + at[None, :]).to(tl.uint16)
    inside = row_mask[:, None] & (at < count)[None, :]
    return tl.load(row[:, None] + at[None, :], mask=inside, other=0).to(tl.uint16)


@triton.jit
def read_signs(words, rows, row_mask, first, count, stride, N: tl.constexpr, WHOLE: tl.constexpr):
    """Sign bytes first .. first + N of rows of ``stride`` int32: uint16 (R, N), the signs of 8 elements in each."""
    octets = words.to(tl.pointer_type(tl.uint8))
    return read_words(octets, rows, row_mask, first, count, stride * 4, N, 1, WHOLE)


@triton.jit
def read_scales(
    scales, words, rows, row_mask, first, count, scale_stride, word_stride, G: tl.constexpr, GROUP: tl.constexpr,
    MODE: tl.constexpr, HALF_ZERO: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Scales and zero-points of groups first .. first + G: two (G, R); the scale of a symmetric group is negative in a
    hybrid tensor. ``count`` groups a row."""
    group = first + tl.arange(0, G)
    row = rows.to(tl.int64)[None, :]
    inside = row_mask[None, :] & (group < count)[:, None]
    at = scales + row * scale_stride + group[:, None]
    scale = tl.load(at) if WHOLE else tl.load(at, mask=inside, other=0.0)
    if MODE == SYMMETRIC:
        zero = scale  # there is none
    else:
        EACH: tl.constexpr = 1 if MODE == ASYMMETRIC else GROUP // WORD
        at = words + row * word_stride + (group * EACH)[:, None]
        zero = tl.load(at) if WHOLE else tl.load(at, mask=inside, other=0)
    if MODE == HYBRID:
        if HALF_ZERO:
            zero = (zero & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
        else:
            zero = zero.to(tl.float32, bitcast=True)
        zero = tl.where(scale < 0, 0.0, zero)  # those words are signs
    return scale, zero


@triton.jit
def plain_level(words, P: tl.constexpr, BITS: tl.constexpr):
    """Codes at place P of uint16 words, as float16 divided by PLAIN."""
    HIGH: tl.constexpr = 8 if P * BITS + BITS > 10 else 0
    SHIFT: tl.constexpr = P * BITS - HIGH
    bits = (words >> HIGH) & (((1 << BITS) - 1) << SHIFT)
    return bits.to(tl.uint16).to(tl.float16, bitcast=True) * (2.0 ** (14 - SHIFT))


@triton.jit
def signed_level(words, signs, P: tl.constexpr, BITS: tl.constexpr):
    """The same divided by SIGNED, with the sign of bit P. A shift would move a sign to its place, but pairs of float16
    have none: the bit becomes 2^5 or -2^5 by two multiplications of pairs instead."""
    HIGH: tl.constexpr = 8 if P * BITS + BITS > 10 else 0
    SHIFT: tl.constexpr = P * BITS - HIGH
    bits = (words >> HIGH) & (((1 << BITS) - 1) << SHIFT)
    minus = (signs & (1 << P)).to(tl.uint16).to(tl.float16, bitcast=True) * 32768.0  # 0 or 2^(P - 9)
    sign = minus * -(2.0 ** (15 - SHIFT - P)) + 2.0 ** (5 - SHIFT)
    return bits.to(tl.uint16).to(tl.float16, bitcast=True) * sign
