"""Quantize and pack groups whose elements lie apart, as those of tokens do: a group a thread, an element a variable."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.pack import MAGIC, group_scale, nearest_code
from kvq_kernels.triton_ops.tiles import ASYMMETRIC, HYBRID, SYMMETRIC, WORD, locate


@triton.jit
def column_grid(values, low, high, size, BITS: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr,
                META: tl.constexpr):  # fmt: skip
    """Codes (MAGIC plus their numbers) of a column's group (a tuple of lines), its scale, zero-point and the word that
    is kept of it. ``size``: how many of the elements there are."""
    TOP: tl.constexpr = (1 << BITS) - 1
    zero = low
    scale = low
    if MODE != SYMMETRIC:
        scale = group_scale(high - low, TOP, META)
        if HALF_ZERO:
            zero = low.to(tl.float16).to(tl.float32)
    sign_scale = scale
    if MODE != ASYMMETRIC:
        sign_scale = group_scale(tl.maximum(high, -low), TOP, META)
    codes = ()
    sizes = ()
    lost, missed = tl.zeros(low.shape, tl.float32), tl.zeros(low.shape, tl.float32)
    for p in tl.static_range(len(values)):
        if MODE != SYMMETRIC:
            above = values[p] - zero
            if HALF_ZERO:  # it may be rounded upwards
                above = tl.maximum(above, 0.0)
            code = nearest_code(above, scale, TOP, META)
            codes = codes + (code,)
        if MODE != ASYMMETRIC:
            found = nearest_code(tl.abs(values[p]), sign_scale, TOP, META)
            sizes = sizes + (found,)
        if MODE == HYBRID:
            one = (found - MAGIC) * sign_scale - tl.abs(values[p])
            other = (code - MAGIC) * scale + zero - values[p]
            there = p < size
            lost += tl.where(there, one * one, 0.0)
            missed += tl.where(there, other * other, 0.0)
    if MODE == ASYMMETRIC:
        return codes, scale, zero, zero
    elif MODE == SYMMETRIC:
        return sizes, sign_scale, zero, zero
    else:
        symmetric = lost <= missed
        chosen = ()
        for p in tl.static_range(len(values)):
            chosen = chosen + (tl.where(symmetric, sizes[p], codes[p]),)
        # the sign bit of a scale is free, and says which grid it is
        return chosen, tl.where(symmetric, -sign_scale, scale), zero, symmetric


@triton.jit
def store_column(values, codes, words, scales, at, left, size, mask, scale, zero, symmetric, given,
                 WORDS: tl.constexpr, BITS: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr):  # fmt: skip
    """What is kept of a column's group: ``at``: its bytes of codes, of which its row has ``left``."""
    EACH: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    LONG: tl.constexpr = BITS * EACH // 8
    for j in tl.static_range(len(values) // EACH):
        octets = tl.zeros(scale.shape, tl.int32)
        for i in tl.static_range(EACH):
            bits = given[j * EACH + i].to(tl.int32, bitcast=True)
            if BITS == 3:
                bits = bits & 7
            octets += tl.where(j * EACH + i < size, bits, 0) << (i * BITS)
        for i in tl.static_range(LONG):
            byte = ((octets >> (8 * i)) & 255).to(tl.uint8)
            tl.store(codes + at + (j * LONG + i), byte, mask=mask & (j * LONG + i < left))
    tl.store(scales, scale.to(scales.dtype.element_ty), mask=mask)
    if MODE == ASYMMETRIC:
        tl.store(words, zero.to(words.dtype.element_ty), mask=mask)
    else:
        for w in tl.static_range(WORDS):
            word = tl.zeros(scale.shape, tl.int32)
            for i in tl.static_range(32):
                minus = (values[w * 32 + i] < 0) & (w * 32 + i < size)
                word |= tl.where(minus, tl.full(scale.shape, 1, tl.int32) << i, 0)
            if MODE == HYBRID:
                if w == 0 and HALF_ZERO:
                    held = zero.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
                elif w == 0:
                    held = zero.to(tl.int32, bitcast=True)
                else:
                    held = tl.zeros(scale.shape, tl.int32)
                word = tl.where(symmetric, word, held)
            tl.store(words + w, word, mask=mask)


@triton.jit
def quantize_columns_kernel(
    x, codes, scales, words, count, rows, matrix_stride, row_stride, code_stride, scale_stride, word_stride, capacity,
    size, R: tl.constexpr, N: tl.constexpr, PART: tl.constexpr, STRIDE: tl.constexpr, WHOLE: tl.constexpr,
    GROUP: tl.constexpr, BITS: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, META: tl.constexpr,
):  # fmt: skip
    """quantize_pack_kernel where the elements of a group lie STRIDE apart and those of a column side by side: a thread
    holds a group, all PART elements of it, as so many variables, and no version of Triton has a layout to choose."""
    EACH: tl.constexpr = N // PART  # groups of a row
    outer, first_element = locate(tl.program_id(0), count, N)
    matrix, first_row = locate(outer, rows, R)
    matrix = matrix.to(tl.int64)
    line = tl.arange(0, R * EACH)
    row, begin = first_row + line % R, first_element + line // R * GROUP
    mask = (row < rows) & (begin < count)
    left = tl.full(line.shape, GROUP, tl.int32) if WHOLE else tl.minimum(count - begin, GROUP)
    base = x + matrix * matrix_stride + row.to(tl.int64) * row_stride + begin.to(tl.int64) * STRIDE
    values = ()
    low, high = tl.full(line.shape, float("inf"), tl.float32), tl.full(line.shape, float("-inf"), tl.float32)
    doubtful = tl.zeros(line.shape, tl.float32)
    for p in tl.static_range(PART):
        there = mask if WHOLE else mask & (p < left)
        value = tl.load(base + p * STRIDE, mask=there, other=0.0).to(tl.float32)
        low = tl.minimum(low, value if WHOLE else tl.where(there, value, float("inf")))
        high = tl.maximum(high, value if WHOLE else tl.where(there, value, float("-inf")))
        doubtful += value * 0.0  # NaN where an element is no number, which minima and maxima pass over
        values = values + (value,)
    given, scale, zero, symmetric = column_grid(values, low, high, left, BITS, MODE, HALF_ZERO, META)
    stored = matrix * capacity + row
    first_byte = begin // 8 * BITS
    WORDS: tl.constexpr = 1 if MODE == ASYMMETRIC else GROUP // WORD
    store_column(
        values, codes, words + stored * word_stride + begin // GROUP * WORDS,
        scales + stored * scale_stride + begin // GROUP, stored * code_stride + first_byte, size - first_byte, left,
        mask, scale + doubtful, zero, symmetric, given, WORDS, BITS, MODE, HALF_ZERO,
    )  # fmt: skip
