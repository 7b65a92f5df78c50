"""The operations single methods need, each beside decoding first, a float16 product of the same size and the roofline.

A function named after an operation, with _case behind it, measures that operation.
"""

import torch
from gpu_setting import Numbers, Setting, Shape
from gpu_timing import Timing
from kvq_kernels import Grid, Turn, quantize_pack, rotate, squat_quantize, unpack
from kvq_kernels.commuted import codebook_scores, codebook_values
from kvq_kernels.latent import LatentKeys, latent_dense, latent_scores
from kvq_kernels.mixed import MixedTokens, mixed_dense, mixed_scores, mixed_values
from kvq_kernels.rope_codebook import decode_pairs, join_pairs
from torch import Tensor


def squat_quantize_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """SQuat's keys of a prompt in two blocks of channels, beside the reference, KIVI's rounding of them and a copy."""
    heads, half = shape.kv_heads, shape.head_dim // 2
    x, grid = s.random(heads, n, shape.head_dim), Grid(2)
    updates = (torch.randn(heads, half, half, device=s.device) * 0.05,)
    size = x.numel() * 2 + quantize_pack(x, grid, "tokens").nbytes
    return {
        "fused": s.ms(lambda: squat_quantize(x, updates, half, grid)),
        **s.beside("torch", lambda: squat_quantize(x, updates, half, grid, "torch")),
        "quantize_pack": s.ms(lambda: quantize_pack(x, grid, "tokens")),
        "copy": s.ms(x.clone),
        "roofline": s.roofline(size),
    }


def latent_scores_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """SVDq's scores at a mean of 2 bits (8, 4, 4, 0, ...)."""
    heads, dim = shape.kv_heads, shape.head_dim
    kept, eighth = 3 * heads * dim // 8, heads * dim // 8
    codes = torch.randint(0, 16, (1, kept, n), dtype=torch.uint8, device=s.device)
    basis, meta = s.random(1, heads * dim, kept), s.random(1, kept)
    keys = LatentKeys.of(codes, [8] * eighth + [4] * 2 * eighth, meta, meta, basis, s.random(1, heads * dim))
    turn, q = _turn(s, n, dim), s.random(heads, shape.shared, dim)
    size = keys.codes.numel() + basis.numel() * 2 + turn.cos.numel() * 8
    return {
        "fused": s.ms(lambda: latent_scores(q, keys, turn, n)),
        **s.beside("decode_first", lambda: q.float() @ rotate(latent_dense(keys, dim, n), turn).transpose(-1, -2)),
        "matmul": _scores_ms(s, q, n),
        "roofline": s.roofline(size),
    }


def codebook_scores_case(s: Setting, shape: Shape, n: int, stages: int = 11, levels: int = 64) -> Numbers:
    """Scores of one layer's 1-bit CommVQ keys, fused or decoded first: CommVQ's Table 5."""
    heads, half = shape.kv_heads, shape.head_dim // 2
    theta = s.random(heads, 1, stages, levels, half, 2)
    codes = torch.randint(0, 256, (heads, n * stages * 2 * 6 // 8), dtype=torch.uint8, device=s.device)
    plain = torch.randint(0, levels, (heads, 1, n, stages, 2), dtype=torch.uint8, device=s.device)
    scale = torch.rand(n, device=s.device).half()
    turn, q = _turn(s, n, shape.head_dim), s.random(heads, shape.shared, shape.head_dim)

    def naive() -> Tensor:
        keys = join_pairs(decode_pairs(plain, theta)) * scale[:, None]
        return q.float() @ rotate(keys, turn).transpose(-1, -2)

    size = codes.numel() + theta.numel() * 2 + turn.cos.numel() * 8
    return {
        "fused": s.ms(lambda: codebook_scores(q, theta, codes, scale, turn)),
        **s.beside("decode_first", naive),
        "matmul": _scores_ms(s, q, n),
        "roofline": s.roofline(size),
    }


def codebook_values_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """Weighted sums of one layer's 1-bit CommVQ values: as many binary digits a token as channels."""
    heads, channels = shape.kv_heads, shape.kv_heads * shape.head_dim
    digits = torch.randint(0, 256, (n, channels // 8), dtype=torch.uint8, device=s.device)
    weights, scale = torch.rand(n, device=s.device), torch.rand(channels, device=s.device)
    book = torch.randn(channels, channels, device=s.device)
    p, x = torch.rand(heads, shape.shared, n, device=s.device).half(), s.random(heads, n, shape.head_dim)

    def naive() -> Tensor:
        values = unpack(digits, 1, channels).float() @ book * weights[:, None] * scale
        return p.float() @ values.unflatten(-1, (heads, -1)).transpose(0, 1)

    size = digits.numel() + n * 4 + book.numel() * 4
    return {
        "fused": s.ms(lambda: codebook_values(p, digits, weights, book, scale)),
        **s.beside("decode_first", naive),
        "matmul": s.ms(lambda: p @ x),
        "roofline": s.roofline(size),
    }


def mixed_scores_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """QAQ's scores with widths 1 to 4 and one outlier at either end."""
    keys = _mixed(s, shape, n)
    q = s.random(1, shape.kv_heads, shape.shared, shape.head_dim)

    def naive() -> Tensor:
        return q.float() @ mixed_dense(keys, shape.kv_heads, shape.head_dim).transpose(-1, -2)

    return {
        "fused": s.ms(lambda: mixed_scores(q, keys)),
        **s.beside("decode_first", naive),
        "matmul": _scores_ms(s, q[0], n),
        "roofline": s.roofline(sum(t.numel() * t.element_size() for t in keys)),
    }


def mixed_values_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """Weighted sums of the same tokens."""
    heads, dim, values = shape.kv_heads, shape.head_dim, _mixed(s, shape, n)
    p, x = torch.rand(1, heads, shape.shared, n, device=s.device).half(), s.random(1, heads, n, dim)
    return {
        "fused": s.ms(lambda: mixed_values(p, values, dim)),
        **s.beside("decode_first", lambda: p.float() @ mixed_dense(values, heads, dim)),
        "matmul": s.ms(lambda: p @ x),
        "roofline": s.roofline(sum(t.numel() * t.element_size() for t in values)),
    }


METHOD_CASES = (
    squat_quantize_case,
    latent_scores_case,
    codebook_scores_case,
    codebook_values_case,
    mixed_scores_case,
    mixed_values_case,
)


def _scores_ms(s: Setting, q: Tensor, n: int) -> Timing:
    """The product with float16 keys (kv_heads, n, head_dim)."""
    x = s.random(q.shape[0], n, q.shape[-1])
    return s.ms(lambda: q @ x.transpose(-1, -2))


def _turn(s: Setting, n: int, dim: int) -> Turn:
    half = dim // 2
    angles = torch.arange(n, device=s.device)[:, None] * 1e4 ** (-torch.arange(half, device=s.device) / half)
    return Turn(angles.cos(), angles.sin())


def _mixed(s: Setting, shape: Shape, n: int) -> MixedTokens:
    heads, dim = shape.kv_heads, shape.head_dim
    widths = torch.randint(1, 5, (n, 1, heads), device=s.device)
    codes = torch.randint(0, 2, (n, 1, heads, dim), dtype=torch.uint8, device=s.device)
    positions = torch.tensor([0, dim - 1], device=s.device).expand(n, 1, heads, 2)
    meta = s.random(n, 1, heads)
    return MixedTokens.of(codes, widths, meta, meta.abs(), s.random(n, 1, heads, 2), positions)
