"""Quantize and pack, unpack and dequantize."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.tiles import ASYMMETRIC, HYBRID, SYMMETRIC, WORD, locate, read_tile

MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: a float32 of this size has no fraction, and its last bits count ones


@triton.jit
def reciprocal(scale):
    """1 / scale in two parts, the second what rounding the first one lost. An infinite scale has nothing to lose."""
    first = 1.0 / scale
    return first, tl.where(scale < float("inf"), tl.fma(-first, scale, 1.0) * first, 0.0)


@triton.jit
def quotient(x, scale, META: tl.constexpr):
    """x / scale as IEEE rounds it, in two operations an element where the scale has the 11 digits of a float16.

    The sum of both products is within 2^-43 of the quotient before its only rounding. An x of 24 digits over a scale of
    11 is never closer than 2^-36 to the middle of two float32 unless it is a float32 itself (then it is exact), so the
    rounding cannot fall to another side.
    """
    if META == tl.float16:
        first, rest = reciprocal(scale)
        return tl.fma(x, tl.broadcast_to(first, x.shape), x * rest)
    else:
        return tl.div_rn(x, tl.broadcast_to(scale, x.shape))


@triton.jit
def group_scale(extent, TOP: tl.constexpr, META: tl.constexpr):
    """extent / TOP as it is stored and read back; 1 where that is 0."""
    extent = tl.minimum(extent, 3.4028234663852886e38)
    scale = quotient(extent, tl.full(extent.shape, TOP, tl.float32), META).to(META).to(tl.float32)
    return tl.where(scale > 0, scale, 1.0)


@triton.jit
def nearest_code(x, scale, TOP: tl.constexpr, META: tl.constexpr):
    """MAGIC plus the code, 0 to TOP, nearest to x / scale, ties to even; x is not negative."""
    # x is clamped, not the quotient: TOP * scale has few digits and is exact, and nothing infinite is multiplied
    return quotient(tl.minimum(x, TOP * scale), scale, META) + MAGIC


@triton.jit
def packed_octets(code, PART: tl.constexpr, L: tl.constexpr, BITS: tl.constexpr):
    """Codes (PART, L), MAGIC plus their numbers, as int32 octets (PART // EACH, L) for each byte of their words.

    The bits of MAGIC lie above those that an octet keeps.
    """
    EACH: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    bits = code.to(tl.int32, bitcast=True)
    if BITS == 3:
        bits = bits & 7
    shifts = tl.arange(0, EACH) * BITS
    return tl.sum(tl.reshape(bits, (PART // EACH, EACH, L)) << shifts[None, :, None], 1)


@triton.jit
def store_octets(octets, codes, at, mask, left, PART: tl.constexpr, BITS: tl.constexpr):
    """Store what packed_octets made, a line at ``at`` (L,), where its row has ``left`` bytes."""
    EACH: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    LONG: tl.constexpr = BITS * EACH // 8
    octet = tl.arange(0, PART // EACH) * LONG
    start = (codes + at)[None, :]
    for i in tl.static_range(LONG):
        inside = mask[None, :] & ((octet + i)[:, None] < left)
        tl.store(start + (octet + i)[:, None], ((octets >> (8 * i)) & 255).to(tl.uint8), mask=inside)


@triton.jit
def in_group(x, A: tl.constexpr, SHARE: tl.constexpr, B: tl.constexpr, HOW: tl.constexpr):
    """Minimum (0), maximum (1) or sum (2) of x (A * SHARE * B,) over the SHARE lines of a group, for each of them."""
    if SHARE == 1:
        return x
    parts = tl.reshape(x, (A, SHARE, B))
    if HOW == 0:
        found = tl.min(parts, 1)
    elif HOW == 1:
        found = tl.max(parts, 1)
    else:
        found = tl.sum(parts, 1)
    return tl.reshape(tl.broadcast_to(found[:, None, :], (A, SHARE, B)), (A * SHARE * B,))


@triton.jit
def load_lines(base, mask, left, PART: tl.constexpr, L: tl.constexpr, STRIDE: tl.constexpr, WHOLE: tl.constexpr):
    """Lines of PART elements, STRIDE apart, at ``base`` (L,), of which ``left`` (L,) there are: (PART, L), 0 beyond."""
    element = tl.arange(0, PART)
    if STRIDE == 1:
        piece, each = tl.arange(0, PART // 8) * 8, tl.arange(0, 8)
        within = piece[:, None, None] + each[None, None, :]
        inside = mask[None, :, None]
        if not WHOLE:
            inside = inside & (within < left[None, :, None])
        loaded = tl.load(base[None, :, None] + within, mask=inside, other=0.0)
        loaded = tl.reshape(tl.trans(loaded, 0, 2, 1), (PART, L))
    else:
        inside = mask[None, :]
        if not WHOLE:
            inside = inside & (element[:, None] < left[None, :])
        at = base[None, :] + element.to(tl.int64)[:, None] * STRIDE
        # one row a thread, though a load could take eight: the lines of one thread would be parts of groups then
        loaded = tl.load(tl.max_contiguous(at, [1, 1]), mask=inside, other=0.0)
    return loaded


@triton.jit
def ends(values, valid, A: tl.constexpr, SHARE: tl.constexpr, B: tl.constexpr, WHOLE: tl.constexpr):
    """Least and largest of the values (PART, lines) of each line's group; 0 where none is valid."""
    low, high = values, values
    if not WHOLE:
        low, high = tl.where(valid, values, float("inf")), tl.where(valid, values, float("-inf"))
    low, high = in_group(tl.min(low, 0), A, SHARE, B, 0), in_group(tl.max(high, 0), A, SHARE, B, 1)
    if not WHOLE:
        low = tl.where(low <= high, low, 0.0)  # no valid element at all
        high = tl.where(low <= high, high, low)
    return low, high


@triton.jit
def doubt(values, A: tl.constexpr, SHARE: tl.constexpr, B: tl.constexpr):
    """0, or NaN where the group of a line has a NaN or an infinite element: minima and maxima pass over NaN."""
    return in_group(tl.sum(values * 0.0, 0), A, SHARE, B, 2)


@triton.jit
def squares(lost, valid, A: tl.constexpr, SHARE: tl.constexpr, B: tl.constexpr, WHOLE: tl.constexpr):
    """Sum of the squares of what is lost (PART, lines) in each line's group."""
    if not WHOLE:
        lost = tl.where(valid, lost, 0.0)
    return in_group(tl.sum(lost * lost, 0), A, SHARE, B, 2)


@triton.jit
def quantize_pack_kernel(
    x, codes, scales, words, count, rows, matrix_stride, row_stride, code_stride, scale_stride, word_stride, capacity,
    size, R: tl.constexpr, N: tl.constexpr, PART: tl.constexpr, STRIDE: tl.constexpr, WHOLE: tl.constexpr,
    GROUP: tl.constexpr, BITS: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, META: tl.constexpr,
):  # fmt: skip
    """Whole groups of R rows, N elements of each: x (matrices, rows, count) by strides -> codes, scales and words, all
    row-major.

    Grid (matrices * row tiles * N tiles,). Outputs have room for ``capacity`` rows a matrix, and a row of codes is
    ``size`` bytes long. A line is PART elements of a row, a group or a piece of one. Tensors are (PART, lines), with
    the indices ordered such that a thread has all of a line: nothing is exchanged to find a grid or to pack codes.
    STRIDE: how far a row's elements lie apart in x, known in advance so that loads need no addresses of their own.
    WHOLE: N divides count.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    ROWWISE: tl.constexpr = STRIDE == 1  # else the elements of a column lie side by side
    EACH: tl.constexpr = N // PART  # lines of a row
    L: tl.constexpr = R * EACH
    SHARE: tl.constexpr = GROUP // PART  # lines of a group
    B: tl.constexpr = 1 if ROWWISE else R
    A: tl.constexpr = L // SHARE // B
    outer, first_element = locate(tl.program_id(0), count, N)
    matrix, first_row = locate(outer, rows, R)
    matrix = matrix.to(tl.int64)
    line = tl.arange(0, L)
    place = line % EACH if ROWWISE else line // R
    row = first_row + (line // EACH if ROWWISE else line % R)
    mask = row < rows
    begin = first_element + place * PART
    element = tl.arange(0, PART)
    base = x + matrix * matrix_stride + row.to(tl.int64) * row_stride + begin.to(tl.int64) * STRIDE
    loaded = load_lines(base, mask, count - begin, PART, L, STRIDE, WHOLE)
    values = loaded.to(tl.float32)
    valid = element[:, None] < (count - begin)[None, :]

    low, high = ends(values, valid, A, SHARE, B, WHOLE)
    first = place % SHARE == 0  # of its group
    group = begin // GROUP
    stored = matrix * capacity + row
    mask = mask & (group * GROUP < count)  # of a last group all words are stored, whatever it has of them

    if MODE != SYMMETRIC:
        scale = group_scale(high - low, TOP, META)
        zero = low.to(tl.float16).to(tl.float32) if HALF_ZERO else low
        above = values - zero[None, :]
        if HALF_ZERO:  # it may be rounded upwards
            above = tl.maximum(above, 0.0)
        code = nearest_code(above, scale[None, :], TOP, META)
    if MODE != ASYMMETRIC:
        sign_scale = group_scale(tl.maximum(high, -low), TOP, META)
        size_code = nearest_code(tl.abs(values), sign_scale[None, :], TOP, META)
        minus = values < 0
        if not WHOLE:
            minus = minus & valid
        word = tl.sum(tl.where(minus, (1 << element)[:, None], 0), 0)
    if MODE == HYBRID:
        lost = (size_code - MAGIC) * sign_scale[None, :] - tl.abs(values)
        other = (code - MAGIC) * scale[None, :] + zero[None, :] - values
        symmetric = squares(lost, valid, A, SHARE, B, WHOLE) <= squares(other, valid, A, SHARE, B, WHOLE)
        code = tl.where(symmetric[None, :], size_code, code)
        scale = tl.where(symmetric, -sign_scale, scale)  # the sign bit of a scale is free, and says which grid it is
        if HALF_ZERO:
            held = zero.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
        else:
            held = zero.to(tl.int32, bitcast=True)
        word = tl.where(symmetric, word, tl.where(first, held, 0))
    if MODE == SYMMETRIC:
        scale, code = sign_scale, size_code
    if MODE == ASYMMETRIC:
        tl.store(words + stored * word_stride + group, zero.to(words.dtype.element_ty), mask=mask & first)
    else:
        tl.store(words + stored * word_stride + begin // WORD, word, mask=mask)
    scale += doubt(values, A, SHARE, B)
    tl.store(scales + stored * scale_stride + group, scale.to(scales.dtype.element_ty), mask=mask & first)
    if not WHOLE:
        code = tl.where(valid, code, MAGIC)
    octets = packed_octets(code, PART, L, BITS)
    first_byte = begin // 8 * BITS
    store_octets(octets, codes, stored * code_stride + first_byte, mask, (size - first_byte)[None, :], PART, BITS)


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
