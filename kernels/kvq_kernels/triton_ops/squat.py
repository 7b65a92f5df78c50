"""SQuat's rounding of one block of channels, and the shift of the channels after it."""

import triton
import triton.language as tl
from kvq_kernels.triton_ops.pack import MAGIC, group_scale, nearest_code, packed_octets, store_octets
from kvq_kernels.triton_ops.tiles import locate


@triton.jit
def squat_block_kernel(
    current, update, codes, scales, zeros, tokens, dim, begin, block, rest, matrices_in_update, code_stride,
    scale_stride, word_stride, capacity, size, R: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    META: tl.constexpr, ZERO: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """current (matrices, tokens, dim) float32, channels begin .. begin + block are rounded per channel over a group of
    tokens; their error times update (matrices, block, rest) is added to the ``rest`` channels after them, in place.

    Grid (matrices * token groups,): groups are independent.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    matrix, first = locate(tl.program_id(0), tokens, GROUP)
    source = (matrix % matrices_in_update).to(tl.int64)
    matrix, group = matrix.to(tl.int64), first // GROUP
    row, token = tl.arange(0, R), first + tl.arange(0, GROUP)
    row_mask, token_mask = row < block, token < tokens
    base = current + matrix * tokens * dim + token.to(tl.int64) * dim
    valid = row_mask[:, None] & token_mask[None, :]
    values = tl.load(base[None, :] + (begin + row)[:, None], mask=valid, other=0.0)  # (R, GROUP)

    low = tl.min(tl.where(valid, values, float("inf")), 1)
    high = tl.max(tl.where(valid, values, float("-inf")), 1)
    low = tl.where(low <= high, low, 0.0)  # no valid element at all
    scale = group_scale(tl.where(row_mask, high - low, 0.0), TOP, META)
    scale += tl.sum(values * 0.0, 1)  # NaN where one is: minima and maxima pass over it
    zero = low.to(ZERO).to(tl.float32)
    above = tl.maximum(values - zero[:, None], 0.0)
    code = nearest_code(above, scale[:, None], TOP, META)
    stored = matrix * capacity + begin + row
    tl.store(scales + stored * scale_stride + group, scale.to(scales.dtype.element_ty), mask=row_mask)
    tl.store(zeros + stored * word_stride + group, zero.to(zeros.dtype.element_ty), mask=row_mask)
    error = tl.where(valid, (code - MAGIC) * scale[:, None] + zero[:, None] - values, 0.0)
    octets = packed_octets(tl.trans(tl.where(valid, code, MAGIC)), GROUP, R, BITS)
    first_byte = first // 8 * BITS
    store_octets(octets, codes, stored * code_stride + first_byte, row_mask, size - first_byte, GROUP, BITS)

    for start in tl.range(0, rest, TILE):
        channel = start + tl.arange(0, TILE)
        wanted = row_mask[:, None] & (channel < rest)[None, :]
        at = update + (source * block + row)[:, None] * rest + channel[None, :]
        shift = tl.dot(tl.trans(error), tl.load(at, mask=wanted, other=0.0), input_precision="ieee")
        target = base[:, None] + (begin + block + channel)[None, :]
        inside = token_mask[:, None] & (channel < rest)[None, :]
        tl.store(target, tl.load(target, mask=inside, other=0.0) + shift, mask=inside)
