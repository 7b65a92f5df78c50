"""Where a record holds the grid of a group (kvq_kernels.blocks): for kernels that go through elements one by one."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.levels import ASYMMETRIC


@triton.jit
def cell_at(across, along, C: tl.constexpr, ACROSS: tl.constexpr, LOW: tl.constexpr):
    """Number of the cell that has an element of a part, which has C cells along the sum and ACROSS across it, as
    ``BlockForm.main`` says. Codes take LOW bits of a word."""
    MAIN: tl.constexpr = C // (8 // LOW) * (8 // LOW)
    row, c = across // 16, along // 16
    if MAIN == C:
        return row * C + c
    else:
        return tl.where(c < MAIN, row * MAIN + c, (ACROSS - 1) * MAIN + row * (C - MAIN) + c)


@triton.jit
def scale_at(record, group, other, COLUMNS: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr,
             INNER: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr):  # fmt: skip
    """Pointers to the scales (float16) of groups at elements ``other`` of the other dimension, of which there are
    COLUMNS. Groups along the sum have them in pairs: with the zero-point, or with the scale of the next group."""
    meta = record + META // 2
    if INNER and MODE == ASYMMETRIC and HALF_ZERO:
        at = meta + group * (ROW // 2) + other * 2
    elif INNER:
        at = meta + group // 2 * (ROW // 2) + other * 2 + group % 2
    else:
        at = meta + group * (ROW // 2) + other
    return at.to(tl.pointer_type(tl.float16))


@triton.jit
def word_at(record, group, other, COLUMNS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
            HALF_ZERO: tl.constexpr, INNER: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr):  # fmt: skip
    """Pointers (int16) to their zero-points, or to the first of their words of signs, each COLUMNS words before the
    next."""
    meta = record + META // 2
    if INNER and MODE == ASYMMETRIC and HALF_ZERO:
        return meta + group * (ROW // 2) + other * 2 + 1
    elif INNER:
        WORDS: tl.constexpr = 1 if MODE == ASYMMETRIC else GROUP // 32
        return meta + group // 2 * (ROW // 2) + (1 + group % 2 * WORDS) * (2 * COLUMNS) + other * 2
    else:
        return meta + group * (ROW // 2) + COLUMNS + other
