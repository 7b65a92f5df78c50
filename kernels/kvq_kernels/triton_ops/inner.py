"""Products with codes of groups along the sum: scales and zero-points meet the sums over their groups.

Elements across the sum are the rows of a product here and query heads its columns (16, H), for then a thread needs the
scales of two rows for all it has. ``q`` are tuples of float16 (16, H), 16 elements of the sum each. Codes of a
symmetric group, its negative ones in two's complement, are read with 2^bits added to what they stand for, and -2^bits
times its scale is its zero-point.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.blocks import times
from kvq_kernels.triton_ops.levels import ASYMMETRIC, HYBRID, SYMMETRIC, add_signs, high_bytes, plain_level, sign_mask


@triton.jit
def inner_part(record, part, KEYS: tl.constexpr, GROUP: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr,
               STEP: tl.constexpr):  # fmt: skip
    """Where codes and grids of a part of a record begin (pointers to int16), the number of its first group, and of the
    first of that group's words of signs. Grids of keys lie token by token, those of values group by group."""
    if KEYS:
        return record + part * (STEP // 2), record + META // 2 + part * 128, 0, 0
    else:
        return record + part * (STEP // 2), record + META // 2, part * 64 // GROUP, part * 64 % GROUP // 32


@triton.jit
def element_of(row, KEYS: tl.constexpr):
    """Which of 16 elements across the sum a row of a product is: of values every second one, so that what a thread
    needs for its two rows, 8 apart, lies side by side. Keys stay in order, in which weights meet the values."""
    if KEYS:
        return row
    else:
        return row % 8 * 2 + row // 8


@triton.jit
def read_rows(codes, TILE: tl.constexpr, KEYS: tl.constexpr):
    """Words of a tile of cells: uint16 (16 rows, 16 along the sum)."""
    i = tl.arange(0, 16)
    return tl.load(codes.to(tl.pointer_type(tl.uint16)) + TILE * 256 + element_of(i, KEYS)[:, None] * 16 + i[None, :])


@triton.jit
def read_line(meta, at, KEYS: tl.constexpr):
    """Of 16 rows an int32, two float16 or a word of signs, ``at`` int16 behind ``meta``."""
    line = tl.load((meta + at).to(tl.pointer_type(tl.int32)) + tl.arange(0, 16))
    return line if KEYS else tl.reshape(tl.trans(tl.reshape(line, (8, 2))), (16,))


@triton.jit
def read_lines(meta, row, first: tl.constexpr, COLUMNS: tl.constexpr, WORDS: tl.constexpr, SECOND: tl.constexpr,
               KEYS: tl.constexpr):  # fmt: skip
    """Of 32 rows from element ``first`` across the sum on, the pairs of scales of two groups, which begin ``row`` int16
    behind ``meta``, and the first words of both: three pairs of int32 (16,), which one load brings, 16 bytes a thread.

    Fewer elements than threads would be loaded anew for every use, and not ahead of it."""
    line, i = tl.arange(0, 4), tl.arange(0, 32)
    # the fourth line is the first again, as is the third where there is no second group
    at = tl.where(line == 1, 1, tl.where(line == 2, 1 + WORDS if SECOND else 0, 0)) * COLUMNS
    place = (meta + row).to(tl.pointer_type(tl.int32)) + first + at[:, None] + i[None, :]
    if first + 32 <= COLUMNS:
        tile = tl.load(place)
    else:
        tile = tl.load(place, mask=(first + i < COLUMNS)[None, :], other=0)
    if KEYS:
        by_row = tl.permute(tl.reshape(tile, (2, 2, 2, 16)), (3, 2, 0, 1))
    else:
        by_row = tl.reshape(tl.permute(tl.reshape(tile, (2, 2, 2, 8, 2)), (4, 3, 2, 0, 1)), (16, 2, 2, 2))
    even, odd = tl.split(by_row)
    pairs, second = tl.split(even)
    one, _ = tl.split(odd)
    return tl.split(pairs), tl.split(one), tl.split(second)


@triton.jit
def half_of(pair, second):
    """The first or second float16 of int32: float32."""
    return ((pair >> (second * 16)) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def add_rows(codes, signs, places, q, part, SECOND: tl.constexpr, C: tl.constexpr, CELLS: tl.constexpr,
             CELL: tl.constexpr, ALL: tl.constexpr, BITS: tl.constexpr, MODE: tl.constexpr, KEYS: tl.constexpr,
             TERMS: tl.constexpr):  # fmt: skip
    """part + the codes of cell CELL of ALL, whose words are loaded once for all cells they hold, times the terms of
    cell C of CELLS. ``signs``, ``places`` and SECOND as add_signs asks for them."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    words = read_rows(codes, CELL // (16 // LOW), KEYS)
    extra = words
    if BITS == 3:
        extra = read_rows(codes + (ALL + 7) // 8 * 256, CELL // 16, KEYS)
    level = plain_level(words, high_bytes(words), extra, CELL, BITS)
    if MODE != ASYMMETRIC:
        level = add_signs(level, signs, places, SECOND, CELL * LOW % 8, BITS)
    for t in tl.static_range(TERMS):
        part = tl.dot(level, times(q[t * CELLS + C], C, CELL, LOW), part)
    return part


@triton.jit
def group_products(q, places, codes, signs, signed, meta, lines, S: tl.constexpr, G: tl.constexpr,
                   H: tl.constexpr, C: tl.constexpr, CELLS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
                   MODE: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
                   TERMS: tl.constexpr):  # fmt: skip
    """Codes of cells S across the sum times q over group G along it alone: (16, H). ``signs``: its first words of
    signs (16,), which lie ``lines`` behind ``meta``; ``signed``: all bits where they are that, else none."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    SPAN: tl.constexpr = GROUP // 16
    MAIN: tl.constexpr = C // (8 // LOW) * (8 // LOW)  # cells of the sum that come first, as BlockForm.main says
    FIRST: tl.constexpr = G * SPAN + S * MAIN
    REST: tl.constexpr = G * SPAN + CELLS // C * MAIN + S * (C - MAIN) - MAIN
    part = tl.zeros((16, H), tl.float32)
    above = signs
    for k in tl.static_range(SPAN):
        if G * SPAN + k < C:
            if MODE != ASYMMETRIC:
                if k % 2 == 0 and k > 0:
                    signs = read_line(meta, lines + k // 2 * (2 * COLUMNS), KEYS)
                if k % 2 == 0:
                    above = ~signs & signed
            part = add_rows(
                codes, above, places, q, part, k % 2, G * SPAN + k, C, FIRST + k if G * SPAN + k < MAIN else REST + k,
                CELLS, BITS, MODE, KEYS, TERMS,
            )  # fmt: skip
    return part


@triton.jit
def scaled_sums(part, found, scale, zero, sum, MODE: tl.constexpr):
    """found + part, sums over a group, times its scales, + its zero-points times what they meet: ``sum`` (8, H), of
    which all rows are the same."""
    found += part * (tl.abs(scale) if MODE == HYBRID else scale)[:, None]
    found += zero[:, None] * tl.reshape(tl.permute(tl.join(sum, sum), (2, 0, 1)), part.shape)
    return found


@triton.jit
def zero_points(word, scale, signed, BITS: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr):
    """Of words (16,) of zero-points, or of signs where ``signed`` has all bits set: what codes of 0 are, float32."""
    below = tl.abs(scale) * (-1.0 * (1 << BITS))  # of a symmetric group
    if MODE == SYMMETRIC:
        return below
    elif MODE == ASYMMETRIC:
        return half_of(word, 0) if HALF_ZERO else word.to(tl.float32, bitcast=True)
    elif HALF_ZERO:
        return tl.where(scale < 0, below, half_of(word, 0))
    else:
        return ((word & ~signed) | (below.to(tl.int32, bitcast=True) & signed)).to(tl.float32, bitcast=True)


@triton.jit
def half_zero_sums(q, sums, found, codes, meta, base, S: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
                   CELLS: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
                   KEYS: tl.constexpr, ROW: tl.constexpr, COLUMNS: tl.constexpr,
                   TERMS: tl.constexpr):  # fmt: skip
    """As inner_sums, of cells S of asymmetric groups whose zero-points are float16 and lie beside their scales."""
    for g in tl.static_range(GROUPS):
        pair = read_line(meta, (base + g) * (ROW // 2) + S * 32, KEYS)
        part = group_products(
            q, 0, codes, pair, pair, meta, 0, S, g, H, C, CELLS, BITS, GROUP, ASYMMETRIC, KEYS, COLUMNS, TERMS
        )
        found = scaled_sums(part, found, half_of(pair, 0), half_of(pair, 1), sums[g], ASYMMETRIC)
    return found


@triton.jit
def inner_sums(q, places, sums, one, two, codes, meta, base, skip, S: tl.constexpr, TWO: tl.constexpr,
               H: tl.constexpr, C: tl.constexpr, CELLS: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
               GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, KEYS: tl.constexpr,
               ROW: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """one, two (16, H) + cells S and, TWO, S + 1 across the sum times q (C cells along it), in GROUPS groups from
    number ``base`` on.

    ``places`` (16,) int32: where words of signs have 16 elements along the sum, as add_signs asks for them;
    ``sums`` (8, H): of q over each group, times codes of 1. ``skip``: words of signs that the part before has."""
    if MODE == ASYMMETRIC and HALF_ZERO:
        one = half_zero_sums(
            q, sums, one, codes, meta, base, S, H, C, CELLS, GROUPS, BITS, GROUP, KEYS, ROW, COLUMNS, TERMS
        )
        if TWO:
            two = half_zero_sums(
                q, sums, two, codes, meta, base, S + 1, H, C, CELLS, GROUPS, BITS, GROUP, KEYS, ROW, COLUMNS, TERMS
            )
    else:
        EVEN: tl.constexpr = KEYS or GROUP < 64
        BACK: tl.constexpr = 0 if TWO or S == 0 else 1  # of a last cell alone, so that no load reaches beyond the rows
        WORDS: tl.constexpr = 1 if MODE == ASYMMETRIC else GROUP // 32
        for g in tl.static_range(GROUPS):
            row = (base + g) // 2 * (ROW // 2)
            second = g % 2 if EVEN else base % 2
            if g % 2 == 0:
                pairs, first_words, second_words = read_lines(
                    meta, row, (S - BACK) * 16, COLUMNS, WORDS, g + 1 < GROUPS or (not EVEN and GROUP == 64), KEYS
                )
            if not EVEN:
                words = (
                    tl.where(second == 0, first_words[0], second_words[0]),
                    tl.where(second == 0, first_words[1], second_words[1]),
                )
            elif g % 2 == 0:
                words = first_words
            else:
                words = second_words
            lines = row + (1 + second * WORDS) * (COLUMNS * 2)
            for s in tl.static_range(2 if TWO else 1):
                word, pair = words[s + BACK], pairs[s + BACK]
                scale, signed = half_of(pair, second), sign_mask(pair, second, EVEN)
                if MODE == SYMMETRIC:
                    signed |= -1
                zero = zero_points(word, scale, signed, BITS, MODE, HALF_ZERO)
                signs, at = word, lines + (S + s) * 32
                if MODE != ASYMMETRIC and GROUP > 64 and not KEYS:
                    at += skip * (2 * COLUMNS)
                    signs = read_line(meta, at, KEYS)
                part = group_products(
                    q, places, codes, signs, signed, meta, at, S + s, g, H, C, CELLS, BITS, GROUP, MODE,
                    KEYS, COLUMNS, TERMS,
                )  # fmt: skip
                if s == 0:
                    one = scaled_sums(part, one, scale, zero, sums[g], MODE)
                else:
                    two = scaled_sums(part, two, scale, zero, sums[g], MODE)
    return one, two
