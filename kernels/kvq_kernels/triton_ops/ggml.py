"""Round to llama.cpp's q8_0."""

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32


@triton.jit
def round_q8_0_kernel(x, out, blocks, BLOCKS: tl.constexpr):
    """Grid (blocks / BLOCKS): x float32, ``blocks`` of 32 consecutive elements, rounded into ``out``."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = (block < blocks)[:, None] & (tl.arange(0, 32) >= 0)[None, :]
    values = tl.load(x + at, mask=inside, other=0.0)
    scale = tl.div_rn(tl.max(tl.abs(values), 1), tl.full([BLOCKS], 127.0, tl.float32))
    inverse = tl.where(scale > TINY, tl.div_rn(tl.full([BLOCKS], 1.0, tl.float32), scale), 0.0)
    scaled = values * inverse[:, None]
    size = tl.abs(scaled)  # no sum follows the product at once, which would be fused and rounded once less
    whole = tl.floor(size)
    code = tl.where(size - whole >= 0.5, whole + 1.0, whole)
    read = tl.where(scaled < 0, -code, code) * scale.to(tl.float16).to(tl.float32)[:, None]
    tl.store(out + at, read, mask=inside)
