"""Decode steps as a whole: attention over a cache and a new token, which the same launches enter and pack, against a
cache worked out anew in numpy and against the reference, bit for bit."""

import copy

import numpy as np
import pytest
import torch
from check_independent import FULL, held
from kvq_kernels import step as steps
from kvq_kernels.attention import Splits
from kvq_kernels.grouped import Grid
from kvq_kernels.layout import Layout
from kvq_kernels.rows import join
from kvq_kernels.step import decode_step, finish
from kvq_kernels.store import SIDES, Store
from measures import keys_with_traps

LAYOUTS = {
    "kivi": (Layout(Grid(2), "tokens", 0, 0, 32), Layout(Grid(2), "channels", 0, 8, 1)),
    "kivi3": (Layout(Grid(3, 64), "tokens", 2, 0, 64), Layout(Grid(3, 16), "channels", 2, 4, 1)),
    "innerq": (Layout(FULL, "channels", 4, 4, 1), Layout(FULL, "tokens", 4, 4, 32)),
    "per_channel": (Layout(Grid(4, 16), "tokens", 0, 0, 16), Layout(Grid(8, 16), "tokens", 0, 3, 16)),
    "per_token": (Layout(Grid(1, 32, "symmetric"), "channels", 0, 5, 4), Layout(Grid(4, 64), "channels", 0, 8, 1)),
}


def filled(kind, x, prompt, norms=None):
    stores = []
    for given, layout, side in zip(x, LAYOUTS[kind], SIDES, strict=True):
        own = norms if side == "keys" and LAYOUTS[kind][0].grid is FULL else None
        store = Store.empty(given, layout, side, norms=own, path="torch")
        store.fill(given[..., :prompt, :])
        stores.append(store)
    return stores


def enter(stores, fresh):
    """The second launch alone, as if nothing had been found by the first."""
    empty = Splits(
        *(torch.zeros(fresh[0].shape[1] * len(fresh[0]), 1, 1, n, device=fresh[0].device) for n in (16, 1, 1))
    )
    for store in stores:
        store.reserve_step()
    out = torch.zeros_like(fresh[0])
    acc = Splits(torch.zeros(*empty.top.shape[:3], fresh[0].shape[-1], device=out.device), empty.top, empty.total + 1)
    finish(acc, out, *stores, fresh)
    for store in stores:
        store.count_step()


def same(one, other):
    """Two stores of equal lengths, to the bit."""
    assert torch.equal(one.lengths, other.lengths) and torch.equal(one.widest, other.widest)
    counts = [(s.sink_tokens, s.packed_tokens, s.later_tokens) for s in (one, other)]
    assert counts[0] == counts[1] and one.lengths[0, :3].tolist() == list(counts[0])
    for a, b in zip(one.pool.segments, other.pool.segments, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.sinks(), other.sinks()) and torch.equal(one.recent(), other.recent())


@pytest.mark.parametrize(("prompt", "dim"), [(1, 32), (120, 48)])
@pytest.mark.parametrize("kind", list(LAYOUTS))
def test_tokens_enter_and_are_packed_as_in_the_reference(kind, prompt, dim, device):
    """Through sinks, windows, and the end of a block; 80 steps, every record to the bit."""
    if any(layout.grid.mode != "asymmetric" for layout in LAYOUTS[kind]):
        dim = -(-dim // 32) * 32  # signs come in whole words
    x = [keys_with_traps(1, 1, prompt + 80, dim, device=device) for _ in range(2)]
    norms = x[0].abs().amax(-2, keepdim=True).clamp_min(0.1).sqrt().half()
    pairs = [filled(kind, x, prompt, norms) for _ in range(2)]
    for t in range(prompt, prompt + 80):
        fresh = tuple(part[..., t : t + 1, :] for part in x)
        enter(pairs[0], fresh)
        for store, part in zip(pairs[1], fresh, strict=True):
            store.append(part)
            store.pack_due()
    for one, other in zip(*pairs, strict=True):
        same(one, other)
        assert one.packed_tokens >= 32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("kind", "prompt"), [("kivi", 94), ("innerq", 2), ("innerq", 38)])
def test_steps_over_a_cache_worked_out_anew(kind, prompt, dtype, device, monkeypatch):
    """Every head of every step, where sinks fill up and where a window is packed."""
    monkeypatch.setattr("kvq_kernels.launch.REGISTERS", 65536 // 8)
    x = [keys_with_traps(1, 1, prompt + 4, 32, device=device).to(dtype).float() for _ in range(2)]
    norms = torch.ones(1, 1, 1, 32, device=device).half() * 0.7
    stores = filled(kind, x, prompt, norms)
    scales = norms[0, 0].float().cpu().numpy() if kind == "innerq" else np.float32(1)
    for t in range(prompt, prompt + 4):
        q = (torch.randn(1, 3, 1, 32, device=device) * 0.3).to(dtype)
        k, v = (part[..., t : t + 1, :].to(dtype) for part in x)
        found = decode_step(q, k, v, *stores, 0.2, "triton")[0, :, 0].double().cpu().numpy()
        tokens = [part[0, 0, : t + 1].cpu().numpy() for part in x]
        keys, values = (
            held(rows, layout, prompt, scales if side == "keys" else np.float32(1))[0]
            for rows, layout, side in zip(tokens, LAYOUTS[kind], SIDES, strict=True)
        )
        scores = q[0, :, 0].double().cpu().numpy() @ keys.T * 0.2
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ values
        errors = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert errors.max() < (8e-3 if dtype == torch.bfloat16 else 2e-3), (t, errors)
    assert min(store.packed_tokens for store in stores) >= 32 or prompt == 2


@pytest.mark.parametrize("kind", ["kivi", "innerq"])
def test_rows_of_different_lengths_are_one_launch_and_answer_as_each_alone(kind, device, monkeypatch):
    monkeypatch.setattr("kvq_kernels.launch.REGISTERS", 65536 // 8)
    lengths, dim = (1, 94, 300), 32
    x = [[keys_with_traps(1, 1, n + 4, dim, device=device) for n in lengths] for _ in SIDES]
    norms = [part.abs().amax(-2, keepdim=True).clamp_min(0.1).sqrt().half() for part in x[0]]
    rows = [filled(kind, parts, n, own) for *parts, n, own in zip(*x, lengths, norms, strict=True)]
    alone = [filled(kind, parts, n, own) for *parts, n, own in zip(*x, lengths, norms, strict=True)]
    whole = [join(stores) for stores in zip(*rows, strict=True)]
    launched = []
    monkeypatch.setattr(steps, "finish", lambda *a, real=finish: launched.append(a[0].matrices) or real(*a))
    for at in range(4):
        q = torch.randn(3, 2, 1, dim, device=device).half() * 0.3
        fresh = [
            torch.cat([part[..., n + at : n + at + 1, :] for part, n in zip(side, lengths, strict=True)]) for side in x
        ]
        found = decode_step(q, *fresh, *whole, 0.2, "triton")
        for row, stores in enumerate(alone):
            one = decode_step(q[row : row + 1], *(part[row : row + 1] for part in fresh), *stores, 0.2, "torch")
            assert (found[row] - one[0]).norm(dim=-1).max() / one.norm(dim=-1).max() < 2e-3
    assert launched == [3] * 4
    for mine, own in zip(rows, alone, strict=True):
        for one, other in zip(mine, own, strict=True):
            assert torch.equal(one.dense(), other.dense()) and one.nbytes == other.nbytes
            assert one.lengths.tolist() == other.lengths.tolist()


@pytest.mark.parametrize("kind", list(LAYOUTS))
def test_what_entered_since_a_mark_is_forgotten(kind, device):
    """Codes of forgotten tokens leave no bits behind for those that enter in their place."""
    dim = 64
    x = [keys_with_traps(1, 2, 400, dim, device=device) for _ in range(2)]
    marked, plain = (filled(kind, x, 100) for _ in range(2))
    for store, part in zip(marked, x, strict=True):
        mark = store.mark()
        store.extend(part[..., 100:330, :])
        store.rewind(mark)
        assert store.tokens == 100
    for store, part in zip((*marked, *plain), x * 2, strict=True):
        store.extend(part[..., 300:400, :])
    for one, other in zip(marked, plain, strict=True):
        assert torch.equal(one.dense(), other.dense()) and torch.equal(one.lengths, other.lengths)
        assert torch.equal(one.pool.read(one.packed_tokens).codes, other.pool.read(other.packed_tokens).codes)


@pytest.mark.parametrize("kind", ["kivi", "innerq"])
def test_a_copy_answers_as_what_it_is_of_and_goes_its_own_way(kind, device, monkeypatch):
    monkeypatch.setattr("kvq_kernels.launch.REGISTERS", 65536 // 8)
    x = [keys_with_traps(1, 1, 400, 32, device=device) for _ in SIDES]
    stores = filled(kind, x, 100, torch.ones(1, 1, 1, 32, device=device).half())
    for store, part in zip(stores, x, strict=True):
        store.extend(part[..., 100:399, :])
    assert all(len(store.pool.segments) > 1 for store in stores)
    q = torch.randn(1, 2, 1, 32, device=device).half() * 0.3
    fresh, copies = [part[..., 399:, :].half() for part in x], copy.deepcopy(stores)
    ran = [decode_step(q, *fresh, *each, 0.2, path) for each, path in ((copies, "triton"), (stores, "torch"))]
    assert (ran[0] - ran[1]).norm() < 2e-3 * ran[1].norm()
    for one, other in zip(copies, stores, strict=True):
        assert torch.equal(one.dense(), other.dense()) and torch.equal(one.lengths, other.lengths)


@pytest.mark.gpu
def test_a_captured_step_goes_on_for_as_long_as_it_is_played(device):
    dim, prompt = 128, 700
    x = [keys_with_traps(1, 2, prompt + 60, dim, device=device) for _ in range(2)]
    stores, alone = (filled("kivi", x, prompt) for _ in range(2))
    q, fresh = torch.randn(1, 8, 1, dim, device=device).half() * 0.2, [part[..., :1, :].clone() for part in x]
    graph = None
    for t in range(prompt, prompt + 60):
        q.copy_(torch.randn_like(q) * 0.2)
        for held_in, part in zip(fresh, x, strict=True):
            held_in.copy_(part[..., t : t + 1, :])
        expected = decode_step(q.float(), *fresh, *alone, 0.1, "torch")
        if t == prompt:
            out = decode_step(q, *fresh, *stores, 0.1, "triton")  # compiles
        else:
            if graph is None:
                graph = torch.cuda.CUDAGraph()
                with steps.uncounted(), torch.cuda.graph(graph):
                    out = decode_step(q, *fresh, *stores, 0.1, "triton")
            for store in stores:
                store.reserve_step()
            graph.replay()
            for store in stores:
                store.count_step()
        assert ((out - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 4e-3
    for one, other in zip(stores, alone, strict=True):
        same(one, other)
