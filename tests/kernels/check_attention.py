"""Decode attention over [sinks | packed | recent], at every stage of a growing cache, against float64."""

import pytest
import torch
from kvq_kernels import launch
from kvq_kernels.attention import decode_attention
from kvq_kernels.grouped import Grid
from kvq_kernels.layout import Layout
from kvq_kernels.store import Store
from measures import assert_close, keys_with_traps

pytestmark = pytest.mark.usefixtures("fewer_programs")
LAYOUTS = {
    "kivi": (Layout(Grid(2), "tokens", 0, 0, 32), Layout(Grid(2), "channels", 0, 32, 1)),
    "innerq": (
        Layout(Grid(2, 32, "hybrid", torch.float32), "channels", 4, 20, 1),
        Layout(Grid(2, 32, "hybrid", torch.float32), "tokens", 4, 20, 32),
    ),
    "k4v3": (Layout(Grid(4), "channels", 0, 8, 1), Layout(Grid(3), "channels", 0, 8, 1)),
    "k1v4": (Layout(Grid(1), "tokens", 2, 0, 64), Layout(Grid(4), "tokens", 2, 0, 32)),
    "k8v8": (Layout(Grid(8), "tokens", 2, 0, 64), Layout(Grid(8), "channels", 2, 32, 1)),
    "symmetric": (Layout(Grid(2, 32, "symmetric"), "channels", 0, 0, 1), Layout(Grid(4, 64), "tokens", 0, 0, 64)),
}


def filled(kind, tokens, prompt, dim, device, kv_heads=2):
    """Keys and values of two rows after a prompt and single tokens; the last one has not been settled."""
    layouts = LAYOUTS[kind]
    stores = []
    for layout, side in zip(layouts, ("keys", "values"), strict=True):
        x = keys_with_traps(2, kv_heads, tokens, dim, device=device)
        norms = x.abs().amax(-2, keepdim=True).clamp_min(0.1).sqrt().half() if layout.sinks and not stores else None
        store = Store.empty(x, layout, side, norms=norms, path="torch")
        store.fill(x[..., :prompt, :])
        for t in range(prompt, tokens):
            store.append(x[..., t : t + 1, :])
            if t < tokens - 1:
                store.pack_due()
        stores.append(store)
    return stores


def exact(q, keys, values, scaling):
    k, v = (store.dense().double().repeat_interleave(q.shape[1] // store.sink.shape[1], 1) for store in (keys, values))
    return torch.softmax(q.double() @ k.transpose(-1, -2) * scaling, -1) @ v


@pytest.mark.parametrize("kind", list(LAYOUTS))
def test_decode_attention(kind, device):
    keys, values = filled(kind, 250, 230, 64, device)
    q = torch.randn(2, 6, 1, 64, device=device).half() * 0.2
    for path in ("torch", "triton"):
        assert_close(decode_attention(q, keys, values, 0.125, path), exact(q, keys, values, 0.125), q.dtype)


@pytest.mark.parametrize("kind", ["kivi", "innerq"])
@pytest.mark.parametrize("tokens", [1, 5, 33, 63, 1000])
def test_decode_attention_of_ragged_lengths(tokens, kind, device):
    keys, values = filled(kind, tokens, max(1 + tokens // 2, tokens - 40), 32, device, kv_heads=1)
    q = torch.randn(2, 2, 1, 32, device=device).half()
    assert_close(decode_attention(q, keys, values, 0.2, "triton"), exact(q, keys, values, 0.2), q.dtype)


@pytest.mark.parametrize(("heads", "dtype"), [(1, torch.float32), (8, torch.bfloat16), (20, torch.float16)])
def test_decode_attention_of_other_query_groups(heads, dtype, device):
    keys, values = filled("innerq", 160, 150, 80, device, kv_heads=1)
    q = (torch.randn(2, heads, 1, 80, device=device) * 0.2).to(dtype)
    assert_close(decode_attention(q, keys, values, 0.1, "triton"), exact(q, keys, values, 0.1), dtype)


@pytest.mark.parametrize(
    ("keys_in", "values_in", "dim"),
    [
        ((Grid(2, 128), "tokens"), (Grid(2, 128), "channels"), 128),
        ((Grid(3, 64), "channels"), (Grid(4, 64, "symmetric"), "tokens"), 80),
        ((Grid(2, 256, "hybrid"), "channels"), (Grid(1, 128, "hybrid"), "tokens"), 256),
        ((Grid(8, 16), "tokens"), (Grid(2, 16), "channels"), 16),
    ],
)
def test_decode_attention_of_groups_longer_and_shorter_than_a_part(keys_in, values_in, dim, device):
    """Everything is packed but a rest, so that the windows may be empty."""
    x = keys_with_traps(1, 1, 512, dim, device=device)
    stores = []
    for (grid, axis), side in zip((keys_in, values_in), ("keys", "values"), strict=True):
        layout = Layout(grid, axis, 0, 0, grid.group_size if axis == "tokens" else 1)
        store = Store.empty(x, layout, side, path="torch")
        store.fill(x)
        stores.append(store)
    q = torch.randn(1, 2, 1, dim, device=device).half() * 0.2
    assert_close(decode_attention(q, *stores, 0.1, "triton"), exact(q, *stores, 0.1), q.dtype)


def test_decode_attention_over_more_splits_than_are_combined_at_once(device, monkeypatch):
    """More than there are parts of blocks, too: some have nothing to do."""
    monkeypatch.setattr(launch, "processors", lambda like: 72)
    keys, values = filled("kivi", 2400, 2390, 16, device, kv_heads=1)
    assert 72 * 8 / 2 > max(launch.COMBINE.tokens, values.packed_tokens // 64)
    q = torch.randn(2, 1, 1, 16, device=device).half()
    assert_close(decode_attention(q, keys, values, 0.2, "triton"), exact(q, keys, values, 0.2), q.dtype)


@pytest.mark.gpu
def test_decode_attention_from_a_cuda_graph(device):
    keys, values = filled("innerq", 700, 690, 128, device)
    q = torch.randn(2, 8, 1, 128, device=device).half() * 0.2
    decode_attention(q, keys, values, 0.1, "triton")  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode_attention(q, keys, values, 0.1, "triton")
    for _ in range(2):
        q.copy_(torch.randn_like(q) * 0.2)
        graph.replay()
        assert_close(out, exact(q, keys, values, 0.1), q.dtype)


def test_far_scores_do_not_overflow(device):
    keys, values = filled("kivi", 130, 130, 64, device, kv_heads=1)
    q = torch.full((2, 2, 1, 64), 30.0, device=device).half()
    assert_close(decode_attention(q, keys, values, 1.0, "triton"), exact(q, keys, values, 1.0), torch.float16)
