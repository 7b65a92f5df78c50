"""Products with packed codes that are never taken out of their words.

A tile is as many products as a word has places: that of place p takes bits p * BITS .. of every word, which belong to
every WIDTH-th row or column of the matrix, and leaves them where they are, because a float16 whose exponent is zero is
its last ten bits times 2^-24. A code costs a mask and half a multiplication then, and no element ever changes its
thread: spreading codes out to a matrix of elements first takes three times the instructions.

Scales and zero-points meet no element. The rows of the left matrix are the query heads G times over, once for every
group that a tile spans: where groups lie along the dimension of the sum ("inner"), row (g, head) has only the elements
of group g and its sums are scaled afterwards; where they lie along the other one ("outer"), row (g, head) is multiplied
by the scales of group g before, and counts only in the columns of that group. Tensor cores multiply 16 rows
anyway. Outer groups with signs are not read here.
"""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.tiles import ASYMMETRIC, HYBRID, SYMMETRIC
from kvq_kernels.triton_ops.words import PLAIN, SIGNED, plain_level, read_scales, read_signs, read_words, signed_level


@triton.jit
def own_groups(x, G: tl.constexpr, H: tl.constexpr, N: tl.constexpr):
    """x (G * H, N), whose column n belongs to group n // (N // G): what each head has in its column's group (H, N)."""
    own = tl.arange(0, N) // (N // G)
    mine = (tl.arange(0, G)[:, None] == own[None, :])[:, None, :]
    return tl.sum(tl.where(mine, tl.reshape(x, (G, H, N)), 0.0), 0)


@triton.jit
def for_groups(x, G: tl.constexpr, H: tl.constexpr, N: tl.constexpr):
    """x (H, N) for every group: (G * H, N)."""
    return tl.reshape(tl.broadcast_to(x[None, :, :], (G, H, N)), (G * H, N))


@triton.jit
def merge_places(places, H: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr):
    """WIDTH tensors (H, N), one a place of a word, in the order of the elements: (H, N * WIDTH)."""
    TURNS: tl.constexpr = (WIDTH >= 2) + (WIDTH >= 4) + (WIDTH >= 8)
    for i in tl.static_range(TURNS):
        merged = ()
        for p in tl.static_range(WIDTH >> (i + 1)):
            pair = tl.join(places[p], places[p + (WIDTH >> (i + 1))])
            merged = merged + (tl.reshape(pair, (H, N * (2 << i))),)
        places = merged
    return places[0]


@triton.jit
def split_places(x, H: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr):
    """Inverse of :func:`merge_places`."""
    TURNS: tl.constexpr = (WIDTH >= 2) + (WIDTH >= 4) + (WIDTH >= 8)
    places = (x,)
    for i in tl.static_range(TURNS):
        evens = ()
        odds = ()
        for p in tl.static_range(1 << i):
            even, odd = tl.split(tl.reshape(places[p], (H, N * WIDTH >> (i + 1), 2)))
            evens = evens + (even,)
            odds = odds + (odd,)
        places = evens + odds
    return places


@triton.jit
def outer_scores(
    query, codes, scales, words, rows, row_mask, first, count, code_stride, scale_stride, word_stride, H: tl.constexpr,
    BT: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Of query (H, DP) float16 times keys first .. first + BT of ``count``, grouped along tokens, a row a channel.

    (H, BT)."""
    N: tl.constexpr = BT // WIDTH
    G: tl.constexpr = BT // GROUP if GROUP < BT else 1
    word = read_words(
        codes, rows, row_mask, first // WIDTH, tl.cdiv(count, WIDTH), code_stride, N, WIDTH * BITS // 8, WHOLE
    )
    scale, zero = read_scales(
        scales, words, rows, row_mask, first // GROUP, tl.cdiv(count, GROUP), scale_stride, word_stride, G, GROUP,
        ASYMMETRIC, False, WHOLE,
    )  # fmt: skip
    asked = tl.reshape(scale.to(tl.float16)[:, None, :] * query[None, :, :], (G * H, DP))
    # each column's own zero-point: its product with a query is exact, and far larger than what scores differ by
    moved = tl.reshape(tl.broadcast_to(tl.trans(zero)[:, :, None], (DP, G, N // G)), (DP, N)).to(tl.float16)
    offset = tl.dot(for_groups(query, G, H, DP), moved)
    scores = ()
    for p in tl.static_range(WIDTH):
        part = tl.dot(asked, plain_level(word, p, BITS)) * PLAIN + offset
        scores = scores + (own_groups(part, G, H, N),)
    return merge_places(scores, H, N, WIDTH)


@triton.jit
def inner_queries(
    q, norms, factor, heads, dim, H: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """Of q (heads, dim) times factor and norms: WIDTH float16 (G * H, DP // WIDTH), the channels of a place, in the
    rows of group g only its own; and sums over groups (G, H)."""
    N: tl.constexpr = DP // WIDTH
    G: tl.constexpr = DP // GROUP if GROUP < DP else 1
    head = tl.arange(0, H)
    channel = tl.arange(0, DP)
    vector = read_query(q, norms, factor, heads, dim, head, channel, HAS_NORMS)
    sums = tl.trans(tl.sum(tl.reshape(vector, (H, G, DP // G)), 2))
    row, word = tl.arange(0, G * H), tl.arange(0, N)
    own = (row // H)[:, None] == (word // (N // G))[None, :]
    places = ()
    for p in tl.static_range(WIDTH):
        part = read_query(q, norms, factor, heads, dim, row % H, word * WIDTH + p, HAS_NORMS)
        places = places + (tl.where(own, part, 0.0).to(tl.float16),)
    return places, sums


@triton.jit
def read_query(q, norms, factor, heads, dim, head, channel, HAS_NORMS: tl.constexpr):
    """q[head, channel] * factor (* norms[channel]), float32."""
    inside = (head < heads)[:, None] & (channel < dim)[None, :]
    vector = tl.load(q + head[:, None] * dim + channel[None, :], mask=inside, other=0.0).to(tl.float32) * factor
    if HAS_NORMS:
        vector *= tl.load(norms + channel, mask=channel < dim, other=0.0).to(tl.float32)[None, :]
    return vector


@triton.jit
def inner_scores(
    places, sums, codes, scales, words, rows, row_mask, dim, code_stride, scale_stride, word_stride, H: tl.constexpr,
    BT: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    MODE: tl.constexpr, HALF_ZERO: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Queries of :func:`inner_queries` times BT keys, grouped along channels, a row a token: (H, BT)."""
    N: tl.constexpr = DP // WIDTH
    G: tl.constexpr = DP // GROUP if GROUP < DP else 1
    word = read_words(codes, rows, row_mask, 0, tl.cdiv(dim, WIDTH), code_stride, N, WIDTH * BITS // 8, WHOLE)
    if MODE != ASYMMETRIC:
        signs = read_signs(words, rows, row_mask, 0, tl.cdiv(dim, 8), word_stride, N, WHOLE)
    else:
        signs = word
    scale, zero = read_scales(
        scales, words, rows, row_mask, 0, tl.cdiv(dim, GROUP), scale_stride, word_stride, G, GROUP, MODE, HALF_ZERO,
        WHOLE,
    )  # fmt: skip
    scaled = inner_sums(places, word, signs, scale, zero, sums, G, H, BT, WIDTH, BITS, MODE)
    return tl.sum(tl.reshape(scaled, (G, H, BT)), 0)


@triton.jit
def inner_sums(
    places, word, signs, scale, zero, sums, G: tl.constexpr, H: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr,
    BITS: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Sums over groups, each in its rows, of words (R, N), scaled and moved by scale and zero (G, R): (G * H, R).

    A word of a hybrid tensor is a zero-point where its group is not symmetric, so both sums are made and one is taken.
    """
    plain = tl.zeros((G * H, R), tl.float32)
    signed = tl.zeros((G * H, R), tl.float32)
    for p in tl.static_range(WIDTH):
        if MODE == ASYMMETRIC:
            plain = tl.dot(places[p], tl.trans(plain_level(word, p, BITS)), plain)
        else:
            level = signed_level(word, signs, p, BITS)
            signed = tl.dot(places[p], tl.trans(level), signed)
            if MODE == HYBRID:
                plain = tl.dot(places[p], tl.trans(tl.abs(level)), plain)
    scale = scale.to(tl.float32)[:, None, :]
    if MODE == SYMMETRIC:
        found = tl.reshape(signed, (G, H, R)) * (scale * SIGNED)
    else:
        offset = sums[:, :, None] * zero.to(tl.float32)[:, None, :]
        if MODE == ASYMMETRIC:
            found = tl.reshape(plain, (G, H, R)) * (scale * PLAIN) + offset
        else:
            minus = tl.reshape(signed, (G, H, R)) * (scale * -SIGNED)
            found = tl.where(scale < 0, minus, tl.reshape(plain, (G, H, R)) * (scale * SIGNED) + offset)
    return tl.reshape(found, (G * H, R))


@triton.jit
def spare_exponent(largest, MOST: tl.constexpr):
    """x, at most MOST, for which weights up to 2^x times scales and zero-points are float16, where no value is beyond
    ``largest``: a scale of one bit is twice that."""
    return tl.minimum(tl.floor(tl.log2(32752.0 / tl.maximum(tl.load(largest), 1.0))), MOST)


@triton.jit
def outer_values(
    weights, acc, moved, codes, scales, words, rows, row_mask, dim, code_stride, scale_stride, word_stride,
    H: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """weights (H, BT) times BT values, grouped along channels, a row a token.

    Added to acc, WIDTH times (G * H, DP // WIDTH), and ``moved`` (G * H, 16), the sums of weighted zero-points in each
    column: see :func:`outer_result`.
    """
    N: tl.constexpr = DP // WIDTH
    G: tl.constexpr = DP // GROUP if GROUP < DP else 1
    word = read_words(codes, rows, row_mask, 0, tl.cdiv(dim, WIDTH), code_stride, N, WIDTH * BITS // 8, WHOLE)
    scale, zero = read_scales(
        scales, words, rows, row_mask, 0, tl.cdiv(dim, GROUP), scale_stride, word_stride, G, GROUP, ASYMMETRIC,
        False, WHOLE,
    )  # fmt: skip
    weight = weights.to(tl.float16)[None, :, :]
    scaled = tl.reshape(scale.to(tl.float16)[:, None, :] * weight, (G * H, BT))
    offset = tl.reshape(zero.to(tl.float16)[:, None, :] * weight, (G * H, BT))
    moved = tl.dot(offset, tl.full((BT, 16), 1.0, tl.float16), moved)
    sums = ()
    for p in tl.static_range(WIDTH):
        sums = sums + (tl.dot(scaled, plain_level(word, p, BITS), acc[p]),)
    return sums, moved


@triton.jit
def outer_result(acc, moved, H: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """What :func:`outer_values` added up: (H, DP)."""
    G: tl.constexpr = DP // GROUP if GROUP < DP else 1
    N: tl.constexpr = DP // WIDTH
    offset = tl.max(moved, 1)[:, None]  # its columns are equal
    places = ()
    for p in tl.static_range(WIDTH):
        places = places + (own_groups(acc[p] * PLAIN + offset, G, H, N),)
    return merge_places(places, H, N, WIDTH)


@triton.jit
def inner_values(
    weights, codes, scales, words, rows, row_mask, first, count, code_stride, scale_stride, word_stride,
    H: tl.constexpr, BT: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    MODE: tl.constexpr, HALF_ZERO: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """weights (H, BT) times values first .. first + BT of ``count``, grouped along tokens, a row a channel.

    (G * H, DP), to be summed over the groups G."""
    N: tl.constexpr = BT // WIDTH
    G: tl.constexpr = BT // GROUP if GROUP < BT else 1
    word = read_words(
        codes, rows, row_mask, first // WIDTH, tl.cdiv(count, WIDTH), code_stride, N, WIDTH * BITS // 8, WHOLE
    )
    if MODE != ASYMMETRIC:
        signs = read_signs(words, rows, row_mask, first // 8, tl.cdiv(count, 8), word_stride, N, WHOLE)
    else:
        signs = word
    scale, zero = read_scales(
        scales, words, rows, row_mask, first // GROUP, tl.cdiv(count, GROUP), scale_stride, word_stride, G, GROUP, MODE,
        HALF_ZERO, WHOLE,
    )  # fmt: skip
    sums = tl.trans(tl.sum(tl.reshape(weights, (H, G, BT // G)), 2))
    own = (tl.arange(0, G)[:, None] == (tl.arange(0, N) // (N // G))[None, :])[:, None, :]
    split = split_places(weights.to(tl.float16), H, N, WIDTH)
    places = ()
    for p in tl.static_range(WIDTH):
        places = places + (tl.reshape(tl.where(own, split[p][None, :, :], 0.0), (G * H, N)),)
    return inner_sums(places, word, signs, scale, zero, sums, G, H, DP, WIDTH, BITS, MODE)
