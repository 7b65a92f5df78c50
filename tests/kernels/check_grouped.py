"""Quantize and pack, unpack and dequantize, and the products with packed groups, against plain torch and float64."""

import pytest
import torch
from kvq_kernels.gemv import packed_scores, packed_values
from kvq_kernels.grouped import BITS, MODES, Grid, quantize_pack, unpack_dequantize
from measures import assert_close, keys_with_traps

AXES = ("channels", "tokens")
KINDS = [(axis, mode) for axis in AXES for mode in MODES]


@pytest.mark.parametrize(("axis", "mode"), KINDS)
@pytest.mark.parametrize("bits", BITS)
def test_quantize_pack_equals_the_reference_bit_for_bit(bits, axis, mode, device):
    grid = Grid(bits, 32, mode, torch.float32)
    x = keys_with_traps(2, 33, 64, device=device)
    expected, found = (quantize_pack(x, grid, axis, path) for path in ("torch", "triton"))
    for name, a, b in zip(expected._fields, expected, found, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a, b), f"{name}: {(a != b).float().mean():.2%} differ"


@pytest.mark.parametrize(("axis", "mode"), KINDS)
@pytest.mark.parametrize("bits", BITS)
def test_unpack_dequantize_is_the_reference_and_half_a_step_off(bits, axis, mode, device):
    grid = Grid(bits, 32, mode, torch.float32)
    x = keys_with_traps(2, 33, 64, device=device)
    expected = quantize_pack(x, grid, axis, "torch")
    count = 33 if axis == "tokens" else 64
    exact = unpack_dequantize(expected, grid, axis, count, "torch")
    assert torch.equal(exact, unpack_dequantize(expected, grid, axis, count, "triton"))
    rows = exact.transpose(-1, -2) if axis == "tokens" else exact
    scales = expected.scales.float().abs().repeat_interleave(32, -1)[..., :count]
    given = x.transpose(-1, -2) if axis == "tokens" else x
    # half a step, and the rounding of scale and zero-point to their dtypes
    slack = given.abs().amax(-1, keepdim=True) * 2**-9
    assert ((rows - given).abs() <= scales * 0.51 + slack).all()


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("tokens", "dtype"),
    [(1, torch.float16), (1, torch.bfloat16), (63, torch.float16), (63, torch.bfloat16), (1000, torch.float16)],
)
def test_quantize_pack_takes_ragged_lengths_and_half_precision(tokens, dtype, axis, device):
    grid = Grid(2, 32, "hybrid", torch.float16)
    x = keys_with_traps(1, tokens, 32, device=device, dtype=dtype)
    for a, b in zip(*(quantize_pack(x, grid, axis, path) for path in ("torch", "triton")), strict=True):
        assert torch.equal(a, b)


# Longer and shorter than the tiles that products read, and than the words of 32 signs where there are none.
GROUPS = [(8, "asymmetric"), (16, "asymmetric"), (64, "hybrid"), (128, "symmetric"), (256, "hybrid")]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("size", "mode"), GROUPS)
def test_quantize_pack_and_unpack_dequantize_of_other_groups(size, mode, axis, device):
    grid = Grid(3, size, mode, torch.float32)
    x = keys_with_traps(2, 300, 48, device=device)
    expected, found = (quantize_pack(x, grid, axis, path) for path in ("torch", "triton"))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    count = 300 if axis == "tokens" else 48
    dense = (unpack_dequantize(expected, grid, axis, count, path) for path in ("torch", "triton"))
    assert torch.equal(*dense)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("size", "mode"), GROUPS[1:])
@pytest.mark.parametrize("dim", [64, 256])
def test_packed_products_of_other_groups(dim, size, mode, axis, device):
    for check in (scores, values):
        check(2, axis, mode, 300, dim, 2, torch.float16, device, units=1, size=size)


def assert_same_codes(expected, found, x, grid):
    """To the bit; but which grid a hybrid group takes may differ where both lose as much, for sums of squares are
    rounded in another order on every device, and below 1e-36 to next to nothing. Codes of a group of which nothing is
    read may be any: those of a quotient that is no number are a device's own."""
    reads = [unpack_dequantize(p, grid, "channels", x.shape[-1], "torch").double() for p in (expected, found)]
    nothing = [read.isnan().unflatten(-1, (expected.scales.shape[-1], -1)).all(-1) for read in reads]
    same = torch.stack(
        [
            (a == b).unflatten(-1, (expected.scales.shape[-1], -1)).all(-1)
            for a, b in zip(map(torch.nan_to_num, expected), map(torch.nan_to_num, found), strict=True)
        ]
    ).all(0) | torch.stack(nothing).all(0)
    if grid.mode == "hybrid":
        other = torch.signbit(expected.scales) != torch.signbit(found.scales)
        assert (same | other).all() and other.float().mean() < 0.2
        lost = [(read - x).square().unflatten(-1, (other.shape[-1], -1)).sum(-1)[other] for read in reads]
        torch.testing.assert_close(*lost, rtol=1e-5, atol=1e-36)
    else:
        assert same.all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", BITS)
def test_quantize_pack_decides_ties_as_a_division_does(bits, mode, device):
    """Elements at (code + 1/2) * scale and one float32 to either side of it, whose quotients may round to the tie."""
    found = torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16).float()  # every scale above 0
    scales = (found if device == "cuda" else found[torch.randperm(len(found))[:200]])[:, None]
    top, size = (1 << bits) - 1, 64
    code = torch.randint(0, top, (len(scales), size - 2)) + 0.5
    beside = ((scales * code).view(torch.int32) + torch.randint(-1, 2, code.shape, dtype=torch.int32)).view(
        torch.float32
    )
    x = torch.cat([0 * scales, beside, top * scales], 1)
    signs = 1.0 if mode == "asymmetric" else torch.randint(0, 2, x.shape) * 2 - 1
    grid = Grid(bits, size, mode, torch.float32)
    expected, packed = (quantize_pack((x * signs).to(device), grid, "channels", path) for path in ("torch", "triton"))
    assert_same_codes(expected, packed, (x * signs).to(device), grid)
    assert mode == "hybrid" or torch.equal(packed.scales.cpu()[:, 0], scales[:, 0].half())


def test_quantize_pack_of_extreme_groups(device):
    """Ranges whose scales are no numbers of a float16 or nearly none, and an offset that is none."""
    size = torch.exp2(torch.arange(-140.0, 127.0))[:, None]
    for x in (torch.randn(len(size), 32) * size, torch.randn(len(size), 32).abs() * 1e-3 * size - size):
        for mode in MODES:
            for zero_point in (torch.float16, torch.float32):
                grid = Grid(2, 32, mode, zero_point)
                pair = [quantize_pack(x.to(device), grid, "channels", path) for path in ("torch", "triton")]
                assert_same_codes(*pair, x.to(device), grid)


def test_quantize_pack_reads_strided_inputs(device):
    x = keys_with_traps(3, 40, 2, 64, device=device).transpose(1, 2)  # (3, 2, 40, 64), not contiguous
    grid = Grid(4)
    for axis in AXES:
        for a, b in zip(*(quantize_pack(x, grid, axis, path) for path in ("torch", "triton")), strict=True):
            assert torch.equal(a, b)


def test_groups_without_range(device):
    for value in (0.0, -3.0):
        x = torch.full((1, 32, 32), value, device=device)
        for mode in MODES:
            grid = Grid(2, 32, mode, torch.float32)
            packed = quantize_pack(x, grid, "channels", "triton")
            read = unpack_dequantize(packed, grid, "channels", 32, "triton")
            assert torch.isfinite(read).all() and (read - value).abs().max() <= abs(value) * 2**-10


@pytest.mark.parametrize(("axis", "mode"), KINDS)
@pytest.mark.parametrize("bits", BITS)
def test_packed_scores(bits, axis, mode, device):
    scores(bits, axis, mode, 63, 64, 3, torch.float16, device)


@pytest.mark.parametrize(("axis", "mode"), KINDS)
@pytest.mark.parametrize("bits", BITS)
def test_packed_values(bits, axis, mode, device):
    values(bits, axis, mode, 63, 64, 3, torch.float16, device)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("tokens", "dim", "queries", "dtype"),
    [(1, 64, 1, torch.float16), (1000, 64, 1, torch.float16), (63, 80, 7, torch.float32), (63, 128, 8, torch.bfloat16)],
)
def test_packed_products_of_other_shapes(tokens, dim, queries, dtype, axis, device):
    for check in (scores, values):
        check(2, axis, "hybrid", tokens, dim, queries, dtype, device, units=1)


def packed_and_exact(bits, axis, mode, tokens, dim, device, units, size):
    grid = Grid(bits, size, mode, torch.float32)
    packed = quantize_pack(keys_with_traps(units, tokens, dim, device=device), grid, axis, "torch")
    count = tokens if axis == "tokens" else dim
    return grid, packed, unpack_dequantize(packed, grid, axis, count, "torch").double()


def scores(bits, axis, mode, tokens, dim, queries, dtype, device, units=2, size=32):
    grid, packed, dense = packed_and_exact(bits, axis, mode, tokens, dim, device, units, size)
    q = torch.randn(units, queries, dim, device=device).to(dtype)
    for path in ("torch", "triton"):
        assert_close(packed_scores(q, packed, grid, axis, tokens, path), q.double() @ dense.transpose(-1, -2), dtype)


def values(bits, axis, mode, tokens, dim, queries, dtype, device, units=2, size=32):
    grid, packed, dense = packed_and_exact(bits, axis, mode, tokens, dim, device, units, size)
    p = torch.rand(units, queries, tokens, device=device).to(dtype)
    for path in ("torch", "triton"):
        assert_close(packed_values(p, packed, grid, axis, dim, path), p.double() @ dense, dtype)
