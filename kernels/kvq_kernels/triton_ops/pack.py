"""Quantize and pack, unpack and dequantize."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.tiles import ASYMMETRIC, HYBRID, SYMMETRIC, WORD, locate, read_tile, round_even


@triton.jit
def asymmetric_grid(x, valid, TOP: tl.constexpr, META: tl.constexpr, ZERO: tl.constexpr):
    """Scale and zero-point of groups x (R, G), rounded as they are stored and read back: two float32 (R,)."""
    low = tl.min(tl.where(valid, x, float("inf")), 1)
    high = tl.max(tl.where(valid, x, float("-inf")), 1)
    low = tl.where(low <= high, low, 0.0)  # no valid element at all
    high = tl.where(low <= high, high, low)
    scale = tl.div_rn(high - low, tl.full(high.shape, TOP, tl.float32)).to(META).to(tl.float32)
    return tl.where(scale > 0, scale, 1.0), low.to(ZERO).to(tl.float32)


@triton.jit
def asymmetric_codes(x, scale, zero, TOP: tl.constexpr):
    """Codes of groups x (R, G) on their grids, as float32."""
    level = tl.div_rn(x - zero[:, None], tl.broadcast_to(scale[:, None], x.shape))
    return round_even(tl.minimum(tl.maximum(level, 0.0), TOP))


@triton.jit
def symmetric_grid(x, valid, TOP: tl.constexpr, META: tl.constexpr):
    largest = tl.max(tl.where(valid, tl.abs(x), 0.0), 1)
    scale = tl.div_rn(largest, tl.full(largest.shape, TOP, tl.float32)).to(META).to(tl.float32)
    return tl.where(scale > 0, scale, 1.0)


@triton.jit
def symmetric_codes(x, scale, TOP: tl.constexpr):
    level = tl.div_rn(tl.abs(x), tl.broadcast_to(scale[:, None], x.shape))
    return round_even(tl.minimum(level, TOP))


@triton.jit
def store_codes(
    codes, code, rows, row_mask, first, size, stride, R: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Pack codes (R, G) int32 of elements first .. first + G and store them; a packed row is ``size`` bytes long."""
    EACH: tl.constexpr = 8 if BITS == 3 else 8 // BITS  # codes in a word of BITS * EACH bits
    LONG: tl.constexpr = BITS * EACH // 8
    shifts = tl.arange(0, EACH) * BITS
    word = tl.sum(tl.reshape(code, (R, G // EACH, EACH)) << shifts[None, None, :], 2)
    base = codes + (rows.to(tl.int64) * stride)[:, None]
    at = first // EACH * LONG + tl.arange(0, G // EACH) * LONG
    for i in tl.static_range(LONG):
        inside = row_mask[:, None] & (at + i < size)[None, :]
        tl.store(base + (at + i)[None, :], ((word >> (8 * i)) & 255).to(tl.uint8), mask=inside)


@triton.jit
def quantize_pack_kernel(
    x, codes, scales, words, count, rows, matrix_stride, row_stride, element_stride, code_stride, scale_stride,
    word_stride, capacity, size, R: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    MODE: tl.constexpr, HALF_ZERO: tl.constexpr, META: tl.constexpr,
):  # fmt: skip
    """Whole groups of R rows, N elements of each: x (matrices, rows, count) by strides -> codes, scales and words, all
    row-major.

    Grid (matrices * row tiles * N tiles,). Outputs have room for ``capacity`` rows a matrix, and a row of codes is
    ``size`` bytes long.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    EACH: tl.constexpr = N // GROUP
    outer, first_element = locate(tl.program_id(0), count, N)
    matrix, first_row = locate(outer, rows, R)
    matrix = matrix.to(tl.int64)
    row, element = first_row + tl.arange(0, R), first_element + tl.arange(0, N)
    inside = (row < rows)[:, None] & (element < count)[None, :]
    at = (
        matrix * matrix_stride + row.to(tl.int64)[:, None] * row_stride + element.to(tl.int64)[None, :] * element_stride
    )
    loaded = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    values, valid = tl.reshape(loaded, (R * EACH, GROUP)), tl.reshape(inside, (R * EACH, GROUP))
    line = tl.arange(0, R * EACH)  # the groups, those of a row one after another
    owner, group = first_row + line // EACH, first_element // GROUP + line % EACH
    mask = (owner < rows) & (group * GROUP < count)
    stored = matrix * capacity + owner

    if MODE != SYMMETRIC:
        scale, zero = asymmetric_grid(values, valid, TOP, META, tl.float16 if HALF_ZERO else tl.float32)
        code = asymmetric_codes(values, scale, zero, TOP)
    if MODE != ASYMMETRIC:
        sign_scale = symmetric_grid(values, valid, TOP, META)
        size_code = symmetric_codes(values, sign_scale, TOP)
        shifts = tl.arange(0, WORD)
        minus = tl.where(valid & (values < 0), 1, 0)
        word = tl.sum(tl.reshape(minus, (R * EACH, GROUP // WORD, WORD)) << shifts[None, None, :], 2)
        word_at = (
            words + (stored * word_stride)[:, None]
            + (group * (GROUP // WORD))[:, None] + tl.arange(0, GROUP // WORD)[None, :]
        )  # fmt: skip
    if MODE == HYBRID:
        level = tl.where(values < 0, -size_code, size_code)
        lost = tl.where(valid, level * sign_scale[:, None] - values, 0.0)
        other = tl.where(valid, code * scale[:, None] + zero[:, None] - values, 0.0)
        symmetric = tl.sum(lost * lost, 1) <= tl.sum(other * other, 1)
        code = tl.where(symmetric[:, None], size_code, code)
        scale = tl.where(symmetric, -sign_scale, scale)  # the sign bit of a scale is free, and says which grid it is
        if HALF_ZERO:
            held = zero.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
        else:
            held = zero.to(tl.int32, bitcast=True)
        first = tl.where((tl.arange(0, GROUP // WORD) == 0)[None, :], held[:, None], 0)
        word = tl.where(symmetric[:, None], word, first)
    if MODE == SYMMETRIC:
        scale, code = sign_scale, size_code
    if MODE == ASYMMETRIC:
        tl.store(words + stored * word_stride + group, zero.to(words.dtype.element_ty), mask=mask)
    else:
        tl.store(word_at, word, mask=mask[:, None])
    tl.store(scales + stored * scale_stride + group, scale.to(scales.dtype.element_ty), mask=mask)
    code = tl.reshape(tl.where(valid, code, 0.0).to(tl.int32), (R, N))
    store_codes(codes, code, matrix * capacity + row, row < rows, first_element, size, code_stride, R, N, BITS)


@triton.jit
def unpack_dequantize_kernel(
    codes, scales, words, out, count, rows, code_stride, scale_stride, word_stride, matrix_stride, row_stride,
    element_stride, capacity, R: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    MODE: tl.constexpr, HALF_ZERO: tl.constexpr,
):  # fmt: skip
    """Inverse of quantize_pack_kernel: out (matrices, rows, count) by strides.

    Grid (matrices * row tiles * N tiles,)."""
    outer, first = locate(tl.program_id(0), count, N)
    matrix, first_row = locate(outer, rows, R)
    matrix = matrix.to(tl.int64)
    row = first_row + tl.arange(0, R)
    row_mask = row < rows
    values = read_tile(
        codes, scales, words, matrix * capacity + row, row_mask, first, count, code_stride, scale_stride, word_stride,
        R, N, BITS, GROUP, MODE, HALF_ZERO, tl.float32,
    )  # fmt: skip
    element = first + tl.arange(0, N)
    at = (
        matrix * matrix_stride + row.to(tl.int64)[:, None] * row_stride + element.to(tl.int64)[None, :] * element_stride
    )
    tl.store(out + at, values.to(out.dtype.element_ty), mask=row_mask[:, None] & (element < count)[None, :])
