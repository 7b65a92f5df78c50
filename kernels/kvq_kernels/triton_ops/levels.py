"""Codes of a block's words as float16 numbers without taking them out: one mask for a pair, and what it costs in powers
of two is made up for by what they are multiplied with.

A code at bit s of a float16's pattern is a subnormal number, code * 2^(s - 24), and tensor cores multiply subnormals
exactly. Pairs of words are handled as one register, which only assembly says: plain Triton takes them one by one. Its
interpreter runs no assembly and gets the same from plain operations.
"""

import os

import triton
import triton.language as tl

ASYMMETRIC = tl.constexpr(0)
SYMMETRIC = tl.constexpr(1)
HYBRID = tl.constexpr(2)
PAIRS = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
# Fewest columns of a product: Triton 3.4, which torch 2.8 ships, has none of 8.
NARROW = tl.constexpr(16 if triton.__version__.startswith("3.4.") else 8)


@triton.jit
def high_bytes(words):
    """Words (uint16) with their high byte in the low one; what is above is not defined."""
    if PAIRS:
        return tl.inline_asm_elementwise("shr.u32 $0, $1, 8;", "=r,r", [words], dtype=tl.uint16, is_pure=True, pack=2)
    else:
        return words >> 8


@triton.jit
def picked(words, mask):
    """words & mask (uint16, of which those that lie beside each other are handled together) as float16 numbers."""
    if PAIRS:
        return tl.inline_asm_elementwise(
            "and.b32 $0, $1, $2;", "=r,r,r", [words, mask], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        return (words & mask).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def sign_mask(pair, second, KNOWN: tl.constexpr):
    """The sign of the first or second float16 of int32 in all of 32 bits, where KNOWN which when it is compiled: no
    predicate has to be kept then, into which compilers make what they see of it."""
    if PAIRS and KNOWN:
        if second == 0:
            found = tl.inline_asm_elementwise("prmt.b32 $0, $1, $1, 0x9999;", "=r,r", [pair], tl.int32, True, 1)
        else:
            found = tl.inline_asm_elementwise("prmt.b32 $0, $1, $1, 0xbbbb;", "=r,r", [pair], tl.int32, True, 1)
        return found
    else:
        return (pair << (16 - second * 16)) >> 31


@triton.jit
def sign_place(element):
    """Where a word of signs (kvq_kernels.signs) has the bit of element 0 to 31."""
    of_eight = element // 2 % 2 + element // 4 % 2 * 4 + element // 8 % 2 * 8
    return of_eight + element // 16 * 2 + element % 2 * 16


@triton.jit
def add_signs(level, above, places, SECOND: tl.constexpr, SHIFT: tl.constexpr, BITS: tl.constexpr):
    """Codes (16, 16) at bit SHIFT + 2^BITS where ``above`` (16,) int32 has a bit for it. places (16,) int32:
    ``sign_place`` of the first 16 elements, of both of a pair that of the even one; SECOND: these are the second 16."""
    words = above[:, None] + tl.zeros((16, 16), tl.int32)
    if PAIRS:
        # what a thread has of both elements of a pair comes to where it is wanted by one turn of the word
        turn = (places + (2 * SECOND - SHIFT - BITS))[None, :] + tl.zeros((16, 16), tl.int32)
        bits = tl.inline_asm_elementwise(
            "{ .reg .b32 t; shf.r.wrap.b32 t, $1, $1, $3; and.b32 $0, t, $5; }", "=r,r,r,r,r,r",
            [words, turn, tl.full((16, 16), 1 << (SHIFT + BITS), tl.uint16)], tl.float16, True, 2,
        )  # fmt: skip
        return tl.inline_asm_elementwise("or.b32 $0, $1, $2;", "=r,r,r", [level, bits], tl.float16, True, 2)
    else:
        half = (tl.arange(0, 16) % 2 * 16)[None, :]
        bit = ((words >> (places[None, :] + 2 * SECOND + half)) & 1) << (SHIFT + BITS)
        return (level.to(tl.uint16, bitcast=True) | bit.to(tl.uint16)).to(tl.float16, bitcast=True)


@triton.jit
def turned(x, H: tl.constexpr):
    """x, float16 (16, H) as a product leaves it, for a product that sums over its rows: threads exchange what is in a
    block of 8 x 8 by one instruction, which puts columns where rows were. What the shapes say after it undoes that, so
    that x is what it was."""
    if PAIRS:
        blocks = tl.inline_asm_elementwise(
            "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r", [x], dtype=tl.float16, is_pure=True, pack=2
        )
        return tl.reshape(tl.permute(tl.reshape(blocks, (2, 8, H // 8, 8)), (0, 3, 2, 1)), (16, H))
    else:
        return x


@triton.jit
def masked(words, MASK: tl.constexpr):
    """words & MASK as the bits of float16 numbers."""
    return picked(words, tl.full(words.shape, MASK, tl.uint16))


@triton.jit
def with_bits(words, MASK: tl.constexpr, more, BY: tl.constexpr, BIT: tl.constexpr):
    """(words & MASK) | bit BIT of words ``more`` shifted left by BY, as the bits of float16 numbers."""
    if PAIRS:
        mask, bit = tl.full(words.shape, MASK, tl.uint16), tl.full(words.shape, BIT, tl.uint16)
        if BY >= 0:
            by = tl.full(words.shape, BY, tl.uint16)
            return tl.inline_asm_elementwise(
                "{ .reg .b32 n, t; and.b32 n, $4, 31; shl.b32 t, $2, n; and.b32 t, t, $5; and.b32 $0, $1, $3; "
                "or.b32 $0, $0, t; }",
                "=&r,r,r,r,r,r", [words, more, mask, by, bit], dtype=tl.float16, is_pure=True, pack=2,
            )  # fmt: skip
        else:
            by = tl.full(words.shape, -BY, tl.uint16)
            return tl.inline_asm_elementwise(
                "{ .reg .b32 n, t; and.b32 n, $4, 31; shr.u32 t, $2, n; and.b32 t, t, $5; and.b32 $0, $1, $3; "
                "or.b32 $0, $0, t; }",
                "=&r,r,r,r,r,r", [words, more, mask, by, bit], dtype=tl.float16, is_pure=True, pack=2,
            )  # fmt: skip
    else:
        moved = (more << BY) if BY >= 0 else (more >> -BY)
        return ((words & MASK) | (moved & BIT)).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def plain_level(words, high, extra, CELL: tl.constexpr, BITS: tl.constexpr):
    """Codes of a cell times 2^(their lowest bit - 24). ``high``: high_bytes of the words; ``extra``: the third bits."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    SHIFT: tl.constexpr = (CELL * LOW) % 8
    MASK: tl.constexpr = ((1 << LOW) - 1) << SHIFT
    if BITS == 3:
        BIT: tl.constexpr = SHIFT + 2
        if (CELL * LOW) % 16 >= 8:
            return with_bits(high, MASK, extra, BIT - CELL % 16, 1 << BIT)
        else:
            return with_bits(words, MASK, extra, BIT - CELL % 16, 1 << BIT)
    elif (CELL * LOW) % 16 >= 8:
        return masked(high, MASK)
    else:
        return masked(words, MASK)
