"""What one turn over 64 tokens of a block does in attention: scores of queries, softmax, weighted sums of values.

Query heads are the columns of all products, up to 8 or 16: scores and weights are tensors (16, H) of 16 tokens each,
sums of values (16, H) of 16 channels. Sums over codes are in units of 2^-(16 + LOW) of what they stand for.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.blocks import group_zeros, outer_part, outer_sums, outer_zeros, read_scales, row_of, sums_of
from kvq_kernels.triton_ops.inner import element_of, inner_part, inner_sums
from kvq_kernels.triton_ops.levels import turned


@triton.jit
def rounded(x):
    """x (float32) to the 11 bits of a float16, whatever its size."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & -8192
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def read_query(q, norms, head, mask, dim, C: tl.constexpr, HAS_NORMS: tl.constexpr, TERMS: tl.constexpr):
    """Rows of q (times norms) as C cells float32 (16, H), and the exponent of a power of two above each. With norms and
    one term they are rounded here, and for the tokens outside of blocks alike."""
    i = tl.arange(0, 16)
    largest = tl.zeros(head.shape, tl.float32)
    cells = ()
    for c in tl.static_range(C):
        channel = c * 16 + i
        inside = mask[None, :] & (channel < dim)[:, None]
        cell = tl.load(q + (head * dim)[None, :] + channel[:, None], mask=inside, other=0.0).to(tl.float32)
        if HAS_NORMS:
            cell *= tl.load(norms + channel, mask=channel < dim, other=0.0).to(tl.float32)[:, None]
            if TERMS == 1:
                cell = rounded(cell)
        cells = cells + (cell,)
        largest = tl.maximum(largest, tl.max(tl.abs(cell), 0))
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
def placed(cells, power, C: tl.constexpr, BITS: tl.constexpr):
    """Cells times 2^power (a number a head), and what their places ask for."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    found = ()
    for c in tl.static_range(C):
        found = found + (cells[c] * tl.exp2(power + (8 - LOW - (c * LOW) % 8))[None, :],)
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
    """The same float16 numbers as tensor cores leave their sums: scaling what ``as_operands`` makes of them then needs
    no exchange of registers."""
    i = tl.arange(0, 16)
    one = (i[:, None] == i[None, :]).to(tl.float16)
    found = ()
    for n in tl.static_range(N):
        found = found + (tl.dot(one, cells[n]).to(tl.float16),)
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
def part_scores(q, places, sums, record, part, H: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr,
                GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, INNER: tl.constexpr,
                META: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """q times 64 keys of a block: 4 tensors."""
    scores = ()
    if INNER:
        codes, meta, base, skip = inner_part(record, part, True, GROUP, META, ROW, STEP)
        empty = tl.zeros((16, H), tl.float32)
        for s in tl.static_range(0, 4, 2):
            scores = scores + inner_sums(
                q, places, sums, empty, empty, codes, meta, base, skip, s, True, H, C, C * 4,
                (C * 16 + GROUP - 1) // GROUP, BITS, GROUP, MODE, HALF_ZERO, True, ROW, 128, TERMS,
            )  # fmt: skip
    else:
        SPAN: tl.constexpr = GROUP // 16 if GROUP < 64 else 4
        WIDE: tl.constexpr = C if C <= 2 else 4 if C <= 4 else 8 if C <= 8 else 16
        codes, scales, zeros = outer_part(record, part, True, GROUP, META, ROW, STEP, C * 16)
        scale = read_scales(scales, 4 // SPAN, WIDE, ROW)
        zero = group_zeros(q, zeros, 4 // SPAN, H, C, BITS, ROW, TERMS)
        for s in tl.static_range(0, 4, 2):
            scores = scores + outer_sums(
                q, codes, scale, zero[s // SPAN], zero[(s + 1) // SPAN], s, True, s // SPAN, (s + 1) // SPAN, C, WIDE,
                C * 4, BITS, TERMS,
            )  # fmt: skip
    return scores


@triton.jit
def softmax_step(scores, undo, top, spare, BITS: tl.constexpr):
    """Running softmax in base 2 over tensors of scores, 4 a part, of which ``undo`` is the unit: weights, which end at
    2^spare and carry what the places of values of so many bits ask for, the new top, and what older sums are multiplied
    by."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    best = scores[0]
    for s in tl.static_range(1, len(scores)):
        best = tl.maximum(best, scores[s])
    higher = tl.maximum(top, tl.max(best, 0) * undo - spare)
    weights = ()
    for s in tl.static_range(len(scores)):
        less = higher - (8 - LOW - (s % 4 * LOW) % 8)
        weights = weights + (tl.exp2(scores[s] * undo[None, :] - less[None, :]),)
    return weights, higher, tl.exp2(top - higher)


@triton.jit
def faded(acc, moved, total, fade, INNER: tl.constexpr):
    """Sums so far, as part_values has them, times what is left of them under a higher top."""
    found = ()
    for c in tl.static_range(len(acc)):
        found = found + (acc[c] * fade[None, :],)
    return found, moved if INNER else moved * fade[None, :], total * fade[None, :]


@triton.jit
def part_values(weights, places, acc, moved, total, record, part, FIRST: tl.constexpr, H: tl.constexpr,
                C: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
                HALF_ZERO: tl.constexpr, INNER: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr,
                STEP: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """4 tensors of weights, from FIRST on, times 64 values of a block, added to acc, C tensors, their sums, to total,
    and of groups across the sum the sums of zero-points, a row a group, to moved."""
    SPAN: tl.constexpr = GROUP // 16
    p = as_operands(as_terms(weights, 4, TERMS, FIRST), H)
    made = ()
    if INNER:
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
        moved = outer_zeros(p, zeros, tl.arange(0, 16) % GROUPS, moved, 4, BITS, ROW, TERMS)
        total = sums_of(p, total, 4, BITS, TERMS)
        scale = read_scales(scales, GROUPS, 4, ROW)
        for s in tl.static_range(0, C, 2):
            one, two = outer_sums(
                p, codes, scale, acc[s], acc[s + 1 if s + 1 < C else s], s, s + 1 < C, s // SPAN,
                (s + 1 if s + 1 < C else s) // SPAN, 4, 4, C * 4, BITS, TERMS,
            )  # fmt: skip
            made = made + ((one, two) if s + 1 < C else (one,))
    return made, moved, total


@triton.jit
def empty_cells(H: tl.constexpr, C: tl.constexpr):
    """C tensors of zeros."""
    cells = ()
    for _ in tl.static_range(C):
        cells = cells + (tl.zeros((16, H), tl.float32),)
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
            found += row_of(moved, s * 16 // GROUP)[None, :]
        channel = s * 16 + element_of(i, not INNER)
        tl.store(acc_out + (at * dim)[None, :] + channel[:, None], found, mask=mask[None, :] & (channel < dim)[:, None])
    tl.store(total_out + at, tl.max(total, 0) * (UNIT if INNER else 1.0), mask=mask)
