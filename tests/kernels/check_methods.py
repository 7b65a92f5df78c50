"""The operations single methods need, against float64 or an independent computation."""

import pytest
import torch
from kvq_kernels.commuted import codebook_scores, codebook_values
from kvq_kernels.gemv import packed_scores
from kvq_kernels.ggml import round_q8_0
from kvq_kernels.grouped import Grid, quantize_pack, unpack_dequantize
from kvq_kernels.latent import LatentKeys, latent_scores
from kvq_kernels.mixed import MixedTokens, mixed_scores, mixed_values
from kvq_kernels.packing import pack
from kvq_kernels.rotation import Turn
from kvq_kernels.squat import squat_quantize
from measures import assert_close, keys_with_traps

DTYPES = (torch.float32, torch.float16)


def in_both(*cases):
    """Every case in both dtypes. Long ones are interpreted slowly, and stand beside them in one, of fewer matrices."""
    return [(*case, dtype) for case in cases for dtype in DTYPES]


@pytest.mark.parametrize(("rows", "dim"), [(1, 32), (14, 64), (9, 128)])
def test_round_q8_0(rows, dim, device):
    """Bit for bit: a code that differs is another store."""
    x = torch.randn(rows, 3, 2, dim, device=device) * 10 ** torch.linspace(-12, 3, rows, device=device).view(
        -1, 1, 1, 1
    )
    x[0, 0], x[-1, 1, :, ::2] = 0.0, 127.0
    x[-1, 1, :, 1::2] = torch.arange(dim // 2, device=device) + 0.5  # halfway between codes
    x[-1, 2, 0] = 1e-44
    assert torch.equal(round_q8_0(x, "triton"), round_q8_0(x, "torch"))


def turn_of(tokens, dim, device):
    angles = torch.arange(tokens)[:, None] * 1e4 ** (-torch.arange(dim // 2) / (dim // 2))
    return Turn(angles.cos().to(device), angles.sin().to(device))


def rotated(x, turn):
    """RoPE written out with complex numbers: channel i with channel i + half."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.complex(turn.cos.double(), turn.sin.double())
    return torch.cat([pairs.real, pairs.imag], -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "dim", "bits", "queries"), [(1, 64, 2, 1), (63, 80, 3, 4), (1000, 64, 2, 9)])
def test_packed_scores_of_keys_before_rope(tokens, dim, bits, queries, dtype, device):
    grid, turn = Grid(bits), turn_of(tokens, dim, device)
    packed = quantize_pack(keys_with_traps(2, tokens, dim, device=device), grid, "tokens", "torch")
    dense = unpack_dequantize(packed, grid, "tokens", tokens, "torch").double()
    q = torch.randn(2, queries, dim, device=device).to(dtype)
    exact = q.double() @ rotated(dense, turn).transpose(-1, -2)
    for path in ("torch", "triton"):
        assert_close(packed_scores(q, packed, grid, "tokens", tokens, path, turn=turn), exact, dtype)


@pytest.mark.parametrize(
    ("tokens", "block", "bits", "rows"), [(1000, 32, 2, 1), (63, 16, 3, 2), (1, 64, 2, 2), (33, 8, 4, 2)]
)
def test_squat_quantize(tokens, block, bits, rows, device):
    x = keys_with_traps(rows, 2, tokens, 64, device=device)
    updates = tuple(torch.randn(2, block, 64 - end, device=device) * 0.1 for end in range(block, 64, block))
    grid = Grid(bits)
    expected, found = (squat_quantize(x, updates, block, grid, path) for path in ("torch", "triton"))
    # a tie that float32 sums in another order decides otherwise shifts all channels after it, so errors are compared
    reads = [unpack_dequantize(p, grid, "tokens", tokens, "torch") for p in (expected, found)]
    assert ((reads[0] - reads[1]).abs() > 1e-3).sum() <= max(64, x.numel() // 1000)  # one tie shifts groups of tokens
    first = unpack_dequantize(found, grid, "tokens", tokens, "torch")[..., :block]
    plain = squat_quantize(x, (), 64, grid, "torch")
    assert torch.equal(first, unpack_dequantize(plain, grid, "tokens", tokens, "torch")[..., :block])


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("tokens", "rows", "dtype"), [*in_both((1, 1), (63, 2)), (1000, 1, torch.float16)])
def test_latent_scores(tokens, rows, dtype, per_head, device):
    heads, dim, widths = 2, 32, [8] * 8 + [4] * 8 + [3] * 4 + [2] * 4 + [1] * 4
    units, channels = (rows * heads, dim) if per_head else (rows, heads * dim)
    codes = torch.stack([torch.randint(0, 1 << b, (units, tokens)) for b in widths], 1).to(torch.uint8).to(device)
    scales, zeros = (torch.rand(units, len(widths), device=device).half() * s for s in (0.05, -1))
    basis = (torch.randn(units, channels, len(widths), device=device) / 6).half()
    mean = torch.randn(units, channels, device=device).half()
    turn = turn_of(tokens, dim, device)
    latent = codes.double() * scales.double()[..., None] + zeros.double()[..., None]
    dense = (basis.double() @ latent + mean.double()[..., None]).transpose(-1, -2)
    dense = dense.unflatten(-1, (-1, dim)).transpose(1, 2).reshape(rows, heads, tokens, dim)
    q = torch.randn(rows, heads, 3, dim, device=device).to(dtype)
    exact = q.double() @ rotated(dense, turn).transpose(-1, -2)
    # a channel on whole bytes, and equal widths side by side in one stream, as SVDq packs its groups
    groups = [(8, 8), (8, 4), (4, 3), (4, 2), (4, 1)]
    streams = [pack(part.flatten(1), b) for part, (_, b) in zip(codes.split([8, 8, 4, 4, 4], 1), groups, strict=True)]
    metadata = scales, zeros, basis, mean
    for keys in (
        LatentKeys.of(codes, widths, *metadata),
        LatentKeys.from_packed(torch.cat(streams, -1), groups, tokens, *metadata),
    ):
        for path in ("torch", "triton"):
            assert_close(latent_scores(q, keys, turn, tokens, path), exact, dtype)


@pytest.mark.parametrize(
    ("tokens", "groups", "stages", "levels", "rows", "queries", "dtype"),
    [
        *in_both((63, 1, 8, 16, 1, 2), (63, 2, 3, 64, 2, 3), (1, 1, 2, 8, 1, 1)),
        *in_both((99, 1, 3, 16, 2, 1), (67, 2, 4, 8, 2, 1), (5, 1, 1, 2, 1, 1)),  # tables of the query
        (1000, 1, 2, 4, 1, 1, torch.float16),
    ],
)
def test_codebook_scores(tokens, groups, stages, levels, rows, queries, dtype, device):
    heads = 2
    dim, width = 32, levels.bit_length() - 1
    pairs = dim // 2 // groups
    theta = torch.randn(heads, groups, stages, levels, pairs, 2, device=device)
    codes = torch.randint(0, levels, (rows, heads, groups, tokens, stages, 2), device=device)
    prescale = torch.rand(rows, tokens, device=device).half() + 0.5
    turn = turn_of(tokens, dim, device)
    dense = torch.zeros(rows, heads, tokens, dim, dtype=torch.float64, device=device)
    for g in range(groups):  # the centre of each code, written out: (x_a - y_b, y_a + x_b) of every pair
        for r in range(stages):
            for h in range(heads):
                a, b = (theta[h, g, r].double()[codes[:, h, g, :, r, place]] for place in (0, 1))
                dense[:, h, :, g * pairs : (g + 1) * pairs] += a[..., 0] - b[..., 1]
                dense[:, h, :, dim // 2 + g * pairs : dim // 2 + (g + 1) * pairs] += a[..., 1] + b[..., 0]
    keys = rotated(dense * prescale.double()[:, None, :, None], turn)
    q = torch.randn(rows, heads, queries, dim, device=device).to(dtype)
    packed = pack(codes.to(torch.uint8).flatten(2), width)
    for path in ("torch", "triton"):
        found = codebook_scores(q, theta, packed, prescale, turn, path)
        assert_close(found, q.double() @ keys.transpose(-1, -2), dtype)


@pytest.mark.parametrize(("tokens", "rows", "dtype"), [*in_both((1, 1), (63, 2)), (1000, 1, torch.float16)])
def test_codebook_values(tokens, rows, dtype, device):
    heads, dim, count = 2, 32, 100
    digits = torch.randint(0, 2, (rows, tokens, count), device=device, dtype=torch.uint8)
    book, scale = torch.randn(count, heads * dim, device=device), torch.rand(heads * dim, device=device) + 0.5
    norms = torch.rand(rows, tokens, device=device) + 0.5
    raw = digits.double() @ book.double()
    weights = (norms / raw.norm(dim=-1).clamp_min(1e-6)).float()
    dense = (raw * weights.double()[..., None] * scale.double()).unflatten(-1, (heads, dim)).transpose(1, 2)
    p = torch.rand(rows, heads, 3, tokens, device=device).to(dtype)
    for path in ("torch", "triton"):
        found = codebook_values(p, pack(digits, 1), weights, book, scale, path)
        assert_close(found, p.double() @ dense, dtype)


MIXES = pytest.mark.parametrize(
    ("tokens", "outliers", "shared", "rows", "dtype"),
    [
        *in_both((133, 2, 1, 1), (63, 2, 2, 2), (1, 2, 1, 2)),
        (1000, 0, 1, 1, torch.float16),
        (33, 0, 1, 2, torch.float32),
    ],
)


def mixed_tokens(tokens, outliers, shared, rows, device):
    """Units of one head, or of two heads side by side, and what they stand for: (rows, heads, tokens, dim) float64."""
    heads, dim = 2, 48
    shape, size = (tokens, rows, heads // shared), dim * shared
    widths = torch.randint(0, 9, shape, device=device)
    codes = (torch.randint(0, 256, (*shape, size), device=device) >> (8 - widths[..., None])).to(torch.uint8)
    lows, extents = (torch.rand(shape, device=device).half() * s for s in (-2, 5))
    positions = torch.rand(*shape, size, device=device).argsort(-1)[..., :outliers]
    values = torch.randn(*shape, outliers, device=device).half() * 9
    dense = lows.double()[..., None] + (codes + 0.5).double() * (extents.double() / 2.0**widths)[..., None]
    dense = dense.scatter(-1, positions, values.double()).view(tokens, rows, heads, dim).permute(1, 2, 0, 3)
    return MixedTokens.of(codes, widths, lows, extents, values, positions), dense


@MIXES
def test_mixed_scores(tokens, outliers, shared, rows, dtype, device):
    mixed, dense = mixed_tokens(tokens, outliers, shared, rows, device)
    q = torch.randn(rows, 2, 3, 48, device=device).to(dtype)
    for path in ("torch", "triton"):
        assert_close(mixed_scores(q, mixed, path), q.double() @ dense.transpose(-1, -2), dtype)


@MIXES
def test_mixed_values(tokens, outliers, shared, rows, dtype, device):
    mixed, dense = mixed_tokens(tokens, outliers, shared, rows, device)
    p = torch.randn(rows, 2, 3, tokens, device=device).to(dtype)
    for path in ("torch", "triton"):
        assert_close(mixed_values(p, mixed, 48, path), p.double() @ dense, dtype)
