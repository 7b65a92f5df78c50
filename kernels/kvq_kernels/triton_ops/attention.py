"""One decode step of attention over [sinks | packed | recent], split over the tokens (flash decoding).

The query heads that share a KV head are the rows of one product, so the packed cache is read once for all of them. Keys
and values may have packed different numbers of tokens: whole tiles that both have packed are shared out among the
programs of a KV head, and one more program takes the sinks and everything after those tiles. It comes first, so that a
GPU does not end with it alone.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.products import product
from kvq_kernels.triton_ops.tiles import read_tile


@triton.jit
def softmax_step(scores, top, total, acc):
    """Running softmax in base 2: weights of the tile, and sums rescaled to the new maximum."""
    higher = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(top - higher)
    return weights, higher, total * fade + tl.sum(weights, 1), acc * fade[:, None]


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


# Counts that change from step to step: compiled for whether 16 divides them, a generation would wait for each new form.
@triton.jit(do_not_specialize=["splits", "sinks", "held", "k_packed", "v_packed"])
def decode_attention_kernel(
    q, norms, acc_out, top_out, total_out, k_codes, k_scales, k_words, k_sink, k_ring, v_codes, v_scales, v_words,
    v_sink, v_ring, factor, heads, dim, bulk, chunk, splits, sinks, sink_room, held, k_packed, v_packed, k_room, v_room,
    k_code_stride, k_scale_stride, k_word_stride, k_capacity, v_code_stride, v_scale_stride, v_word_stride, v_capacity,
    M: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, HAS_NORMS: tl.constexpr, DTYPE: tl.constexpr,
    K_BITS: tl.constexpr, K_GROUP: tl.constexpr, K_MODE: tl.constexpr, K_HALF_ZERO: tl.constexpr,
    K_BY_TOKEN: tl.constexpr, V_BITS: tl.constexpr, V_GROUP: tl.constexpr, V_MODE: tl.constexpr,
    V_HALF_ZERO: tl.constexpr, V_BY_TOKEN: tl.constexpr,
):  # fmt: skip
    """q (matrices, heads, dim), a matrix being one KV head of one row of the batch. Grid (matrices, splits).

    Tokens after the sinks are numbered from 0: ``bulk`` are read in whole tiles, ``held`` is their number. Writes sums
    weighted by exp2(score - top), the tops and the totals of each split; scores carry ``factor`` = scaling * log2(e).
    """
    matrix = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    head, channel = tl.arange(0, M), tl.arange(0, DP)
    mask = (head < heads)[:, None] & (channel < dim)[None, :]
    query = tl.load(q + (matrix * heads + head)[:, None] * dim + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    query *= factor
    if HAS_NORMS:  # packed keys are K / n
        norm = tl.load(norms + matrix * dim + channel, mask=channel < dim, other=0.0).to(tl.float32)[None, :]
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, DP), tl.float32)

    if split == 0:
        for first in tl.range(0, sinks, BT):
            token = first + tl.arange(0, BT)
            keys = dense_tile(k_sink + matrix * sink_room * dim, token, token < sinks, dim, DP, DTYPE)
            scores = tl.where((token < sinks)[None, :], product(query, tl.trans(keys), DTYPE), float("-inf"))
            weights, top, total, acc = softmax_step(scores, top, total, acc)
            values = dense_tile(v_sink + matrix * sink_room * dim, token, token < sinks, dim, DP, DTYPE)
            acc += product(weights, values, DTYPE)
        for first in tl.range(bulk, held, BT):  # some packed, some in the windows, and not the same for keys and values
            token = first + tl.arange(0, BT)
            keys = packed_tile(
                k_codes, k_scales, k_words, matrix, first, k_packed, dim, k_code_stride, k_scale_stride, k_word_stride,
                k_capacity, BT, DP, K_BITS, K_GROUP, K_MODE, K_HALF_ZERO, K_BY_TOKEN, DTYPE,
            )  # fmt: skip
            if HAS_NORMS:
                keys *= norm.to(DTYPE)
            recent = (token >= k_packed) & (token < held)
            fresh = dense_tile(k_ring + matrix * k_room * dim, token % k_room, recent, dim, DP, DTYPE)
            keys = tl.where((token < k_packed)[:, None], keys, fresh)
            scores = tl.where((token < held)[None, :], product(query, tl.trans(keys), DTYPE), float("-inf"))
            weights, top, total, acc = softmax_step(scores, top, total, acc)
            values = packed_tile(
                v_codes, v_scales, v_words, matrix, first, v_packed, dim, v_code_stride, v_scale_stride, v_word_stride,
                v_capacity, BT, DP, V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_BY_TOKEN, DTYPE,
            )  # fmt: skip
            recent = (token >= v_packed) & (token < held)
            fresh = dense_tile(v_ring + matrix * v_room * dim, token % v_room, recent, dim, DP, DTYPE)
            acc += product(weights, tl.where((token < v_packed)[:, None], values, fresh), DTYPE)
    else:
        if HAS_NORMS:
            query *= norm
        for first in tl.range((split - 1) * chunk, tl.minimum(split * chunk, bulk), BT):
            keys = packed_tile(
                k_codes, k_scales, k_words, matrix, first, k_packed, dim, k_code_stride, k_scale_stride, k_word_stride,
                k_capacity, BT, DP, K_BITS, K_GROUP, K_MODE, K_HALF_ZERO, K_BY_TOKEN, DTYPE,
            )  # fmt: skip
            weights, top, total, acc = softmax_step(product(query, tl.trans(keys), DTYPE), top, total, acc)
            values = packed_tile(
                v_codes, v_scales, v_words, matrix, first, v_packed, dim, v_code_stride, v_scale_stride, v_word_stride,
                v_capacity, BT, DP, V_BITS, V_GROUP, V_MODE, V_HALF_ZERO, V_BY_TOKEN, DTYPE,
            )  # fmt: skip
            acc += product(weights, values, DTYPE)

    part = (matrix * splits + split) * heads + head
    tl.store(top_out + part, top, mask=head < heads)
    tl.store(total_out + part, total, mask=head < heads)
    tl.store(acc_out + part[:, None] * dim + channel[None, :], acc, mask=mask)


@triton.jit(do_not_specialize=["splits"])
def combine_splits_kernel(acc_in, top_in, total_in, out, heads, dim, splits, STEP: tl.constexpr, DP: tl.constexpr):
    """Weigh the splits of one head by their softmax totals, STEP at a time, for a GPU makes hundreds of them.

    out (matrices, heads, dim). Grid (matrices, heads). Only the first split may be empty, its top -inf, and then
    there is a second.
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
