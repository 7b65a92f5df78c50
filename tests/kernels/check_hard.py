"""Shapes and lengths at which kernels of this kind break, head by head against a cache worked out anew in numpy.

Ends of groups, parts and blocks, sinks that a prompt does not fill, any number of query heads, heads that are no power
of two wide, and groups as wide as float16 is.
"""

import numpy as np
import pytest
import torch
from check_independent import FULL, held
from kvq_kernels.attention import decode_attention
from kvq_kernels.grouped import Grid, quantize_pack, unpack_dequantize
from kvq_kernels.layout import Layout
from kvq_kernels.store import SIDES, Store
from measures import keys_with_traps

KIVI = Layout(Grid(2), "tokens", 0, 0, 32), Layout(Grid(2, 16), "channels", 0, 16, 1)
INNERQ = Layout(FULL, "channels", 5, 12, 1), Layout(FULL, "tokens", 5, 12, 32)
NARROW = Layout(Grid(4, 16), "tokens", 0, 0, 16), Layout(Grid(2, 16), "tokens", 0, 0, 16)  # no groups of channels
LENGTHS = (1, 2, 3, 4, 5, 6, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 385)
SHARED = (3, 5, 6, 7, 9, 12, 15, 17, 24, 33, 48, 64)
DIMS = (40, 48, 72, 80, 96, 112, 160, 192, 224)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    monkeypatch.setattr("kvq_kernels.launch.REGISTERS", 65536 // 8)


def errors(layouts, tokens, dim, heads, device):
    """Of every head of the Triton path, relative to its own size."""
    x = [keys_with_traps(1, 1, tokens, dim, device=device) for _ in SIDES]
    stores, dense = [], []
    for part, layout, side in zip(x, layouts, SIDES, strict=True):
        store = Store.empty(part, layout, side, path="torch")
        prompt = max(1, tokens - 1)
        store.fill(part[..., :prompt, :])
        if prompt < tokens:
            store.append(part[..., prompt:, :])
        stores.append(store)
        dense.append(held(part[0, 0].cpu().numpy(), layout, prompt, np.float32(1))[0])
    q = torch.randn(1, heads, 1, dim, device=device).half() * 0.3
    scores = q[0, :, 0].double().cpu().numpy() @ dense[0].T * 0.125
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ dense[1]
    found = decode_attention(q, *stores, 0.125, "triton")[0, :, 0].double().cpu().numpy()
    # of a single token, which is zeros, nothing is left
    return np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1).clip(1e-6)


@pytest.mark.parametrize("layouts", [KIVI, INNERQ], ids=["kivi", "innerq"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_lengths_at_the_ends_of_groups_parts_and_blocks(tokens, layouts, device):
    if tokens < layouts[0].sinks:  # all of them are sinks
        layouts = tuple(layout._replace(sinks=tokens) for layout in layouts)
    assert errors(layouts, tokens, 32, 2, device).max() < 2e-3


@pytest.mark.parametrize("shared", SHARED)
def test_any_number_of_query_heads_share_a_kv_head(shared, device):
    assert errors(KIVI, 100, 32, shared, device).max() < 2e-3


@pytest.mark.parametrize("dim", DIMS)
def test_heads_that_are_no_power_of_two_wide(dim, device):
    assert errors(NARROW if dim % 16 else KIVI, 150, dim, 2, device).max() < 2e-3


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_group_that_spans_all_of_float16(bits, device):
    """Its scale may be none of them: one bit has 131,008 to tell apart. Then all of the group is no number, on both
    paths, rather than a number that is wrong."""
    x = torch.zeros(1, 32, 32, device=device)
    x[..., 0, :], x[..., 1, :] = 65504.0, -65504.0
    read = [
        unpack_dequantize(quantize_pack(x, Grid(bits), "tokens", path), Grid(bits), "tokens", 32, "torch")
        for path in ("torch", "triton")
    ]
    assert torch.equal(*(part.nan_to_num(nan=1e9) for part in read))
    if bits > 1:
        assert (read[1] - x).abs().max() <= 65504 / ((1 << bits) - 1) + 64
