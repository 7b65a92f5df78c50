"""QAQ: a cache to quantize, its widths as stored, and the same from the paper's formulas in float64."""

import math

import numpy as np
import torch
from torch import Tensor

from kvq_core.codecs.stream import Stream
from kvq_core.methods import Fitted, Prompt, make
from kvq_core.methods.qaq.units import RaggedBlock

HEADS, GROUPS, DIM = 2, 3, 16


def cache(tokens: int, kv_heads: int = HEADS, groups: int = GROUPS, dim: int = DIM, seed: int = 0) -> list[Tensor]:
    """Keys, values, queries; some channels large, some tokens small."""
    g = torch.Generator().manual_seed(seed)
    size = torch.rand(1, tokens, 1, generator=g) + 0.1
    keys = torch.randn(kv_heads, tokens, dim, generator=g) * size * torch.linspace(0.5, 4, dim)
    values = torch.randn(kv_heads, tokens, dim, generator=g) * size
    return [keys, values, torch.randn(kv_heads * groups, tokens, dim, generator=g)]


def fit(keys: Tensor, values: Tensor, queries: Tensor, **knobs: object) -> tuple[Fitted, Stream, Stream]:
    method = make("qaq", **knobs)
    fitted = method.fit(Prompt(keys[None], values[None], queries[None], torch.float32))
    key, value = method.windows()
    return fitted, Stream.of_prompt(keys[None], key, fitted.key), Stream.of_prompt(values[None], value, fitted.value)


def widths(stream: Stream) -> np.ndarray:
    """(tokens, kv_heads) of the only layer."""
    block = stream.blocks[0]
    assert isinstance(block, RaggedBlock)
    return block.widths.view(block.tensors["lows"].shape)[:, 0].numpy()


def attention_by_hand(queries: Tensor, keys: Tensor, last: int) -> np.ndarray:
    """(last, query_heads, tokens) float64: the softmax rows of the last queries."""
    q, k = queries.double().numpy(), keys.double().numpy()
    tokens, rows = k.shape[1], []
    for t in range(tokens - last, tokens):
        scores = np.stack([k[h // GROUPS, : t + 1] @ q[h, t] / math.sqrt(DIM) for h in range(len(q))])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        rows.append(np.pad(weights / weights.sum(-1, keepdims=True), ((0, 0), (0, tokens - t - 1))))
    return np.stack(rows)


def ranges_by_hand(x: Tensor, outliers: int) -> np.ndarray:
    """(tokens, kv_heads): range without the outliers."""
    s = np.sort(x.double().numpy(), -1)
    return (s[..., -1 - outliers] - s[..., outliers]).T


def bits_by_hand(ranges: np.ndarray, sigma: np.ndarray | float, window: int) -> np.ndarray:
    with np.errstate(divide="ignore"):
        bits = np.clip(np.ceil(np.log2(ranges / (2 * math.sqrt(3) * sigma))), 1, 8)
    bits[len(bits) - window + 1 :] = 8
    return bits


def value_bits_by_hand(values: Tensor, rows: np.ndarray, tolerance: float, outliers: int = 1) -> np.ndarray:
    tokens = rows.shape[-1]
    largest = rows.reshape(len(rows), HEADS, GROUPS, tokens).max((0, 2)).T
    with np.errstate(divide="ignore"):
        sigma = tolerance / (math.sqrt(tokens) * largest)
    return bits_by_hand(ranges_by_hand(values, outliers), sigma, len(rows))


def key_bits_by_hand(keys: Tensor, queries: Tensor, tokens: int, tolerance: float) -> np.ndarray:
    squares = np.sort(queries.double().square().sum(-1).numpy(), -1)
    high = squares[:, math.ceil(0.9 * squares.shape[1]) - 1].reshape(HEADS, GROUPS).max(1)
    sigma = np.sqrt(np.log(tokens**3 / (tokens - 1) * tolerance**2 + 1) * DIM / high)
    return bits_by_hand(ranges_by_hand(keys, 1), sigma[None], 5)
