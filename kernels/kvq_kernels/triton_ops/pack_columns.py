"""Quantize and pack groups whose elements lie apart, as those of tokens do: a group a thread, an element a variable.

What is kept of neighbouring groups of a row lies side by side in memory, but in threads far apart: it is stored as
tensors of rows and groups, which Triton brings into an order whose stores fill 32 bytes at once. A byte or a number at
a time, as threads have them, took five times as long on an H200 as all the rest.
"""

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
def side_by_side(x, R: tl.constexpr, EACH: tl.constexpr):
    """Lines (EACH * R,) as (R, EACH): the groups of a row beside each other."""
    return tl.trans(tl.reshape(x, (EACH, R)))


@triton.jit
def octets_of(given, size, J: tl.constexpr, EACH: tl.constexpr, BITS: tl.constexpr):
    """The J-th EACH codes of columns, one behind the other: int32."""
    octets = tl.zeros(given[0].shape, tl.int32)
    for i in tl.static_range(EACH):
        bits = given[J * EACH + i].to(tl.int32, bitcast=True) & ((1 << BITS) - 1)
        octets |= tl.where(J * EACH + i < size, bits, 0) << (i * BITS)
    return octets


@triton.jit
def store_codes(given, codes, at, left, size, mask, BITS: tl.constexpr):
    """Codes of columns, byte by byte: ``at``: the first, of which its row has ``left``."""
    EACH: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    LONG: tl.constexpr = BITS * EACH // 8
    for j in tl.static_range(len(given) // EACH):
        octets = octets_of(given, size, j, EACH, BITS)
        for i in tl.static_range(LONG):
            byte = ((octets >> (8 * i)) & 255).to(tl.uint8)
            tl.store(codes + at + (j * LONG + i), byte, mask=mask & (j * LONG + i < left))


@triton.jit
def store_words(given, codes, rows, group, stride, mask, R: tl.constexpr, EACH: tl.constexpr, BITS: tl.constexpr):
    """Codes of columns as words of 32 bits, 1, 2 or 4 a group: all of a row side by side."""
    COUNT: tl.constexpr = len(given) * BITS // 32
    WORD_CODES: tl.constexpr = 32 // BITS
    words = ()
    for j in tl.static_range(COUNT):
        words = words + (side_by_side(octets_of(given, len(given), j, WORD_CODES, BITS), R, EACH),)
    if COUNT == 1:
        tile = words[0]
    elif COUNT == 2:
        tile = tl.reshape(tl.join(words[0], words[1]), (R, EACH * 2))
    else:
        tile = tl.join(tl.join(words[0], words[2]), tl.join(words[1], words[3]))
        tile = tl.reshape(tile, (R, EACH * 4))
    at = (codes + rows[:, None] * stride).to(tl.pointer_type(tl.int32)) + group * COUNT
    place = tl.arange(0, EACH * COUNT)
    tl.store(at + place[None, :], tile, mask=tl.broadcast_to(mask[:, None], tile.shape))


@triton.jit
def signs_of(values, size, W: tl.constexpr):
    """Which of 32 elements of columns are negative: int32."""
    word = tl.zeros(values[0].shape, tl.int32)
    for i in tl.static_range(32):
        minus = (values[W * 32 + i] < 0) & (W * 32 + i < size)
        word |= tl.where(minus, tl.full(word.shape, 1, tl.int32) << i, 0)
    return word


@triton.jit
def kept_word(values, zero, symmetric, size, W: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr):
    """The W-th word of columns that are symmetric or hybrid: their signs, or of an asymmetric one its zero-point."""
    word = signs_of(values, size, W)
    if MODE == HYBRID:
        if W == 0 and HALF_ZERO:
            held = zero.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
        elif W == 0:
            held = zero.to(tl.int32, bitcast=True)
        else:
            held = tl.zeros(zero.shape, tl.int32)
        word = tl.where(symmetric, word, held)
    return word


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
    rows_in, group = tl.arange(0, R), first_element // GROUP
    stored, groups = matrix * capacity + first_row + rows_in, group + tl.arange(0, EACH)
    real = first_row + rows_in < rows
    both = real[:, None] & (groups * GROUP < count)[None, :]
    COUNT: tl.constexpr = PART * BITS // 32
    if WHOLE and COUNT * 32 == PART * BITS and (COUNT == 1 or COUNT == 2 or COUNT == 4):
        store_words(given, codes, stored, group, code_stride, real, R, EACH, BITS)
    else:
        first_byte = begin // 8 * BITS
        at = (matrix * capacity + row) * code_stride + first_byte
        store_codes(given, codes, at, size - first_byte, left, mask, BITS)
    scale = side_by_side(scale + doubtful, R, EACH).to(scales.dtype.element_ty)
    tl.store(scales + stored[:, None] * scale_stride + groups[None, :], scale, mask=both)
    words += stored[:, None] * word_stride
    if MODE == ASYMMETRIC:
        tl.store(words + groups[None, :], side_by_side(zero, R, EACH).to(words.dtype.element_ty), mask=both)
    else:
        WORDS: tl.constexpr = GROUP // WORD
        for w in tl.static_range(WORDS):
            word = side_by_side(kept_word(values, zero, symmetric, left, w, MODE, HALF_ZERO), R, EACH)
            tl.store(words + groups[None, :] * WORDS + w, word, mask=both)
