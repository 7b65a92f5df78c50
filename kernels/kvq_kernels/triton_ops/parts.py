"""What one turn over 64 tokens of a block does in attention: scores of queries, softmax, weighted sums of values.

Scores and weights are 4 tensors of 16 tokens, with a head a row (H, 16), or BY_HEAD a head a column (16, H), as values
are read. Sums over codes are in units of 2^-(16 + LOW) of what they stand for.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.blocks import column, group_columns, outer_part, outer_sums, outer_zeros, read_scales
from kvq_kernels.triton_ops.inner import element_of, inner_part, inner_sums
from kvq_kernels.triton_ops.levels import NARROW, turned


@triton.jit
def beside(x, BY_HEAD: tl.constexpr):
    """A number for each head beside what is read with a head a row, or a column."""
    if BY_HEAD:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def rounded(x):
    """x (float32) to the 11 bits of a float16, whatever its size."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & -8192
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def read_query(q, norms, row, mask, dim, C: tl.constexpr, HAS_NORMS: tl.constexpr, TERMS: tl.constexpr,
               BY_HEAD: tl.constexpr):  # fmt: skip
    """Rows of q (times norms) as C cells float32, and the exponent of a power of two above each. With norms and one
    term they are rounded here, and for the tokens outside of blocks alike."""
    i = tl.arange(0, 16)
    largest = tl.zeros(row.shape, tl.float32)
    cells = ()
    for c in tl.static_range(C):
        channel = c * 16 + i
        inside = beside(mask, BY_HEAD) & beside(channel < dim, not BY_HEAD)
        cell = tl.load(q + beside(row * dim, BY_HEAD) + beside(channel, not BY_HEAD), mask=inside, other=0.0)
        cell = cell.to(tl.float32)
        if HAS_NORMS:
            norm = tl.load(norms + channel, mask=channel < dim, other=0.0).to(tl.float32)
            cell *= beside(norm, not BY_HEAD)
            if TERMS == 1:
                cell = rounded(cell)
        cells = cells + (cell,)
        largest = tl.maximum(largest, tl.max(tl.abs(cell), 0 if BY_HEAD else 1))
    return cells, tl.ceil(tl.log2(tl.maximum(largest, 1e-30)))


@triton.jit
def as_terms(cells, N: tl.constexpr, TERMS: tl.constexpr, FIRST: tl.constexpr = 0):
    """N cells from FIRST on as TERMS * N float16 that add up to them."""
    first = ()
    rest = ()
    for c in tl.static_range(FIRST, FIRST + N):
        part = cells[c].to(tl.float16)
        first = first + (part,)
        if TERMS == 2:
            rest = rest + ((cells[c] - part.to(tl.float32)).to(tl.float16),)
    return first + rest


@triton.jit
def placed(cells, power, C: tl.constexpr, BITS: tl.constexpr, BY_HEAD: tl.constexpr):
    """Cells times 2^power (a number a head), and what their places ask for."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    found = ()
    for c in tl.static_range(C):
        found = found + (cells[c] * beside(tl.exp2(power + (8 - LOW - (c * LOW) % 8)), BY_HEAD),)
    return found


@triton.jit
def as_operands(cells, H: tl.constexpr):
    """Float16 (16, H), as products leave them, for products that sum over their rows."""
    found = ()
    for n in tl.static_range(len(cells)):
        found = found + (turned(cells[n], H),)
    return found


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
def cell_sums(q, H: tl.constexpr, C: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
              TERMS: tl.constexpr):  # fmt: skip
    """Sums of q, C cells (16, H), over the groups along them, as products with codes of 1: tensors (8, H) of rows that
    are the same."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    SPAN: tl.constexpr = GROUP // 16
    sums = ()
    for g in tl.static_range(GROUPS):
        found = tl.zeros((16, H), tl.float32)
        for k in tl.static_range(SPAN):
            if g * SPAN + k < C:
                one = tl.full((16, 16), 2.0 ** (((g * SPAN + k) * LOW) % 8 - 24), tl.float16)
                for t in tl.static_range(TERMS):
                    found = tl.dot(one, q[t * C + g * SPAN + k], found)
        sums = sums + (tl.split(tl.permute(tl.reshape(found, (2, 8, H)), (1, 2, 0)))[0],)
    return sums


@triton.jit
def part_scores(q, places, sums, record, part, H: tl.constexpr, C: tl.constexpr, BY_HEAD: tl.constexpr,
                BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr,
                INNER: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr,
                TERMS: tl.constexpr):  # fmt: skip
    """q times 64 keys of a block: 4 tensors."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    scores = ()
    if INNER:
        codes, meta, base, skip = inner_part(record, part, True, GROUP, META, ROW, STEP)
        empty = tl.zeros((16, H), tl.float32)
        for s in tl.static_range(0, 4, 2):
            one, two = inner_sums(
                q, places, sums, empty, empty, codes, meta, base, skip, s, True, H, C, C * 4,
                (C * 16 + GROUP - 1) // GROUP, BITS, GROUP, MODE, HALF_ZERO, True, ROW, 128, TERMS,
            )  # fmt: skip
            scores = scores + ((one, two) if BY_HEAD else (tl.trans(one), tl.trans(two)))
    else:
        TWO: tl.constexpr = GROUP >= 32
        GROUPS: tl.constexpr = 64 // GROUP if GROUP < 64 else 1
        codes, scales, zeros = outer_part(record, part, True, GROUP, META, ROW, STEP, C * 16)
        moved, _ = outer_zeros(q, zeros, tl.zeros((H, NARROW), tl.float32), 0, C, GROUPS, BITS, ROW, TERMS, False)
        moved *= 2.0 ** -(16 + LOW)
        WIDE: tl.constexpr = C if C <= 2 else 4 if C <= 4 else 8 if C <= 8 else 16
        scale = read_scales(scales, GROUPS, WIDE, ROW)
        for s in tl.static_range(0, 4, 2 if TWO else 1):
            zero = group_columns(moved, s * 16 // GROUP, GROUPS, H)
            one, two = outer_sums(q, codes, scale, zero, zero, s, TWO, s * 16 // GROUP, C, WIDE, C * 4, BITS, TERMS)
            scores = scores + (tl.trans(one) if BY_HEAD else one,)
            if TWO:
                scores = scores + (tl.trans(two) if BY_HEAD else two,)
    return scores


@triton.jit
def softmax_step(scores, undo, top, spare, BITS: tl.constexpr, BY_HEAD: tl.constexpr):
    """Running softmax in base 2 over tensors of scores, 4 a part, of which ``undo`` is the unit: weights, which end at
    2^spare and carry what the places of values of so many bits ask for, the new top, and what older sums are multiplied
    by."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    best = scores[0]
    for s in tl.static_range(1, len(scores)):
        best = tl.maximum(best, scores[s])
    higher = tl.maximum(top, tl.max(best, 0 if BY_HEAD else 1) * undo - spare)
    weights = ()
    for s in tl.static_range(len(scores)):
        less = higher - (8 - LOW - (s % 4 * LOW) % 8)
        weights = weights + (tl.exp2(scores[s] * beside(undo, BY_HEAD) - beside(less, BY_HEAD)),)
    return weights, higher, tl.exp2(top - higher)


@triton.jit
def faded(acc, moved, total, fade, BY_HEAD: tl.constexpr):
    """Sums so far, as part_values has them, times what is left of them under a higher top."""
    found = ()
    for c in tl.static_range(len(acc)):
        found = found + (acc[c] * beside(fade, BY_HEAD),)
    return found, moved if BY_HEAD else moved * fade[:, None], total * beside(fade, BY_HEAD)


@triton.jit
def part_values(weights, places, acc, moved, total, record, part, FIRST: tl.constexpr, TURN: tl.constexpr,
                H: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
                HALF_ZERO: tl.constexpr, INNER: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr,
                STEP: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """4 tensors of weights, from FIRST on, times 64 values of a block, added to acc, C tensors, their sums, to total,
    and of groups across the sum the sums of zero-points, to moved. TURN: weights are as products leave them."""
    SPAN: tl.constexpr = GROUP // 16
    p = as_terms(weights, 4, TERMS, FIRST)
    made = ()
    if INNER:
        if TURN:
            p = as_operands(p, H)
        GROUPS: tl.constexpr = 64 // GROUP if GROUP < 64 else 1
        codes, meta, base, skip = inner_part(record, part, False, GROUP, META, ROW, STEP)
        sums = cell_sums(p, H, 4, GROUPS, BITS, GROUP, TERMS)
        for g in tl.static_range(GROUPS):
            total += sums[g]
        for s in tl.static_range(0, C, 2):
            one, two = inner_sums(
                p, places, sums, acc[s], acc[s + 1 if s + 1 < C else s], codes, meta, base, skip, s, s + 1 < C, H, 4,
                C * 4, GROUPS, BITS, GROUP, MODE, HALF_ZERO, False, ROW, C * 16, TERMS,
            )  # fmt: skip
            made = made + ((one, two) if s + 1 < C else (one,))
    else:
        codes, scales, zeros = outer_part(record, part, False, GROUP, META, ROW, STEP, 128)
        GROUPS: tl.constexpr = (C + SPAN - 1) // SPAN
        moved, total = outer_zeros(p, zeros, moved, total, 4, GROUPS, BITS, ROW, TERMS, True)
        scale = read_scales(scales, GROUPS, 4, ROW)
        for s in tl.static_range(0, C, 2 if SPAN > 1 else 1):
            one, two = outer_sums(
                p, codes, scale, acc[s], acc[s + 1 if s + 1 < C else s], s, SPAN > 1 and s + 1 < C, s // SPAN, 4, 4,
                C * 4, BITS, TERMS,
            )  # fmt: skip
            made = made + ((one, two) if SPAN > 1 and s + 1 < C else (one,))
    return made, moved, total


@triton.jit
def empty_cells(H: tl.constexpr, C: tl.constexpr, BY_HEAD: tl.constexpr):
    """C tensors of zeros."""
    cells = ()
    for _ in tl.static_range(C):
        cells = cells + (tl.zeros((16, H) if BY_HEAD else (H, 16), tl.float32),)
    return cells


@triton.jit
def store_cells(acc_out, total_out, acc, moved, total, at, mask, dim, C: tl.constexpr, BITS: tl.constexpr,
                GROUP: tl.constexpr, INNER: tl.constexpr):  # fmt: skip
    """What part_values added up, as rows ``at`` of (rows, dim) and of (rows,)."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    UNIT: tl.constexpr = 2.0 ** (16 + LOW)
    i = tl.arange(0, 16)
    for s in tl.static_range(C):
        found = acc[s] * UNIT
        if not INNER:
            found += column(moved, s * 16 // GROUP)[:, None]
        channel = s * 16 + element_of(i, not INNER)
        inside = beside(mask, INNER) & beside(channel < dim, not INNER)
        tl.store(acc_out + beside(at * dim, INNER) + beside(channel, not INNER), found, mask=inside)
    if INNER:
        tl.store(total_out + at, tl.max(total, 0) * UNIT, mask=mask)
    else:
        tl.store(total_out + at, tl.max(total, 1), mask=mask)
