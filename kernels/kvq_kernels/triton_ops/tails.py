"""16 tokens at a time that are not whole blocks of both keys and values: sinks, the end of what is packed, windows."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.levels import ASYMMETRIC, HYBRID, SYMMETRIC, sign_place
from kvq_kernels.triton_ops.parts import rounded
from kvq_kernels.triton_ops.records import cell_at, scale_at, word_at


@triton.jit
def one_by_one(record, token, channel, mask, CHANNELS: tl.constexpr, KEYS: tl.constexpr, BITS: tl.constexpr,
               GROUP: tl.constexpr, MODE: tl.constexpr, HALF_ZERO: tl.constexpr, INNER: tl.constexpr,
               META: tl.constexpr, ROW: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Elements of a block's record, dequantized one by one: float32 at tokens and channels, 0 where masked."""
    LOW: tl.constexpr = 2 if BITS == 3 else BITS
    EACH: tl.constexpr = 16 // LOW
    C: tl.constexpr = CHANNELS // 16 if KEYS else 4
    if KEYS:
        along, across = channel, token % 64
    else:
        along, across = token % 64, channel
    cell = cell_at(across, along, C, 4 if KEYS else CHANNELS // 16, LOW)
    inside = across % 16 * 16 + along % 16
    words = (record + token // 64 * (STEP // 2)).to(tl.pointer_type(tl.uint16))
    word = tl.load(words + cell // EACH * 256 + inside, mask=mask, other=0).to(tl.int32)
    code = (word >> (cell % EACH * LOW)) & ((1 << LOW) - 1)
    if BITS == 3:
        MORE: tl.constexpr = (CHANNELS // 4 + EACH - 1) // EACH * 256
        word = tl.load(words + MORE + cell // 16 * 256 + inside, mask=mask, other=0).to(tl.int32)
        code |= ((word >> (cell % 16)) & 1) << 2
    level = code.to(tl.float32)
    COLUMNS: tl.constexpr = 128 if INNER == KEYS else CHANNELS
    if INNER == KEYS:
        element, other = channel, token
    else:
        element, other = token, channel
    group = element // GROUP
    scale = tl.load(scale_at(record, group, other, COLUMNS, MODE, HALF_ZERO, INNER, META, ROW), mask=mask, other=0)
    scale = scale.to(tl.float32)
    rest = word_at(record, group, other, COLUMNS, GROUP, MODE, HALF_ZERO, INNER, META, ROW)
    if HALF_ZERO:
        zero = tl.load(rest.to(tl.pointer_type(tl.float16)), mask=mask, other=0).to(tl.float32)
    elif MODE == ASYMMETRIC or MODE == HYBRID:
        zero = tl.load(rest.to(tl.pointer_type(tl.float32)), mask=mask, other=0)
    if MODE == ASYMMETRIC:
        return level * scale + zero
    else:
        bit = element % 32
        line = rest.to(tl.pointer_type(tl.int32)) + element % GROUP // 32 * COLUMNS
        minus = ((tl.load(line, mask=mask, other=0) >> sign_place(bit)) & 1) == 1
        signed = tl.where(minus, level - (1 << BITS), level)
        if MODE == SYMMETRIC:
            return signed * scale
        else:  # what follows a return is compiled as well
            return tl.where(scale < 0, signed * -scale, level * scale + tl.where(scale < 0, 0.0, zero))


@triton.jit
def dense_rows(base, slot, channel, mask, dim):
    """Rows ``slot`` of a float16 matrix as float32 at channels, broadcast against each other; masked ones 0."""
    return tl.load(base + slot.to(tl.int64) * dim + channel, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def fresh_row(base, channel, mask):
    """A row of any dtype at channels, where the mask says, as a window that is float16 will give it: float32."""
    at = base + tl.broadcast_to(channel, mask.shape)  # Triton 3.4 broadcasts masks alone
    return tl.load(at, mask=mask, other=0.0).to(tl.float32).to(tl.float16).to(tl.float32)


@triton.jit
def product(a, b, TERMS: tl.constexpr):
    """a @ b (float32) with both rounded to float16, or to two of them each."""
    high_a, high_b = a.to(tl.float16), b.to(tl.float16)
    found = tl.dot(high_a, high_b)
    if TERMS == 2:
        low_a, low_b = (a - high_a.to(tl.float32)).to(tl.float16), (b - high_b.to(tl.float32)).to(tl.float16)
        found = tl.dot(high_a, low_b, found)
        found = tl.dot(low_a, high_b, found)
    return found


@triton.jit
def tail_tile(
    q, norms, acc_out, top_out, total_out, k_records, k_table, k_sink, k_ring, k_fresh, v_records, v_table, v_sink,
    v_ring, v_fresh, factor, head, mask, matrix, split, heads, bulk, k_packed, v_packed, sinks, held, dim, k_room,
    v_room,
    H: tl.constexpr, C: tl.constexpr, TERMS: tl.constexpr, HAS_NORMS: tl.constexpr,
    SINKS: tl.constexpr, SINK_TILES: tl.constexpr, FRESH: tl.constexpr,
    K_BITS: tl.constexpr, K_GROUP: tl.constexpr, K_MODE: tl.constexpr, K_HALF_ZERO: tl.constexpr,
    K_INNER: tl.constexpr, K_META: tl.constexpr, K_ROW: tl.constexpr, K_STEP: tl.constexpr,
    V_BITS: tl.constexpr, V_GROUP: tl.constexpr, V_MODE: tl.constexpr, V_HALF_ZERO: tl.constexpr,
    V_INNER: tl.constexpr, V_META: tl.constexpr, V_ROW: tl.constexpr, V_STEP: tl.constexpr,
):  # fmt: skip
    """Tile ``split`` of the tokens outside the ``bulk`` parts of blocks, q (heads, dim) as for the kernel: 16 tokens,
    packed or not, and not the same of keys and values; up to 32 channels a turn, which waits for memory once. FRESH: a
    last token lies in ``k_fresh`` and ``v_fresh`` (matrices, dim) and is read as a window holds it."""
    W: tl.constexpr = 32 if C % 2 == 0 else 16
    i, w = tl.arange(0, 16), tl.arange(0, W)
    top_out, total_out, acc_out = top_out + split * heads, total_out + split * heads, acc_out + split * heads * dim
    first = bulk * 64 + (split - SINK_TILES) * 16
    token = tl.where(split < SINK_TILES, split * 16, first) + i
    count = held + 1 if FRESH else held
    there = token < tl.where(split < SINK_TILES, sinks, count)
    left = tl.where(split < SINK_TILES, sinks - split * 16, count - first)
    turns = tl.where(left > 0, C * 16 // W, 0)
    scores = tl.zeros((H, 16), tl.float32)
    for c in tl.range(0, turns, num_stages=1):
        channel = c * W + w
        real = channel < dim
        query = tl.load(q + head[:, None] * dim + channel[None, :], mask=mask[:, None] & real[None, :], other=0.0)
        query = query.to(tl.float32)
        if HAS_NORMS and TERMS == 1:
            # as packed keys meet it, for what rounding it changes is as large as what keys have in common
            norm = tl.load(norms + matrix * dim + channel, mask=real, other=1.0).to(tl.float32)
            query = rounded(query * norm[None, :]) / norm[None, :]
        both = real[:, None] & there[None, :]
        if split < SINK_TILES:
            keys = dense_rows(k_sink + matrix * SINKS * dim, token[None, :], channel[:, None], both, dim)
        else:
            keys = tl.zeros((W, 16), tl.float32)
            if first < k_packed:
                record = k_records + tl.load(k_table + first // 128) * 8
                keys = one_by_one(
                    record, (token % 128)[None, :], channel[:, None], both & (token < k_packed)[None, :], C * 16, True,
                    K_BITS, K_GROUP, K_MODE, K_HALF_ZERO, K_INNER, K_META, K_ROW, K_STEP,
                )  # fmt: skip
                if HAS_NORMS:
                    keys *= tl.load(norms + matrix * dim + channel, mask=real, other=0.0).to(tl.float32)[:, None]
            recent = both & ((token >= k_packed) & (token < held))[None, :]
            keys += dense_rows(k_ring + matrix * k_room * dim, (token % k_room)[None, :], channel[:, None], recent, dim)
            if FRESH:
                keys += fresh_row(k_fresh + matrix * dim, channel[:, None], both & (token == held)[None, :])
        # keys may be far from zero: what rounding would lose of them is kept
        scores += product(query, keys, 2)
    scores = tl.where(there[None, :], scores * factor, float("-inf"))
    top = tl.max(scores, 1)
    weights = tl.where(there[None, :], tl.exp2(scores - tl.where(left > 0, top, 0.0)[:, None]), 0.0)
    tl.store(top_out + head, top, mask=mask)
    tl.store(total_out + head, tl.sum(weights, 1), mask=mask)
    for c in tl.range(0, turns, num_stages=1):
        channel = c * W + w
        real = channel < dim
        both = there[:, None] & real[None, :]
        if split < SINK_TILES:
            values = dense_rows(v_sink + matrix * SINKS * dim, token[:, None], channel[None, :], both, dim)
        else:
            values = tl.zeros((16, W), tl.float32)
            if first < v_packed:
                record = v_records + tl.load(v_table + first // 128) * 8
                values = one_by_one(
                    record, (token % 128)[:, None], channel[None, :], both & (token < v_packed)[:, None], C * 16, False,
                    V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_INNER, V_META, V_ROW, V_STEP,
                )  # fmt: skip
            recent = both & ((token >= v_packed) & (token < held))[:, None]
            values += dense_rows(
                v_ring + matrix * v_room * dim, (token % v_room)[:, None], channel[None, :], recent, dim
            )
            if FRESH:
                values += fresh_row(v_fresh + matrix * dim, channel[None, :], both & (token == held)[:, None])
        acc = product(weights, values, TERMS)
        tl.store(acc_out + head[:, None] * dim + channel[None, :], acc, mask=mask[:, None] & real[None, :])
