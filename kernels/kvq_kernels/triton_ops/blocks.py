"""Products with the codes of one part of a block (kvq_kernels.blocks), which stay in their words.

Elements across the sum are the rows of a product and query heads its columns (16, H): ``q`` are tuples of float16
(16, H), 16 elements of the sum each. Groups across the sum ("outer") scale what the codes are multiplied with. Those
along it are read by kvq_kernels.triton_ops.inner.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.levels import high_bytes, plain_level


@triton.jit
def spare_exponent(widest, BITS: tl.constexpr):
    """x for which numbers up to 2^x, times scales up to ``widest`` (a float32), times what places are made up for with
    (2^(8 - BITS) at most), are float16: values and keys of any size are multiplied as small ones are."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    return 7 + LOW - tl.ceil(tl.log2(tl.maximum(widest, 1.0)))


@triton.jit
def outer_part(record, part, KEYS: tl.constexpr, GROUP: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr,
               STEP: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Where codes, scales and zero-points of a part of a record begin: three pointers to int16."""
    if KEYS:
        scales = record + META // 2 + part * 64 // GROUP * (ROW // 2)
    else:
        scales = record + META // 2 + part * 64
    return record + part * (STEP // 2), scales, scales + COLUMNS


@triton.jit
def read_cells(codes, TILE: tl.constexpr):
    """Words of a tile of cells: uint16 (16 across, 16 along the sum)."""
    i = tl.arange(0, 16)
    return tl.load(codes.to(tl.pointer_type(tl.uint16)) + TILE * 256 + i[:, None] * 16 + i[None, :])


@triton.jit
def further_bits(codes, words, TILE: tl.constexpr, CELLS: tl.constexpr, BITS: tl.constexpr):
    """Words with the third bits of codes, which follow the words of the others; ``words`` where there are none."""
    if BITS == 3:
        return read_cells(codes + (CELLS + 7) // 8 * 256, TILE)
    else:
        return words


@triton.jit
def outer_zeros(q, zeros, group, found, C: tl.constexpr, BITS: tl.constexpr, ROW: tl.constexpr, TERMS: tl.constexpr):
    """Sums of q, less what it carries for its places, times zero-points, added to ``found`` (16, H), of which row i is
    for group[i]. Products of float16 numbers, and exact."""
    i = tl.arange(0, 16)
    half = zeros.to(tl.pointer_type(tl.float16))
    for c in tl.static_range(C):
        zero = tl.load(half + group[:, None] * (ROW // 2) + (16 * c + i)[None, :])
        for t in tl.static_range(TERMS):
            found = tl.dot(zero, unplaced(q[t * C + c], c, BITS), found)
    return found


@triton.jit
def unplaced(vector, c: tl.constexpr, BITS: tl.constexpr):
    """Cell c without what its place asks for."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    return vector * (2.0 ** (((c * LOW) % 8) - 8 + LOW))


@triton.jit
def sums_of(q, total, C: tl.constexpr, BITS: tl.constexpr, TERMS: tl.constexpr):
    """Sums of q, less what it carries for its places, added to all rows of total (16, H)."""
    for c in tl.static_range(C):
        for t in tl.static_range(TERMS):
            total = tl.dot(tl.full((16, 16), 1.0, tl.float16), unplaced(q[t * C + c], c, BITS), total)
    return total


@triton.jit
def row_of(x, G: tl.constexpr):
    """Row G of x."""
    return tl.sum(tl.where((tl.arange(0, x.shape[0]) == G)[:, None], x, 0.0), 0)


@triton.jit
def group_zeros(q, zeros, GROUPS: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr,
                ROW: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """Sums of q times the zero-points of groups, for each a tensor (16, H) with all rows the same, in the unit of sums
    over codes. One product finds those of two groups: 8 rows each, and a thread has one of either."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    found = ()
    for g in tl.static_range(0, GROUPS, 2):
        group = tl.minimum(g + tl.arange(0, 16) // 8, GROUPS - 1)
        pair = outer_zeros(q, zeros, group, tl.zeros((16, H), tl.float32), C, BITS, ROW, TERMS) * (2.0 ** -(16 + LOW))
        first, second = tl.split(tl.permute(tl.reshape(pair, (2, 8, H)), (1, 2, 0)))
        found = found + (
            tl.reshape(tl.permute(tl.join(first, first), (2, 0, 1)), (16, H)),
            tl.reshape(tl.permute(tl.join(second, second), (2, 0, 1)), (16, H)),
        )
    return found


@triton.jit
def cells_of(tile, N: tl.constexpr):
    """Rows of a tile (N, 16), a power of two of them up to 64, as N tensors (16,).

    Halved in turns: Triton 3.4 knows no function that calls itself."""
    cells = (tile,)
    for turn in tl.static_range((N > 1) + (N > 2) + (N > 4) + (N > 8) + (N > 16) + (N > 32)):
        halves = ()
        for i in tl.static_range(1 << turn):
            first, second = tl.split(tl.permute(tl.reshape(cells[i], (2, N >> (turn + 1), 16)), (1, 2, 0)))
            halves = halves + (first, second)
        cells = halves
    rows = ()
    for i in tl.static_range(N):
        rows = rows + (tl.reshape(cells[i], (16,)),)
    return rows


@triton.jit
def read_scales(scales, GROUPS: tl.constexpr, CELLS: tl.constexpr, ROW: tl.constexpr):
    """Scales of GROUPS groups over CELLS cells along the sum, a power of two of them: (16,) each, by group and cell.
    One load of at least 512 bytes brings them, 16 a thread; zero-points follow scales, so that cells that are not there
    lie in the record, too."""
    LEAST: tl.constexpr = 16 // CELLS
    EACH: tl.constexpr = GROUPS if GROUPS <= 2 else 4 if GROUPS <= 4 else 8 if GROUPS <= 8 else 16
    ROWS: tl.constexpr = EACH if EACH > LEAST else LEAST
    group, i = tl.arange(0, ROWS), tl.arange(0, CELLS * 16)
    at = tl.minimum(group, GROUPS - 1)[:, None] * (ROW // 2) + i[None, :]
    return cells_of(tl.reshape(tl.load(scales.to(tl.pointer_type(tl.float16)) + at), (ROWS * CELLS, 16)), ROWS * CELLS)


@triton.jit
def scaled(q, scale, c: tl.constexpr, C: tl.constexpr, TERMS: tl.constexpr):
    """Cell c of q times scales (16,), in TERMS float16 that add up to it."""
    if TERMS == 1:
        return (q[c] * scale[:, None],)
    else:
        whole = (q[c].to(tl.float32) + q[C + c].to(tl.float32)) * scale.to(tl.float32)[:, None]
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
def add_cell(vector, codes, part, C: tl.constexpr, CELL: tl.constexpr, CELLS: tl.constexpr,
             BITS: tl.constexpr):  # fmt: skip
    """part + the terms of cell C times the codes of cell CELL, whose words are loaded once for all cells they hold."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    words = read_cells(codes, CELL // (16 // LOW))
    extra = further_bits(codes, words, CELL // 16, CELLS, BITS)
    level = plain_level(words, high_bytes(words), extra, CELL, BITS)
    for t in tl.static_range(len(vector)):
        part = tl.dot(level, times(vector[t], C, CELL, LOW), part)
    return part


@triton.jit
def outer_sums(q, codes, scales, one, two, S: tl.constexpr, TWO: tl.constexpr, G: tl.constexpr, NEXT: tl.constexpr,
               C: tl.constexpr, WIDE: tl.constexpr, CELLS: tl.constexpr, BITS: tl.constexpr,
               TERMS: tl.constexpr):  # fmt: skip
    """q (C cells) times the scales of group G, as read_scales has them of WIDE cells, times cells S across the sum,
    added to ``one`` (16, H), and TWO: times cells S + 1, which are of group NEXT, added to ``two``."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    MAIN: tl.constexpr = C // (8 // LOW) * (8 // LOW)  # cells of the sum that come first, as BlockForm.main says
    REST: tl.constexpr = CELLS // C * MAIN + S * (C - MAIN) - MAIN
    for c in tl.static_range(C):
        asked = scaled(q, scales[G * WIDE + c], c, C, TERMS)
        one = add_cell(asked, codes, one, c, S * MAIN + c if c < MAIN else REST + c, CELLS, BITS)
        if TWO:
            if NEXT != G:
                asked = scaled(q, scales[NEXT * WIDE + c], c, C, TERMS)
            two = add_cell(asked, codes, two, c, S * MAIN + MAIN + c if c < MAIN else REST + C - MAIN + c, CELLS, BITS)
    return one, two
