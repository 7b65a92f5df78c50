"""One decode step of attention over [sinks | packed | recent], split over the tokens (flash decoding).

The query heads that share a KV head are the rows of one product, so the packed cache is read once for all of them. Keys
and values may have packed different numbers of tokens: whole tiles that both have packed are shared out among the
programs of a KV head, and a few more take a tile each of the sinks and of everything after those tiles. They come
first, so that a GPU does not end with them alone. Where codes and groups allow it (kvq_kernels.placing) the shared
tiles are read by triton_ops.places, which costs a third of the instructions; everything else spreads codes out.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.places import (
    for_groups,
    inner_queries,
    inner_scores,
    inner_values,
    outer_result,
    outer_scores,
    outer_values,
    read_query,
    spare_exponent,
)
from kvq_kernels.triton_ops.products import product
from kvq_kernels.triton_ops.tiles import read_tile


@triton.jit
def softmax_step(scores, top, total, spare):
    """Running softmax in base 2: weights of the tile, the new top and total, and what older sums are multiplied by.

    Weights end at 2^spare and not at 1, so that a product of one with a scale keeps its digits as a float16.
    """
    higher = tl.maximum(top, tl.max(scores, 1) - spare)
    weights = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(top - higher)
    return weights, higher, total * fade + tl.sum(weights, 1), fade


@triton.jit
def packed_tile(
    codes, scales, words, matrix, first, count, dim, code_stride, scale_stride, word_stride, capacity,
    BT: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
    HALF_ZERO: tl.constexpr, BY_TOKEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Tokens first .. first + BT of a packed matrix with ``count`` of them, dequantized: (BT, DP), the rest 0."""
    if BY_TOKEN:
        token = first + tl.arange(0, BT)
        return read_tile(
            codes, scales, words, matrix * capacity + token, token < count, 0, dim, code_stride, scale_stride,
            word_stride, BT, DP, BITS, GROUP, MODE, HALF_ZERO, DTYPE,
        )  # fmt: skip
    else:
        channel = tl.arange(0, DP)
        tile = read_tile(
            codes, scales, words, matrix * capacity + channel, channel < dim, first, count, code_stride, scale_stride,
            word_stride, DP, BT, BITS, GROUP, MODE, HALF_ZERO, DTYPE,
        )  # fmt: skip
        return tl.trans(tile)


@triton.jit
def dense_tile(base, slot, mask, dim, DP: tl.constexpr, DTYPE: tl.constexpr):
    """Rows ``slot`` of a float16 matrix: (BT, DP), masked ones 0."""
    channel = tl.arange(0, DP)
    at = base + slot.to(tl.int64)[:, None] * dim + channel[None, :]
    return tl.load(at, mask=mask[:, None] & (channel < dim)[None, :], other=0.0).to(DTYPE)


@triton.jit
def with_window(tile, ring, matrix, token, packed, inside, room, dim, DP: tl.constexpr, DTYPE: tl.constexpr):
    """A packed tile with the tokens that are not packed yet taken from their slots of the window."""
    fresh = dense_tile(ring + matrix * room * dim, token % room, (token >= packed) & inside, dim, DP, DTYPE)
    return tl.where((token < packed)[:, None], tile, fresh)


@triton.jit
def store_split(acc_out, top_out, total_out, acc, top, total, part, heads, dim, M: tl.constexpr, DP: tl.constexpr):
    """What a split found for rows ``part`` .. ``part`` + heads."""
    head, channel = tl.arange(0, M), tl.arange(0, DP)
    mask = head < heads
    tl.store(top_out + part + head, top, mask=mask)
    tl.store(total_out + part + head, total, mask=mask)
    inside = mask[:, None] & (channel < dim)[None, :]
    tl.store(acc_out + (part + head)[:, None] * dim + channel[None, :], acc, mask=inside)


@triton.jit
def placed_tiles(
    q, norms, acc_out, top_out, total_out, k_codes, k_scales, k_words, v_codes, v_scales, v_words, v_largest, factor,
    matrix, part, start, end, heads, dim, k_packed, v_packed, k_code_stride, k_scale_stride, k_word_stride, k_capacity,
    v_code_stride, v_scale_stride, v_word_stride, v_capacity, H: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr,
    EXACT: tl.constexpr, HAS_NORMS: tl.constexpr, K_BITS: tl.constexpr, K_GROUP: tl.constexpr, K_MODE: tl.constexpr,
    K_HALF_ZERO: tl.constexpr, K_BY_TOKEN: tl.constexpr, K_WIDTH: tl.constexpr, V_BITS: tl.constexpr,
    V_GROUP: tl.constexpr, V_MODE: tl.constexpr, V_HALF_ZERO: tl.constexpr, V_BY_TOKEN: tl.constexpr,
    V_WIDTH: tl.constexpr,
):  # fmt: skip
    """Whole tiles of tokens start .. end that keys and values have both packed; EXACT: dim is DP."""
    head, channel = tl.arange(0, H), tl.arange(0, DP)
    q += matrix * heads * dim
    if HAS_NORMS:
        norms += matrix * dim
    if K_BY_TOKEN:
        asked, sums = inner_queries(q, norms, factor, heads, dim, H, DP, K_WIDTH, K_GROUP, HAS_NORMS)
    else:
        asked = read_query(q, norms, factor, heads, dim, head, channel, HAS_NORMS).to(tl.float16)
    top = tl.full((H,), float("-inf"), tl.float32)
    total = tl.zeros((H,), tl.float32)
    SPAN: tl.constexpr = DP if V_BY_TOKEN else BT
    G: tl.constexpr = SPAN // V_GROUP if V_GROUP < SPAN else 1
    if V_BY_TOKEN:
        acc = ()
        for _ in tl.static_range(V_WIDTH):
            acc = acc + (tl.zeros((G * H, DP // V_WIDTH), tl.float32),)
        moved = tl.zeros((G * H, 16), tl.float32)
        spare = spare_exponent(v_largest, 4)
    else:
        acc = tl.zeros((G * H, DP), tl.float32)
        spare = 4.0
    for first in tl.range(start, end, BT):
        token = first + tl.arange(0, BT)
        if K_BY_TOKEN:
            scores = inner_scores(
                asked, sums, k_codes, k_scales, k_words, matrix * k_capacity + token, token < k_packed, dim,
                k_code_stride, k_scale_stride, k_word_stride, H, BT, DP, K_WIDTH, K_BITS, K_GROUP, K_MODE, K_HALF_ZERO,
                EXACT,
            )  # fmt: skip
        else:
            scores = outer_scores(
                asked, k_codes, k_scales, k_words, matrix * k_capacity + channel, channel < dim, first, k_packed,
                k_code_stride, k_scale_stride, k_word_stride, H, BT, DP, K_WIDTH, K_BITS, K_GROUP, EXACT,
            )  # fmt: skip
        weights, top, total, fade = softmax_step(scores, top, total, spare)
        fade = for_groups(fade[:, None], G, H, 1)
        if V_BY_TOKEN:
            faded = ()
            for p in tl.static_range(V_WIDTH):
                faded = faded + (acc[p] * fade,)
            acc, moved = outer_values(
                weights, faded, moved * fade, v_codes, v_scales, v_words, matrix * v_capacity + token, token < v_packed,
                dim, v_code_stride, v_scale_stride, v_word_stride, H, BT, DP, V_WIDTH, V_BITS, V_GROUP, EXACT,
            )  # fmt: skip
        else:
            acc = acc * fade + inner_values(
                weights, v_codes, v_scales, v_words, matrix * v_capacity + channel, channel < dim, first, v_packed,
                v_code_stride, v_scale_stride, v_word_stride, H, BT, DP, V_WIDTH, V_BITS, V_GROUP, V_MODE, V_HALF_ZERO,
                EXACT,
            )  # fmt: skip
    if V_BY_TOKEN:
        found = outer_result(acc, moved, H, DP, V_WIDTH, V_GROUP)
    else:
        found = tl.sum(tl.reshape(acc, (G, H, DP)), 0)
    store_split(acc_out, top_out, total_out, found, top, total, part, heads, dim, H, DP)


# Counts that change from step to step: compiled for whether 16 divides them, a generation would wait for each new form.
@triton.jit(do_not_specialize=["splits", "tails", "sinks", "held", "k_packed", "v_packed"])
def decode_attention_kernel(
    q, norms, acc_out, top_out, total_out, k_codes, k_scales, k_words, k_sink, k_ring, v_codes, v_scales, v_words,
    v_sink, v_ring, v_largest, factor, heads, dim, bulk, chunk, splits, tails, sinks, sink_room, held, k_packed,
    v_packed, k_room, v_room, k_code_stride, k_scale_stride, k_word_stride, k_capacity, v_code_stride, v_scale_stride,
    v_word_stride, v_capacity,
    M: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, HAS_NORMS: tl.constexpr, DTYPE: tl.constexpr,
    K_BITS: tl.constexpr, K_GROUP: tl.constexpr, K_MODE: tl.constexpr, K_HALF_ZERO: tl.constexpr,
    K_BY_TOKEN: tl.constexpr, K_WIDTH: tl.constexpr, V_BITS: tl.constexpr, V_GROUP: tl.constexpr,
    V_MODE: tl.constexpr, V_HALF_ZERO: tl.constexpr, V_BY_TOKEN: tl.constexpr, V_WIDTH: tl.constexpr,
    PLACED: tl.constexpr, H: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """q (matrices, heads, dim), a matrix being one KV head of one row of the batch. Grid (matrices, splits).

    Tokens after the sinks are numbered from 0: ``bulk`` are read in whole tiles, ``held`` is their number; the first
    ``tails`` splits take the sinks and what follows the bulk. Writes sums
    weighted by exp2(score - top), the tops and the totals of each split; scores carry ``factor`` = scaling * log2(e).
    """
    matrix = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    head, channel = tl.arange(0, M), tl.arange(0, DP)
    query = read_query(q + matrix * heads * dim, q, factor, heads, dim, head, channel, False)
    if HAS_NORMS:  # packed keys are K / n
        norm = tl.load(norms + matrix * dim + channel, mask=channel < dim, other=0.0).to(tl.float32)[None, :]
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    part = (matrix * splits + split) * heads

    if split < tails:  # one small tile each, because nothing else hides what it waits for
        around = tl.cdiv(sinks, BT)
        first = bulk + (split - around) * BT
        if split < around:
            token = split * BT + tl.arange(0, BT)
            inside = token < sinks
            keys = dense_tile(k_sink + matrix * sink_room * dim, token, inside, dim, DP, DTYPE)
        else:  # some packed, some in the windows, and not the same for keys and values
            token = first + tl.arange(0, BT)
            inside = token < held
            keys = packed_tile(
                k_codes, k_scales, k_words, matrix, first, k_packed, dim, k_code_stride, k_scale_stride, k_word_stride,
                k_capacity, BT, DP, K_BITS, K_GROUP, K_MODE, K_HALF_ZERO, K_BY_TOKEN, DTYPE,
            )  # fmt: skip
            if HAS_NORMS:
                keys *= norm.to(DTYPE)
            keys = with_window(keys, k_ring, matrix, token, k_packed, inside, k_room, dim, DP, DTYPE)
        scores = tl.where(inside[None, :], product(query, tl.trans(keys), DTYPE), float("-inf"))
        weights, top, total, _ = softmax_step(scores, top, total, 4)
        if split < around:
            values = dense_tile(v_sink + matrix * sink_room * dim, token, inside, dim, DP, DTYPE)
        else:
            values = packed_tile(
                v_codes, v_scales, v_words, matrix, first, v_packed, dim, v_code_stride, v_scale_stride, v_word_stride,
                v_capacity, BT, DP, V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_BY_TOKEN, DTYPE,
            )  # fmt: skip
            values = with_window(values, v_ring, matrix, token, v_packed, inside, v_room, dim, DP, DTYPE)
        store_split(acc_out, top_out, total_out, product(weights, values, DTYPE), top, total, part, heads, dim, M, DP)
    elif PLACED:
        placed_tiles(
            q, norms, acc_out, top_out, total_out, k_codes, k_scales, k_words, v_codes, v_scales, v_words, v_largest,
            factor, matrix, part, (split - tails) * chunk, tl.minimum((split - tails + 1) * chunk, bulk), heads, dim,
            k_packed, v_packed, k_code_stride, k_scale_stride, k_word_stride, k_capacity, v_code_stride, v_scale_stride,
            v_word_stride, v_capacity, H, PLACED, DP, EXACT, HAS_NORMS, K_BITS, K_GROUP, K_MODE, K_HALF_ZERO,
            K_BY_TOKEN, K_WIDTH, V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_BY_TOKEN, V_WIDTH,
        )  # fmt: skip
    else:
        if HAS_NORMS:
            query *= norm
        acc = tl.zeros((M, DP), tl.float32)
        for first in tl.range((split - tails) * chunk, tl.minimum((split - tails + 1) * chunk, bulk), BT):
            keys = packed_tile(
                k_codes, k_scales, k_words, matrix, first, k_packed, dim, k_code_stride, k_scale_stride, k_word_stride,
                k_capacity, BT, DP, K_BITS, K_GROUP, K_MODE, K_HALF_ZERO, K_BY_TOKEN, DTYPE,
            )  # fmt: skip
            weights, top, total, fade = softmax_step(product(query, tl.trans(keys), DTYPE), top, total, 4)
            values = packed_tile(
                v_codes, v_scales, v_words, matrix, first, v_packed, dim, v_code_stride, v_scale_stride, v_word_stride,
                v_capacity, BT, DP, V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_BY_TOKEN, DTYPE,
            )  # fmt: skip
            acc = acc * fade[:, None] + product(weights, values, DTYPE)
        store_split(acc_out, top_out, total_out, acc, top, total, part, heads, dim, M, DP)


@triton.jit(do_not_specialize=["splits"])
def combine_splits_kernel(acc_in, top_in, total_in, out, heads, dim, splits, STEP: tl.constexpr, DP: tl.constexpr):
    """Weigh the splits of one head by their softmax totals, STEP at a time, for a GPU makes hundreds of them.

    out (matrices, heads, dim). Grid (matrices, heads). No split is empty.
    """
    matrix, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, DP)
    highest = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    sums = tl.zeros((DP,), tl.float32)
    for first in tl.range(0, splits, STEP):
        split = first + tl.arange(0, STEP)
        part = (matrix * splits + split) * heads + head
        inside = split < splits
        top = tl.load(top_in + part, mask=inside, other=float("-inf"))
        higher = tl.maximum(highest, tl.max(top, 0))
        weight, fade = tl.exp2(top - higher), tl.exp2(highest - higher)
        mask = inside[:, None] & (channel < dim)[None, :]
        acc = tl.load(acc_in + part[:, None] * dim + channel[None, :], mask=mask, other=0.0)
        total = total * fade + tl.sum(weight * tl.load(total_in + part, mask=inside, other=0.0), 0)
        sums = sums * fade + tl.sum(acc * weight[:, None], 0)
        highest = higher
    at = out + (matrix * heads + head) * dim + channel
    tl.store(at, (sums / total).to(out.dtype.element_ty), mask=channel < dim)
