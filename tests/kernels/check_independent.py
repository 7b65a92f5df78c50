"""Decode attention against a cache worked out anew: quantizers, windows and attention in numpy, sharing nothing with
the store. Errors are judged head by head."""

import numpy as np
import pytest
import torch
from kvq_kernels.attention import decode_attention
from kvq_kernels.grouped import Grid
from kvq_kernels.layout import Layout
from kvq_kernels.store import Store
from measures import keys_with_traps

pytestmark = pytest.mark.usefixtures("fewer_programs")
FULL = Grid(2, 32, "hybrid", torch.float32)
CASES = {
    "kivi": (Layout(Grid(2), "tokens", 0, 0, 32), Layout(Grid(2), "channels", 0, 32, 1)),
    "kivi4": (Layout(Grid(4, 64), "tokens", 3, 0, 64), Layout(Grid(4, 64), "channels", 3, 64, 1)),
    "innerq": (Layout(FULL, "channels", 4, 20, 1), Layout(FULL, "tokens", 4, 20, 32)),
    "per_token": (Layout(Grid(8), "channels", 0, 8, 1), Layout(Grid(3), "channels", 0, 8, 1)),
    "symmetric": (Layout(Grid(2, 32, "symmetric"), "channels"), Layout(Grid(2, 32, "symmetric"), "tokens", 0, 0, 32)),
}


def asymmetric(groups, bits, zero_point):
    top = np.float32((1 << bits) - 1)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    zero, scale = low.astype(zero_point).astype(np.float32), ((high - low) / top).astype(np.float16).astype(np.float32)
    scale = np.where(scale == 0, np.float32(1), scale)
    return np.clip(np.rint((groups - zero) / scale), 0, top).astype(np.float64) * scale + zero


def symmetric(groups, bits):
    top = np.float32((1 << bits) - 1)
    scale = (np.abs(groups).max(-1, keepdims=True) / top).astype(np.float16).astype(np.float32)
    scale = np.where(scale == 0, np.float32(1), scale)
    return np.sign(groups) * np.minimum(np.rint(np.abs(groups) / scale), top).astype(np.float64) * scale


def quantized(x, grid, axis):
    """What x (tokens, channels) float32 is after a round trip: float64."""
    rows = x.T if axis == "tokens" else x
    groups = rows.reshape(rows.shape[0], -1, grid.group_size)
    zero_point = np.float16 if grid.zero_point == torch.float16 else np.float32
    found = asymmetric(groups, grid.bits, zero_point)
    if grid.mode != "asymmetric":
        signed = symmetric(groups, grid.bits)
        better = ((signed - groups) ** 2).sum(-1, keepdims=True) <= ((found - groups) ** 2).sum(-1, keepdims=True)
        found = np.where(better | (grid.mode == "symmetric"), signed, found)
    rows = found.reshape(rows.shape)
    return rows.T if axis == "tokens" else rows


def held(x, layout, prompt, norms):
    """Tokens (tokens, channels) as attention reads them right after the last one has entered, and how many of them
    have been packed."""
    window, out, packed = [], [x[i].astype(np.float16).astype(np.float64) for i in range(min(layout.sinks, len(x)))], []
    for at in range(layout.sinks, len(x)):
        window.append(x[at] if at < prompt else x[at].astype(np.float16).astype(np.float32))
        due = len(window) - layout.recent
        if prompt - 1 <= at < len(x) - 1 and due >= layout.step:
            count = due // layout.step * layout.step
            packed += list(quantized(np.stack(window[:count]) / norms, layout.grid, layout.axis) * norms)
            window = window[count:]
        if at == prompt - 1:  # what is left of the prompt waits as float16, as all later tokens do
            window = [token.astype(np.float16).astype(np.float32) for token in window]
    rest = [token.astype(np.float16).astype(np.float64) for token in window]
    return np.stack(out + packed + rest), len(packed)


@pytest.mark.parametrize(("tokens", "prompt", "dim", "heads"), [(300, 270, 64, 6), (140, 137, 96, 2)])
@pytest.mark.parametrize("kind", list(CASES))
def test_decode_attention_of_a_cache_worked_out_anew(kind, tokens, prompt, dim, heads, device):
    if dim % CASES[kind][0].grid.group_size or dim % CASES[kind][1].grid.group_size:
        dim = 64
    stores, dense = [], []
    for layout, side in zip(CASES[kind], ("keys", "values"), strict=True):
        x = keys_with_traps(1, 2, tokens, dim, device=device)
        norms = torch.ones(1, 2, 1, dim, device=device).half()
        if kind == "innerq" and side == "keys":
            norms = x.abs().amax(-2, keepdim=True).clamp_min(0.1).sqrt().half()
        store = Store.empty(x, layout, side, norms=norms if kind == "innerq" and side == "keys" else None, path="torch")
        store.fill(x[..., :prompt, :])
        for t in range(prompt, tokens):
            store.append(x[..., t : t + 1, :])
            if t < tokens - 1:
                store.pack_due()
        scales = norms[0].float().cpu().numpy()
        found = [held(x[0, head].cpu().numpy(), layout, prompt, scales[head]) for head in range(2)]
        assert {count for _, count in found} == {store.packed_tokens}
        stores.append(store)
        dense.append(np.stack([each for each, _ in found]).repeat(heads // 2, 0))
    q = torch.randn(1, heads, 1, dim, device=device).half() * 0.3
    scores = np.einsum("hd,htd->ht", q[0, :, 0].double().cpu().numpy(), dense[0]) * 0.125
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("ht,htd->hd", weights / weights.sum(-1, keepdims=True), dense[1])
    for path in ("torch", "triton"):
        found = decode_attention(q, *stores, 0.125, path)[0, :, 0].double().cpu().numpy()
        errors = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert errors.max() < 2e-3, (path, errors)
