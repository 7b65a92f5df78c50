"""The end of a decode step: what its splits found is combined, and its token enters the cache.

A token's place follows from the lengths on the device; where it fills what a window holds, the oldest tokens of the
window are quantized into their block's record by the same program. So a step is the same two launches forever.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.decode import combine_head
from kvq_kernels.triton_ops.levels import ASYMMETRIC, HYBRID, SYMMETRIC, sign_place
from kvq_kernels.triton_ops.pack import MAGIC, group_scale, nearest_code
from kvq_kernels.triton_ops.records import cell_at, scale_at, word_at


@triton.jit
def finish_step_kernel(
    acc_in, top_in, total_in, out, norms, k_records, k_table, k_widest, k_lengths, k_sink, k_ring, k_fresh, v_records,
    v_table, v_widest, v_lengths, v_sink, v_ring, v_fresh, heads, dim, splits, k_size, v_size, k_room, v_room,
    STEP: tl.constexpr, CHANNELS: tl.constexpr, DP: tl.constexpr, C: tl.constexpr, HAS_NORMS: tl.constexpr,
    SINKS: tl.constexpr,
    K_TILE: tl.constexpr, K_RECENT: tl.constexpr, K_PACKED: tl.constexpr, K_BITS: tl.constexpr, K_GROUP: tl.constexpr,
    K_MODE: tl.constexpr, K_HALF_ZERO: tl.constexpr, K_INNER: tl.constexpr, K_META: tl.constexpr, K_ROW: tl.constexpr,
    K_STEP: tl.constexpr,
    V_TILE: tl.constexpr, V_RECENT: tl.constexpr, V_PACKED: tl.constexpr, V_BITS: tl.constexpr, V_GROUP: tl.constexpr,
    V_MODE: tl.constexpr, V_HALF_ZERO: tl.constexpr, V_INNER: tl.constexpr, V_META: tl.constexpr, V_ROW: tl.constexpr,
    V_STEP: tl.constexpr,
):  # fmt: skip
    """Grid (matrices, heads * chunks + 2): programs of CHANNELS for each head's splits, one that enters the key and one
    the value.

    Arguments as decode_blocks_kernel and combine_splits_kernel have them. RECENT and PACKED: tokens that stay in the
    window, and how many leave it at once, 0 where none does here. Writes the lengths that the next step finds.
    """
    matrix, job = tl.program_id(0).to(tl.int64), tl.program_id(1)
    chunks = tl.cdiv(dim, CHANNELS)
    if job < heads * chunks:
        combine_head(
            acc_in, top_in, total_in, out, matrix, job // chunks, job % chunks, heads, dim, splits, STEP, CHANNELS
        )
    elif job == heads * chunks:
        enter_token(
            k_fresh, norms, k_records + k_size * 8 * matrix, k_table, k_widest, k_lengths, k_sink, k_ring, matrix, dim,
            k_room, DP, C * 16, True, HAS_NORMS, SINKS, K_TILE, K_RECENT, K_PACKED, K_BITS, K_GROUP, K_MODE,
            K_HALF_ZERO, K_INNER, K_META, K_ROW, K_STEP,
        )  # fmt: skip
    else:
        enter_token(
            v_fresh, norms, v_records + v_size * 8 * matrix, v_table, v_widest, v_lengths, v_sink, v_ring, matrix, dim,
            v_room, DP, C * 16, False, False, SINKS, V_TILE, V_RECENT, V_PACKED, V_BITS, V_GROUP, V_MODE,
            V_HALF_ZERO, V_INNER, V_META, V_ROW, V_STEP,
        )  # fmt: skip


@triton.jit
def enter_token(
    fresh, norms, records, table, widest, lengths, sink, ring, matrix, dim, room, DP: tl.constexpr,
    CHANNELS: tl.constexpr, KEYS: tl.constexpr, HAS_NORMS: tl.constexpr, SINKS: tl.constexpr, TILE: tl.constexpr,
    RECENT: tl.constexpr, PACKED: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
    HALF_ZERO: tl.constexpr, INNER: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Row ``matrix`` of ``fresh`` (matrices, dim) into the sinks or the window, and what is due then into records."""
    lengths += matrix * 4
    sinks, packed, later = tl.load(lengths), tl.load(lengths + 1), tl.load(lengths + 2)
    channel = tl.arange(0, DP)
    inside = channel < dim
    row = tl.load(fresh + matrix * dim + channel, mask=inside, other=0.0).to(tl.float32).to(tl.float16)
    one = (sinks < SINKS).to(tl.int32)  # whether it goes to the sinks
    ring += matrix * room * dim
    tl.store(sink + (matrix * SINKS + sinks) * dim + channel, row, mask=channel < dim * one)
    tl.store(ring + (later % room).to(tl.int64) * dim + channel, row, mask=channel < dim * (1 - one))
    held = later + 1 - one
    tl.debug_barrier()  # the newest token may be among those that are packed, and all have read the lengths
    if PACKED > 0:
        BY_TOKEN: tl.constexpr = INNER == KEYS  # groups along channels
        T: tl.constexpr = TILE // GROUP if BY_TOKEN else GROUP
        N: tl.constexpr = GROUP if BY_TOKEN else TILE // GROUP
        due = tl.maximum(held - packed - RECENT, 0) // PACKED * PACKED
        across = tl.cdiv(dim, N)
        largest = tl.load(widest + matrix)
        for n in tl.range(0, tl.cdiv(due, T) * across):
            first = n // across * T
            found = pack_tile(
                ring, norms, matrix, records, table, packed + first, due - first, n % across * N, dim, room, T, N,
                CHANNELS, KEYS, HAS_NORMS, BITS, GROUP, MODE, HALF_ZERO, BY_TOKEN, META, ROW, STEP,
            )  # fmt: skip
            largest = tl.maximum(largest, found)
        tl.store(widest + matrix, largest)
        packed += due
    tl.store(lengths, sinks + one)
    tl.store(lengths + 1, packed)
    tl.store(lengths + 2, held)


@triton.jit
def pack_tile(
    ring, norms, matrix, records, table, begin, left, first, dim, room, T: tl.constexpr, N: tl.constexpr,
    CHANNELS: tl.constexpr, KEYS: tl.constexpr, HAS_NORMS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    MODE: tl.constexpr, HALF_ZERO: tl.constexpr, BY_TOKEN: tl.constexpr, META: tl.constexpr, ROW: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Whole groups, T tokens from ``begin`` on of which ``left`` are due, N channels from ``first`` on, from the window
    into the records of their blocks. Returns the largest scale that is a number."""
    AXIS: tl.constexpr = 1 if BY_TOKEN else 0
    token, channel = begin + tl.arange(0, T), first + tl.arange(0, N)
    there, real = tl.arange(0, T) < left, channel < dim
    valid = there[:, None] & real[None, :]
    slot = (token % room).to(tl.int64)
    values = tl.load(ring + slot[:, None] * dim + channel[None, :], mask=valid, other=0.0).to(tl.float32)
    if HAS_NORMS:
        norm = tl.load(norms + matrix * dim + channel, mask=real, other=1.0).to(tl.float32)
        values = tl.where(valid, tl.div_rn(values, tl.broadcast_to(norm[None, :], (T, N))), 0.0)
    if BY_TOKEN:
        element, other, kept = channel % GROUP, token % 128, there
        row = records + tl.load(table + token // 128, mask=there, other=0) * 8
        group = first // GROUP
    else:
        element, other, kept = tl.arange(0, T), channel, real
        row = records + tl.load(table + begin // 128) * 8
        group = begin % 128 // GROUP
    element = tl.expand_dims(element, 1 - AXIS)
    code, scale, zero, minus = grid_of(values, valid, AXIS, BITS, MODE, HALF_ZERO)
    COLUMNS: tl.constexpr = 128 if BY_TOKEN else CHANNELS
    INNER: tl.constexpr = BY_TOKEN == KEYS
    at = scale_at(row, group, other, COLUMNS, MODE, HALF_ZERO, INNER, META, ROW)
    tl.store(at, scale.to(tl.float16), mask=kept)
    rest = word_at(row, group, other, COLUMNS, GROUP, MODE, HALF_ZERO, INNER, META, ROW)
    if MODE == ASYMMETRIC:
        if HALF_ZERO:
            tl.store(rest.to(tl.pointer_type(tl.float16)), zero.to(tl.float16), mask=kept)
        else:
            tl.store(rest.to(tl.pointer_type(tl.float32)), zero, mask=kept)
    else:
        # codes of symmetric groups are in two's complement, and words say which are negative
        minus = minus & (code > 0)
        if MODE == HYBRID:
            minus = minus & tl.expand_dims(scale < 0, AXIS)
        code = tl.where(minus, (1 << BITS) - code, code)
        words = rest.to(tl.pointer_type(tl.int32))
        for w in tl.static_range(GROUP // 32):
            place = (tl.full(element.shape, 1, tl.int32) << sign_place(element % 32)) + tl.zeros((T, N), tl.int32)
            signs = tl.sum(tl.where(minus & (element // 32 == w), place, 0), AXIS)
            if MODE == HYBRID:
                signs = tl.where(scale < 0, signs, zero_word(zero, HALF_ZERO) if w == 0 else 0)
            tl.store(words + w * COLUMNS, signs, mask=kept)
    record = row[:, None] if BY_TOKEN else row
    enter_codes(record, (token % 128)[:, None], channel[None, :], code, valid, CHANNELS, KEYS, BITS, STEP)
    size = tl.abs(scale.to(tl.float16).to(tl.float32))
    return tl.max(tl.where(kept & (size < float("inf")), size, 0.0), 0)


@triton.jit
def zero_word(zero, HALF_ZERO: tl.constexpr):
    """A zero-point as the word in whose place it is kept."""
    if HALF_ZERO:
        return zero.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    else:
        return zero.to(tl.int32, bitcast=True)


@triton.jit
def grid_of(values, valid, AXIS: tl.constexpr, BITS: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr):
    """Codes (int32), scales and zero-points of groups that are the whole of ``values`` along AXIS, and which elements
    are negative. Scales of a hybrid tensor's symmetric groups are negative. As quantize_pack_kernel, to the bit."""
    TOP: tl.constexpr = (1 << BITS) - 1
    low = tl.min(tl.where(valid, values, float("inf")), AXIS)
    high = tl.max(tl.where(valid, values, float("-inf")), AXIS)
    some = low <= high
    low, high = tl.where(some, low, 0.0), tl.where(some, high, 0.0)
    zero, minus = low, (values < 0) & valid
    if MODE != SYMMETRIC:
        scale = group_scale(high - low, TOP, tl.float16)
        above = values
        if HALF_ZERO:
            zero = low.to(tl.float16).to(tl.float32)
            above = tl.maximum(values - tl.expand_dims(zero, AXIS), 0.0)
        else:
            above = values - tl.expand_dims(zero, AXIS)
        code = nearest_code(above, tl.expand_dims(scale, AXIS), TOP, tl.float16)
    if MODE != ASYMMETRIC:
        sign_scale = group_scale(tl.maximum(high, -low), TOP, tl.float16)
        size_code = nearest_code(tl.abs(values), tl.expand_dims(sign_scale, AXIS), TOP, tl.float16)
    if MODE == HYBRID:
        lost = (size_code - MAGIC) * tl.expand_dims(sign_scale, AXIS) - tl.abs(values)
        missed = (code - MAGIC) * tl.expand_dims(scale, AXIS) + tl.expand_dims(zero, AXIS) - values
        lost, missed = tl.where(valid, lost, 0.0), tl.where(valid, missed, 0.0)
        symmetric = tl.sum(lost * lost, AXIS) <= tl.sum(missed * missed, AXIS)
        code = tl.where(tl.expand_dims(symmetric, AXIS), size_code, code)
        scale = tl.where(symmetric, -sign_scale, scale)
    if MODE == SYMMETRIC:
        scale, code = sign_scale, size_code
    scale += tl.sum(values * 0.0, AXIS)  # NaN where an element is no number
    return code.to(tl.int32, bitcast=True) & TOP, scale, zero, minus


@triton.jit
def enter_codes(record, token, channel, code, mask, CHANNELS: tl.constexpr, KEYS: tl.constexpr, BITS: tl.constexpr,
                STEP: tl.constexpr):  # fmt: skip
    """Codes of tokens (of their block) and channels into their places, which hold 0: several share a word."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    EACH: tl.constexpr = 16 // LOW
    C: tl.constexpr = CHANNELS // 16 if KEYS else 4
    if KEYS:
        along, across = channel + token * 0, token % 64 + channel * 0
    else:
        along, across = token % 64 + channel * 0, channel + token * 0
    cell = cell_at(across, along, C, 4 if KEYS else CHANNELS // 16, LOW)
    inside = across % 16 * 16 + along % 16
    words = record.to(tl.pointer_type(tl.int32)) + token // 64 * (STEP // 4)
    half = inside % 2 * 16  # of a pair of words, which is changed as one
    low = (code & ((1 << LOW) - 1)) << (cell % EACH * LOW + half)
    tl.atomic_or(words + (cell // EACH * 256 + inside) // 2, low, mask=mask, sem="relaxed")
    if BITS == 3:
        MORE: tl.constexpr = (CHANNELS // 4 + EACH - 1) // EACH * 128
        high = (code >> 2) << (cell % 16 + half)
        tl.atomic_or(words + MORE + (cell // 16 * 256 + inside) // 2, high, mask=mask, sem="relaxed")
