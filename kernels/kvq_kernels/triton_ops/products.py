"""Products with float32 sums."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, DTYPE: tl.constexpr):
    """a @ b with float32 sums; tensor cores for float16, exact products for float32."""
    if DTYPE == tl.float16:
        return tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")


@triton.jit
def rotated_product(one, two, lower, upper, cos, sin, token, token_mask, half, HP: tl.constexpr, DTYPE: tl.constexpr):
    """Queries, halves of channels one and two (M, HP), times RoPE of keys lower and upper (HP, BT): (M, BT).

    cos, sin (tokens, half) float32; channel i < half turns with channel i + half.
    """
    channel = tl.arange(0, HP)
    at = token.to(tl.int64)[None, :] * half + channel[:, None]
    inside = token_mask[None, :] & (channel < half)[:, None]
    c = tl.load(cos + at, mask=inside, other=0.0)
    s = tl.load(sin + at, mask=inside, other=0.0)
    return product(one, lower * c - upper * s, DTYPE) + product(two, upper * c + lower * s, DTYPE)
