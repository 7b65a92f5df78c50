"""What one turn over 64 tokens of a block does in attention: scores of queries, softmax, weighted sums of values."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.blocks import column, inner_sums, outer_sums, outer_zeros, part_of


@triton.jit
def read_query(q, norms, row, mask, dim, C: tl.constexpr, HAS_NORMS: tl.constexpr):
    """Rows of q (times norms) as C cells (H, 16) float32, and the exponent of a power of two above each."""
    i = tl.arange(0, 16)
    largest = tl.zeros(row.shape, tl.float32)
    cells = ()
    for c in tl.static_range(C):
        channel = c * 16 + i
        inside = mask[:, None] & (channel < dim)[None, :]
        cell = tl.load(q + row[:, None] * dim + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        if HAS_NORMS:
            cell *= tl.load(norms + channel, mask=channel < dim, other=0.0).to(tl.float32)[None, :]
        cells = cells + (cell,)
        largest = tl.maximum(largest, tl.max(tl.abs(cell), 1))
    return cells, tl.ceil(tl.log2(tl.maximum(largest, 1e-30)))


@triton.jit
def as_terms(cells, power, C: tl.constexpr, BITS: tl.constexpr, TERMS: tl.constexpr):
    """Cells times 2^power (a number a row), and what their places ask for, as TERMS * C float16 that add up to them."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    first = ()
    rest = ()
    for c in tl.static_range(C):
        whole = cells[c] * (tl.exp2(power) * 2.0 ** (8 - LOW - (c * LOW) % 8))[:, None]
        part = whole.to(tl.float16)
        first = first + (part,)
        if TERMS == 2:
            rest = rest + ((whole - part.to(tl.float32)).to(tl.float16),)
    return first + rest


@triton.jit
def as_sums(cells, N: tl.constexpr):
    """The same float16 numbers as tensor cores leave their sums: scaling them then needs no exchange of registers."""
    i = tl.arange(0, 16)
    one = (i[:, None] == i[None, :]).to(tl.float16)
    found = ()
    for n in tl.static_range(N):
        found = found + (tl.dot(cells[n], one).to(tl.float16),)
    return found


@triton.jit
def cell_sums(cells, factor, C: tl.constexpr, GROUP: tl.constexpr):
    """Sums of the cells (H, 16) over the groups along them, times a factor."""
    SPAN: tl.constexpr = GROUP // 16
    GROUPS: tl.constexpr = (C + SPAN - 1) // SPAN
    sums = ()
    for g in tl.static_range(GROUPS):
        found = tl.sum(cells[g * SPAN], 1)
        for k in tl.static_range(1, SPAN):
            if g * SPAN + k < C:
                found += tl.sum(cells[g * SPAN + k], 1)
        sums = sums + (found * factor,)
    return sums


@triton.jit
def part_scores(q, sums, undo, whole, record, part, H: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr,
                GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, INNER: tl.constexpr,
                META: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """q times 64 keys of a block: 4 tensors (H, 16). ``undo`` and ``whole`` (H,): the units of sums over codes and over
    zero-points."""
    COLUMNS: tl.constexpr = 128 if INNER else C * 16
    codes, scales, others, lines = part_of(record, part, GROUP, MODE, HALF_ZERO, INNER, META, ROW, STEP, COLUMNS)
    scores = ()
    if INNER:
        for s in tl.static_range(4):
            found = inner_sums(
                q, sums, undo, codes, scales, others, lines, s, H, C, C * 4, BITS, GROUP, MODE, HALF_ZERO, ROW, COLUMNS,
                TERMS,
            )  # fmt: skip
            scores = scores + (found,)
    else:
        GROUPS: tl.constexpr = 64 // GROUP if GROUP < 64 else 1
        TWO: tl.constexpr = GROUP >= 32
        moved = outer_zeros(q, others, H, C, GROUPS, BITS, ROW, TERMS)
        for s in tl.static_range(0, 4, 2 if TWO else 1):
            one, two = outer_sums(
                q, codes, scales, tl.zeros((H, 16), tl.float32), tl.zeros((H, 16), tl.float32), s, TWO, s * 16 // GROUP,
                H, C, C * 4, BITS, ROW, TERMS,
            )  # fmt: skip
            zero = (column(moved, s * 16 // GROUP) * whole)[:, None]
            scores = scores + (one * undo[:, None] + zero,)
            if TWO:
                scores = scores + (two * undo[:, None] + zero,)
    return scores


@triton.jit
def softmax_step(scores, top, total, spare, H: tl.constexpr):
    """Running softmax in base 2 over 4 tensors (H, 16): weights, which end at 2^spare, the new top and total, and what
    older sums are multiplied by."""
    best = scores[0]
    for s in tl.static_range(1, 4):
        best = tl.maximum(best, scores[s])
    higher = tl.maximum(top, tl.max(best, 1) - spare)
    fade = tl.exp2(top - higher)
    sums = tl.zeros((H, 16), tl.float32)
    weights = ()
    for s in tl.static_range(4):
        weight = tl.exp2(scores[s] - higher[:, None])
        sums += weight
        weights = weights + (weight,)
    return weights, higher, total * fade + tl.sum(sums, 1), fade


@triton.jit
def part_values(weights, acc, moved, fade, record, part, H: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr,
                GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, INNER: tl.constexpr,
                META: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """weights, 4 tensors (H, 16), times 64 values of a block, added to acc * fade, C tensors (H, 16), and to moved *
    fade, the sums of zero-points of groups across the sum. acc of those groups is in units of 2^(LOW + 16)."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    SPAN: tl.constexpr = GROUP // 16
    COLUMNS: tl.constexpr = C * 16 if INNER else 128
    codes, scales, others, lines = part_of(record, part, GROUP, MODE, HALF_ZERO, not INNER, META, ROW, STEP, COLUMNS)
    p = as_terms(weights, tl.zeros((H,), tl.float32), 4, BITS, TERMS)
    made = ()
    if INNER:
        sums = cell_sums(weights, 1.0, 4, GROUP)
        undo = tl.full((H,), 2.0 ** (16 + LOW), tl.float32)
        for s in tl.static_range(C):
            found = inner_sums(
                p, sums, undo, codes, scales, others, lines, s, H, 4, C * 4, BITS, GROUP, MODE, HALF_ZERO, ROW, COLUMNS,
                TERMS,
            )  # fmt: skip
            made = made + (acc[s] * fade[:, None] + found,)
    else:
        moved = moved * fade[:, None] + outer_zeros(p, others, H, 4, (C + SPAN - 1) // SPAN, BITS, ROW, TERMS)
        for s in tl.static_range(0, C, 2 if SPAN > 1 else 1):
            one = acc[s] * fade[:, None]
            if SPAN > 1 and s + 1 < C:
                two = acc[s + 1] * fade[:, None]
                one, two = outer_sums(p, codes, scales, one, two, s, True, s // SPAN, H, 4, C * 4, BITS, ROW, TERMS)
                made = made + (one, two)
            else:
                one, _ = outer_sums(p, codes, scales, one, one, s, False, s // SPAN, H, 4, C * 4, BITS, ROW, TERMS)
                made = made + (one,)
    return made, moved


@triton.jit
def empty_cells(H: tl.constexpr, C: tl.constexpr):
    """C tensors (H, 16) of zeros."""
    cells = ()
    for _ in tl.static_range(C):
        cells = cells + (tl.zeros((H, 16), tl.float32),)
    return cells


@triton.jit
def store_cells(acc_out, acc, moved, at, mask, dim, C: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
                INNER: tl.constexpr):  # fmt: skip
    """What part_values added up, as rows ``at`` of (rows, dim)."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    i = tl.arange(0, 16)
    for s in tl.static_range(C):
        found = acc[s]
        if not INNER:
            found = found * (2.0 ** (16 + LOW)) + column(moved, s * 16 // GROUP)[:, None]
        channel = s * 16 + i
        tl.store(acc_out + at[:, None] * dim + channel[None, :], found, mask=mask[:, None] & (channel < dim)[None, :])
