"""Numbers that float16 hardly holds, and those that are none."""

import pytest
import torch
from check_attention import exact
from kvq_kernels.attention import decode_attention
from kvq_kernels.grouped import MODES, Grid, quantize_pack, unpack_dequantize
from kvq_kernels.layout import Layout
from kvq_kernels.squat import squat_quantize
from kvq_kernels.step import decode_step
from kvq_kernels.store import SIDES, Store

pytestmark = pytest.mark.usefixtures("fewer_programs")
LAYOUTS = {
    "kivi": (Layout(Grid(2), "tokens", 0, 0, 32), Layout(Grid(2), "channels", 0, 32, 1)),
    "innerq": (
        Layout(Grid(2, 32, "hybrid", torch.float32), "channels", 4, 20, 1),
        Layout(Grid(2, 32, "hybrid", torch.float32), "tokens", 4, 20, 32),
    ),
    "per_token": (Layout(Grid(4), "channels", 0, 8, 1), Layout(Grid(1), "channels", 0, 8, 1)),
}


def filled(kind, keys, values):
    """Stores that most of the tokens entered as the prompt and the last ones one by one."""
    stores = []
    for x, layout, side in zip((keys, values), LAYOUTS[kind], ("keys", "values"), strict=True):
        norms = x.abs().amax(-2, keepdim=True).sqrt().half() if layout.sinks and not stores else None
        store = Store.empty(x, layout, side, norms=norms, path="torch")
        store.fill(x[..., :250, :])
        for t in range(250, x.shape[-2]):
            store.append(x[..., t : t + 1, :])
            if t < x.shape[-2] - 1:
                store.pack_due()
        stores.append(store)
    return stores


def farthest(result, expected):
    """Relative error of the worst head."""
    return ((result.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max()


@pytest.mark.parametrize("kind", list(LAYOUTS))
@pytest.mark.parametrize("size", [1000.0, 2000.0, 4200.0, 30000.0])
def test_large_values(size, kind, device):
    """Far larger ones come only after the prompt."""
    keys, values = torch.randn(2, 1, 2, 300, 64, device=device)
    values = (values / values.abs().amax()) * size
    values[..., :240, :] /= 100
    stores = filled(kind, keys, values)
    assert stores[1].sink_tokens + stores[1].packed_tokens >= 260
    q = torch.randn(1, 4, 1, 64, device=device).half()
    for path in ("torch", "triton"):
        assert (
            farthest(
                decode_attention(q.float() if path == "torch" else q, *stores, 0.125, path).float(),
                exact(q, *stores, 0.125),
            )
            < 4e-3
        )


@pytest.mark.parametrize("kind", list(LAYOUTS))
@pytest.mark.parametrize("offset", [100.0, 1000.0, 20000.0])
def test_keys_far_from_zero(offset, kind, device):
    """Offsets that softmax does not see: what is left of them is the rounding of a query times an offset."""
    keys, values = torch.randn(2, 1, 2, 300, 64, device=device)
    keys = keys + offset * torch.randn(1, 2, 1, 64, device=device).sign()
    stores = filled(kind, keys, values)
    q = torch.randn(1, 4, 1, 64, device=device).half()
    found = decode_attention(q, *stores, 0.125, "triton")
    assert found.dtype == q.dtype and farthest(found.float(), exact(q, *stores, 0.125)) < 1e-2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axis", ["channels", "tokens"])
@pytest.mark.parametrize(("element", "tokens"), [(float("nan"), 64), (float("nan"), 37), (float("inf"), 64)])
def test_a_group_with_what_is_no_number_is_no_number(element, tokens, axis, mode, device):
    x = torch.randn(2, tokens, 64, device=device)
    x[1, 34, 3] = element
    grid, count = Grid(2, 32, mode, torch.float32), 64 if axis == "channels" else tokens
    for path in ("torch", "triton"):
        read = unpack_dequantize(quantize_pack(x, grid, axis, path), grid, axis, count, path)
        group = read[1, 34, :32] if axis == "channels" else read[1, 32:64, 3]
        assert group.isnan().all() and read.isnan().sum() == group.numel()


def test_squat_carries_what_is_no_number_into_the_channels_after_it(device):
    x = torch.randn(2, 64, 32, device=device)
    x[1, 34, 3] = float("nan")
    updates = (torch.randn(2, 16, 16, device=device) * 0.1,)
    found = [
        unpack_dequantize(squat_quantize(x, updates, 16, Grid(2), path), Grid(2), "tokens", 64, "torch").isnan()
        for path in ("torch", "triton")
    ]
    assert torch.equal(*found) and found[0].sum() == 32 * (1 + 16)


def stepped(layouts, x, tokens):
    """What a step finds over stores that hold ``tokens``, and they afterwards: by the reference and by the kernels."""
    q = torch.randn(1, 2, 1, 64, device=x.device).half() * 0.3
    for path in ("torch", "triton"):
        stores = [
            Store.empty(part, layout._replace(sinks=0), side, path="torch")
            for part, layout, side in zip(x, layouts, SIDES, strict=True)
        ]
        for store, part in zip(stores, x, strict=True):
            store.fill(part[..., :tokens, :])
        fresh = (part[..., tokens : tokens + 1, :].half() for part in x)
        yield decode_step(q, *fresh, *stores, 0.2, path), stores


@pytest.mark.parametrize("kind", list(LAYOUTS))
@pytest.mark.parametrize(("side", "begin", "end"), [(0, 0, 128), (0, 5, 6), (1, 70, 71)])
def test_a_step_over_what_is_no_number_is_none_as_in_the_reference(side, begin, end, kind, device):
    """In one element, and in all the keys that a program reads."""
    x = torch.randn(2, 1, 1, 201, 64, device=device)
    x[side, ..., begin:end, 5] = float("nan")
    (expected, _), (found, _) = stepped(LAYOUTS[kind], x, 200)
    assert expected.isnan().any() and torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("side", [0, 1], ids=SIDES)
@pytest.mark.parametrize("element", [float("nan"), float("inf"), 65504.0])
def test_a_scale_that_is_no_number_bounds_no_other(element, side, device):
    """Of 1 bit, whose groups may span more than float16 holds: in the prompt, and where a step packs. What others are
    bounded by, which are larger than would be held without, stays."""
    layouts = Layout(Grid(1), "tokens", 0, 0, 32), Layout(Grid(1), "channels", 0, 32, 1)
    x = torch.randn(2, 1, 1, 224, 64, device=device)
    x[1, ..., 100:132, :] *= 3000
    for t in (70, 200 if side == 0 else 191):
        x[side, ..., t, 5] = element
        x[(side, 0, 0, t + 1, 5) if side == 0 else (side, 0, 0, t, 6)] = -65504.0
    (expected, by_torch), (found, by_triton) = stepped(layouts, x, 223)
    for one, other in zip(by_torch, by_triton, strict=True):
        scales = one.groups().scales.float().abs()
        assert one.widest == other.widest == scales[scales.isfinite()].max()
    some = expected.isfinite()
    assert torch.equal(found.isfinite(), some) and some.any() == (side == 1)
    if side:
        assert (found - expected)[some].norm() < 4e-3 * expected[some].norm()
