"""Products with the codes of one part of a block (kvq_kernels.blocks), which stay in their words.

``q`` are tuples of float16 (H, 16), a head a row, 16 elements of the sum each. Groups across the sum ("outer") scale
what the codes are multiplied with; groups along it ("inner") scale the sums of their own cells.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.levels import (
    ASYMMETRIC,
    HYBRID,
    SYMMETRIC,
    high_bytes,
    plain_level,
    signed_level,
)


@triton.jit
def spare_exponent(widest, BITS: tl.constexpr):
    """x for which numbers up to 2^x, times scales up to ``widest`` (a float32), times what places are made up for with
    (2^(8 - BITS) at most), are float16: values and keys of any size are multiplied as small ones are."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    return 7 + LOW - tl.ceil(tl.log2(tl.maximum(widest, 1.0)))


@triton.jit
def part_of(record, part, GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, BY_TOKEN: tl.constexpr,
            META: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Where codes, scales, zero-points and signs of a part of a record begin: four pointers to int16. A group of tokens
    longer than a part has its zero-point in front of all of its signs."""
    WIDE: tl.constexpr = 1 if MODE == ASYMMETRIC and HALF_ZERO else 2
    meta = record + META // 2
    if BY_TOKEN:
        others = meta + COLUMNS + part * (64 * WIDE)
        return record + part * (STEP // 2), meta + part * 64, others, others
    else:
        row = meta + part * 64 // GROUP * (ROW // 2)
        lines = row + COLUMNS + part * 64 % GROUP // 32 * (2 * COLUMNS)
        return record + part * (STEP // 2), row, row + COLUMNS, lines


@triton.jit
def read_cells(codes, TILE: tl.constexpr):
    """Words of a tile of cells: uint16 (16 along the sum, 16 across)."""
    i = tl.arange(0, 16)
    return tl.load(codes.to(tl.pointer_type(tl.uint16)) + TILE * 256 + i[None, :] * 16 + i[:, None])


@triton.jit
def further_bits(codes, words, TILE: tl.constexpr, CELLS: tl.constexpr, BITS: tl.constexpr):
    """Words with the third bits of codes, which follow the words of the others; ``words`` where there are none."""
    if BITS == 3:
        return read_cells(codes + (CELLS + 7) // 8 * 256, TILE)
    else:
        return words


@triton.jit
def read_signs(lines, AT: tl.constexpr, scale, MODE: tl.constexpr):
    """Signs of 32 elements along the sum for each of 16 across it: uint16 (16, 16), the even ones in even rows. Words
    of groups that are not symmetric are zero-points, and read as no signs."""
    half, i = tl.arange(0, 2), tl.arange(0, 16)
    found = tl.load(lines.to(tl.pointer_type(tl.uint16)) + AT * 2 + half[:, None] + i[None, :] * 2)
    if MODE == HYBRID:
        found = tl.where((scale < 0)[None, :], found, 0).to(tl.uint16)
    return tl.reshape(tl.broadcast_to(found[None, :, :], (8, 2, 16)), (16, 16))


@triton.jit
def outer_zeros(q, zeros, H: tl.constexpr, C: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
                ROW: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """Sums of q, less what it carries for its places, times zero-points: (H, 16), a column a group. Products of
    float16 numbers, and exact."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    i = tl.arange(0, 16)
    half = zeros.to(tl.pointer_type(tl.float16))
    found = tl.zeros((H, 16), tl.float32)
    for c in tl.static_range(C):
        zero = tl.load(half + (i % GROUPS)[None, :] * (ROW // 2) + (16 * c + i)[:, None])
        for t in tl.static_range(TERMS):
            vector = q[t * C + c] * (2.0 ** (((c * LOW) % 8) - 8 + LOW))
            found = tl.dot(vector, zero, found)
    return found


@triton.jit
def column(x, G: tl.constexpr):
    """Column G of x (H, 16)."""
    return tl.sum(tl.where((tl.arange(0, 16) == G)[None, :], x, 0.0), 1)


@triton.jit
def scaled(q, scales, c: tl.constexpr, G: tl.constexpr, H: tl.constexpr, C: tl.constexpr, ROW: tl.constexpr,
           TERMS: tl.constexpr):  # fmt: skip
    """Cell c of q times the scales of group G, in TERMS float16 that add up to it.

    Every head's row is loaded: the same 32 bytes, but as a tile that is copied 16 bytes at a time."""
    i = tl.arange(0, 16)
    at = scales.to(tl.pointer_type(tl.float16)) + G * (ROW // 2) + c * 16
    scale = tl.load(at + i[None, :] + tl.arange(0, H)[:, None] * 0)
    if TERMS == 1:
        return (q[c] * scale,)
    else:
        whole = (q[c].to(tl.float32) + q[C + c].to(tl.float32)) * scale.to(tl.float32)
        first = whole.to(tl.float16)
        return first, (whole - first.to(tl.float32)).to(tl.float16)


@triton.jit
def times(vector, C: tl.constexpr, CELL: tl.constexpr, LOW: tl.constexpr):
    """A cell that carries what place C asks for, as place CELL does."""
    if (C * LOW) % 8 == (CELL * LOW) % 8:
        return vector
    else:
        return vector * (2.0 ** (((C * LOW) % 8) - ((CELL * LOW) % 8)))


@triton.jit
def add_cell(vector, level, part, C: tl.constexpr, CELL: tl.constexpr, LOW: tl.constexpr):
    """part + the terms of cell C times the codes of cell CELL."""
    for t in tl.static_range(len(vector)):
        part = tl.dot(times(vector[t], C, CELL, LOW), level, part)
    return part


@triton.jit
def outer_sums(q, codes, scales, one, two, S: tl.constexpr, TWO: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
               C: tl.constexpr, CELLS: tl.constexpr, BITS: tl.constexpr, ROW: tl.constexpr,
               TERMS: tl.constexpr):  # fmt: skip
    """q (C cells) times the scales of group G times cells S across the sum, added to ``one`` (H, 16), and TWO: times
    cells S + 1 of the same group, added to ``two``."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    EACH: tl.constexpr = 16 // LOW
    for c in tl.static_range(C):
        asked = scaled(q, scales, c, G, H, C, ROW, TERMS)
        if (S * C + c) % EACH == 0 or c == 0:
            word = read_cells(codes, (S * C + c) // EACH)
            high = high_bytes(word)
        if (S * C + c) % 16 == 0 or c == 0:
            extra = further_bits(codes, word, (S * C + c) // 16, CELLS, BITS)
        one = add_cell(asked, plain_level(word, high, extra, S * C + c, BITS), one, c, S * C + c, LOW)
        if TWO:
            if (S * C + C + c) % EACH == 0 or c == 0:
                other = read_cells(codes, (S * C + C + c) // EACH)
                upper = high_bytes(other)
            if (S * C + C + c) % 16 == 0 or c == 0:
                further = further_bits(codes, other, (S * C + C + c) // 16, CELLS, BITS)
            two = add_cell(asked, plain_level(other, upper, further, S * C + C + c, BITS), two, c, S * C + C + c, LOW)
    return one, two


@triton.jit
def inner_grid(scales, others, S: tl.constexpr, G: tl.constexpr, ROW: tl.constexpr, MODE: tl.constexpr,
               HALF_ZERO: tl.constexpr):  # fmt: skip
    """Scales and zero-points (16,) of group G for the elements of cells S; scales of symmetric groups are negative in a
    hybrid tensor."""
    i = tl.arange(0, 16)
    scale = tl.load((scales + G * (ROW // 2)).to(tl.pointer_type(tl.float16)) + S * 16 + i)
    line = others + G * (ROW // 2)
    if MODE == ASYMMETRIC:
        if HALF_ZERO:
            zero = tl.load(line.to(tl.pointer_type(tl.float16)) + S * 16 + i).to(tl.float32)
        else:
            zero = tl.load(line.to(tl.pointer_type(tl.float32)) + S * 16 + i)
    elif MODE == HYBRID:
        word = tl.load(line.to(tl.pointer_type(tl.int32)) + S * 16 + i)
        if HALF_ZERO:
            zero = (word & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        else:
            zero = word.to(tl.float32, bitcast=True)
        zero = tl.where(scale < 0, 0.0, zero)
    else:
        zero = tl.zeros((16,), tl.float32)
    return scale, zero


@triton.jit
def one_cell(q, C: tl.constexpr, CELLS: tl.constexpr, TERMS: tl.constexpr):
    """The terms of cell C."""
    if TERMS == 1:
        return (q[C],)
    else:
        return q[C], q[CELLS + C]


@triton.jit
def group_sums(q, codes, lines, scale, S: tl.constexpr, G: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
               CELLS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr, ROW: tl.constexpr,
               COLUMNS: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """q times cells S across the sum, over group G along it alone, of codes with their signs: (H, 16)."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    EACH: tl.constexpr = 16 // LOW
    SPAN: tl.constexpr = GROUP // 16
    BEGIN: tl.constexpr = S * C + G * SPAN
    half = tl.arange(0, 16)[:, None] // 2 + tl.zeros((16, 16), tl.int32)
    part = tl.zeros((H, 16), tl.float32)
    for k in tl.static_range(SPAN):
        if G * SPAN + k < C:
            if (BEGIN + k) % EACH == 0 or k == 0:
                word = read_cells(codes, (BEGIN + k) // EACH)
                high = high_bytes(word)
            if (BEGIN + k) % 16 == 0 or k == 0:
                extra = further_bits(codes, word, (BEGIN + k) // 16, CELLS, BITS)
            if MODE == ASYMMETRIC:
                level = plain_level(word, high, extra, BEGIN + k, BITS)
            else:
                if k % 2 == 0:
                    signs = read_signs(lines, G * (ROW // 4) + k // 2 * COLUMNS + S * 16, scale, MODE)
                level = signed_level(word, high, extra, signs, (15 - 8 * (k % 2) - half).to(tl.uint16), BEGIN + k, BITS)
            part = add_cell(one_cell(q, G * SPAN + k, C, TERMS), level, part, G * SPAN + k, BEGIN + k, LOW)
    return part


@triton.jit
def inner_sums(q, sums, undo, codes, scales, others, lines, S: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
               CELLS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
               HALF_ZERO: tl.constexpr, ROW: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """Products of q (C cells along the sum) with cells S across it, in groups along the sum: (H, 16).

    ``undo`` (H,): the units of sums over codes; ``sums``: of q over each group, in the units of the result."""
    SPAN: tl.constexpr = GROUP // 16
    found = tl.zeros((H, 16), tl.float32)
    moved = tl.zeros((H, 16), tl.float32)
    for g in tl.static_range((C + SPAN - 1) // SPAN):
        scale, zero = inner_grid(scales, others, S, g, ROW, MODE, HALF_ZERO)
        part = group_sums(q, codes, lines, scale, S, g, H, C, CELLS, BITS, GROUP, MODE, ROW, COLUMNS, TERMS)
        if MODE == HYBRID:
            scale = tl.abs(scale)
        found += part * scale.to(tl.float32)[None, :]
        if MODE != SYMMETRIC:
            moved += zero[None, :] * sums[g][:, None]
    return found * undo[:, None] + moved
