"""One decode step of attention over [sinks | packed | recent], split over the tokens (flash decoding).

Up to 16 query heads that share a KV head are the columns of one product; where there are more, several programs read
the block. Blocks that keys and values have both packed are shared out among the programs of a KV head,
one warp each, as many as run at once. The sinks and everything after those blocks, which keys and values may have
packed up to different tokens, are taken 16 tokens at a time by the first of them, which get fewer blocks instead. All
lengths are read from the device and the grid is fixed, so that a step can be repeated from a CUDA graph.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.blocks import spare_exponent
from kvq_kernels.triton_ops.parts import (
    as_operands,
    as_sums,
    as_terms,
    cell_sums,
    empty_cells,
    faded,
    part_scores,
    part_values,
    placed,
    read_query,
    softmax_step,
    store_cells,
)
from kvq_kernels.triton_ops.tails import tail_tile

# What a tile of tails takes on an H200, in turns of KIVI; of InnerQ, whose turns are longer, three.
TAIL_TURNS = tl.constexpr(6)


@triton.jit(do_not_specialize=["heads", "splits", "matrices", "k_room", "v_room", "k_size", "v_size"])
def decode_blocks_kernel(
    q, norms, places, acc_out, top_out, total_out, k_records, k_table, k_widest, k_lengths, k_sink, k_ring, k_fresh,
    v_records, v_table, v_widest, v_lengths, v_sink, v_ring, v_fresh, factor, heads, dim, splits, k_room, v_room,
    k_size, v_size, matrices,
    H: tl.constexpr, C: tl.constexpr, TERMS: tl.constexpr, HAS_NORMS: tl.constexpr, TAILS: tl.constexpr,
    SINKS: tl.constexpr, SINK_TILES: tl.constexpr, FRESH: tl.constexpr, PARTS: tl.constexpr,
    K_BITS: tl.constexpr, K_GROUP: tl.constexpr, K_MODE: tl.constexpr, K_HALF_ZERO: tl.constexpr,
    K_INNER: tl.constexpr, K_META: tl.constexpr, K_ROW: tl.constexpr, K_STEP: tl.constexpr,
    V_BITS: tl.constexpr, V_GROUP: tl.constexpr, V_MODE: tl.constexpr, V_HALF_ZERO: tl.constexpr,
    V_INNER: tl.constexpr, V_META: tl.constexpr, V_ROW: tl.constexpr, V_STEP: tl.constexpr,
):  # fmt: skip
    """q (matrices, heads, dim), a matrix being one KV head of one row of the batch. Grid (matrices * ceil(heads / H),
    splits); TAILS tiles of 16 tokens, of them SINK_TILES of the sinks, have splits of their own, which come first.
    FRESH: the newest token lies in k_fresh and v_fresh (matrices, dim), and is not counted by the lengths. PARTS: of a
    block, are read in a turn.

    places: int32 (16,), as add_signs asks for them: only what is loaded becomes an operand without a way through shared
    memory. records: int16, of which block b of matrix m lies 8 * (table[b] + m * size) after the first.
    lengths int32 (matrices, 4): sinks, packed tokens, tokens after the sinks.

    Writes sums weighted by exp2(score - top), the tops and the totals of each split, top -inf where it had nothing to
    do; scores carry ``factor`` = scaling * log2(e).
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    matrix = (tile % matrices).to(tl.int64)
    head = tile // matrices * H + tl.arange(0, H)
    mask = head < heads
    part = matrix * (splits + TAILS) * heads
    top_out, total_out, acc_out = top_out + part, total_out + part, acc_out + part * dim
    k_packed, v_packed = tl.load(k_lengths + matrix * 4 + 1), tl.load(v_lengths + matrix * 4 + 1)
    bulk = tl.minimum(k_packed, v_packed) // (64 * PARTS)
    q += matrix * heads * dim
    k_records, v_records = k_records + k_size * 8 * matrix, v_records + v_size * 8 * matrix
    rows = tile // matrices * H + tl.arange(0, 16)
    for tail in tl.range(split, TAILS, splits, num_stages=1):
        tail_tile(
            q, norms, acc_out, top_out, total_out, k_records, k_table, k_sink, k_ring, k_fresh, v_records, v_table,
            v_sink, v_ring, v_fresh, factor, rows, rows < heads, matrix, tail, heads, bulk * PARTS, k_packed, v_packed,
            tl.load(k_lengths + matrix * 4), tl.load(k_lengths + matrix * 4 + 2), dim, k_room, v_room, 16, C, TERMS,
            HAS_NORMS, SINKS, SINK_TILES, FRESH, K_BITS, K_GROUP, K_MODE, K_HALF_ZERO, K_INNER, K_META, K_ROW, K_STEP,
            V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_INNER, V_META, V_ROW, V_STEP,
        )  # fmt: skip
    if HAS_NORMS:
        norms += matrix * dim
    cells, power = read_query(q, norms, head, mask, dim, C, HAS_NORMS, TERMS)
    held = room_for(k_widest + matrix, K_BITS, K_INNER)
    asked = as_terms(placed(cells, held - power, C, K_BITS), C, TERMS)
    K_LOW: tl.constexpr = 2 if K_BITS == 3 else K_BITS
    undo = tl.exp2(16 + K_LOW - held + power) * factor
    sign_places = tl.load(places + tl.arange(0, 16))
    if K_INNER:
        sums = cell_sums(asked, H, C, (C * 16 + K_GROUP - 1) // K_GROUP, K_BITS, K_GROUP, TERMS)
    else:
        asked = as_operands(as_sums(asked, TERMS * C), H)
        sums = cells
    spare = room_for(v_widest + matrix, V_BITS, V_INNER)
    top = tl.full((H,), float("-inf"), tl.float32)
    acc, moved = empty_cells(H, C), tl.zeros((16, H), tl.float32)
    total = tl.zeros((8 if V_INNER else 16, H), tl.float32)  # the same in all rows
    begin, end = share_of(split, splits, bulk, tails_of(k_lengths + matrix * 4, bulk, PARTS, FRESH, SINK_TILES, TAILS))
    # where a turn's blocks lie is read a turn ahead: what the pipeline copies must not wait for it
    k_at, v_at = tl.load(k_table + begin * PARTS // 2), tl.load(v_table + begin * PARTS // 2)
    for turn in tl.range(begin, end):
        scores = ()
        for n in tl.static_range(PARTS):
            scores = scores + part_scores(
                asked, sign_places, sums, k_records + k_at * 8, turn % 2 if PARTS == 1 else n, H, C,
                K_BITS, K_GROUP, K_MODE, K_HALF_ZERO, K_INNER, K_META, K_ROW, K_STEP, TERMS,
            )  # fmt: skip
        weights, top, fade = softmax_step(scores, undo, top, spare, V_BITS)
        acc, moved, total = faded(acc, moved, total, fade, V_INNER)
        for n in tl.static_range(PARTS):
            acc, moved, total = part_values(
                weights, sign_places, acc, moved, total, v_records + v_at * 8, turn % 2 if PARTS == 1 else n, n * 4,
                H, C, V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_INNER, V_META, V_ROW, V_STEP, TERMS,
            )  # fmt: skip
        k_at, v_at = tl.load(k_table + (turn + 1) * PARTS // 2), tl.load(v_table + (turn + 1) * PARTS // 2)
    own = (TAILS + split) * heads
    tl.store(top_out + own + head, known_top(top, total), mask=mask)
    store_cells(acc_out + own * dim, total_out + own, acc, moved, total, head, mask, dim, C, V_BITS, V_GROUP, V_INNER)


@triton.jit
def known_top(top, total):
    """The tops, NaN where a total is: scores that are none of them a number leave no top."""
    found = tl.max(total * 0.0 + total, 0)
    return tl.where(found != found, found, top)


@triton.jit
def tails_of(lengths, bulk, PARTS: tl.constexpr, FRESH: tl.constexpr, SINK_TILES: tl.constexpr, TAILS: tl.constexpr):
    """Tiles of tails up to the last that holds a token."""
    later = tl.load(lengths + 2) - bulk * (64 * PARTS)
    if FRESH:
        later += 1
    return tl.minimum(SINK_TILES + tl.cdiv(later, 16), TAILS)


@triton.jit
def share_of(split, splits, bulk, tails):
    """First turn of a program and the one after its last, of ``bulk``: one of the tails takes as long as TAIL_TURNS."""
    each = tl.maximum(tl.cdiv(bulk + tails * TAIL_TURNS, splits), tl.cdiv(tails, splits) * TAIL_TURNS)
    begin = split * each - tails_before(split, splits, tails) * TAIL_TURNS
    end = (split + 1) * each - tails_before(split + 1, splits, tails) * TAIL_TURNS
    return tl.minimum(begin, bulk), tl.minimum(end, bulk)


@triton.jit
def tails_before(split, splits, tails):
    """Tiles of tails that the programs before one have, where they are dealt out in turn."""
    return tails // splits * split + tl.minimum(split, tails % splits)


@triton.jit
def room_for(widest, BITS: tl.constexpr, INNER: tl.constexpr):
    """x for which numbers up to 2^x stay float16 where they meet codes, whatever a place asks for."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    if INNER:
        return 7.0 + LOW
    else:
        return spare_exponent(tl.load(widest), BITS)


@triton.jit
def combine_splits_kernel(
    acc_in, top_in, total_in, out, heads, dim, splits, STEP: tl.constexpr, CHANNELS: tl.constexpr
):
    """Weigh the splits of one head by their softmax totals. out (matrices, heads, dim). Grid (matrices, heads, programs
    of CHANNELS each)."""
    matrix, head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    combine_head(acc_in, top_in, total_in, out, matrix, head, chunk, heads, dim, splits, STEP, CHANNELS)


@triton.jit
def combine_head(acc_in, top_in, total_in, out, matrix, head, chunk, heads, dim, splits, STEP: tl.constexpr,
                 CHANNELS: tl.constexpr):  # fmt: skip
    """What combine_splits_kernel does for a chunk of one head. A GPU makes hundreds of splits: STEP of them are on
    their way at once, with their tops. Those with a top of -inf had nothing to do."""
    channel = chunk * CHANNELS + tl.arange(0, CHANNELS)
    first = (matrix * splits).to(tl.int64) * heads + head
    highest = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    sums = tl.zeros((CHANNELS,), tl.float32)
    for begin in tl.range(0, splits, STEP, num_stages=1):
        split = begin + tl.arange(0, STEP)
        part = first + split * heads
        inside = split < splits
        top = tl.load(top_in + part, mask=inside, other=float("-inf"))
        acc = tl.load(acc_in + part[:, None] * dim + channel[None, :], mask=inside[:, None] & (channel < dim)[None, :])
        own = tl.load(total_in + part, mask=inside, other=0.0)
        higher = tl.maximum(highest, tl.max(top, 0))
        base = tl.where(higher > float("-inf"), higher, 0.0)
        fade = tl.exp2(highest - base)
        # sums without a top were never written
        some = top != float("-inf")  # a NaN is something, and stays
        weight = tl.where(some, tl.exp2(top - base), 0.0)
        total = total * fade + tl.sum(tl.where(some, weight * own, 0.0), 0)
        sums = sums * fade + tl.sum(tl.where(some[:, None], acc * weight[:, None], 0.0), 0)
        highest = higher
    at = out + (matrix * heads + head) * dim + channel
    tl.store(at, (sums / total).to(out.dtype.element_ty), mask=channel < dim)
