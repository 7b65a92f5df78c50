"""Attention of one new token over an fp16 cache, by every way torch has: the fastest is what a packed cache is judged
by, whichever that is on a machine."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "fp16_flash": SDPBackend.FLASH_ATTENTION,
    "fp16_cudnn": SDPBackend.CUDNN_ATTENTION,
    "fp16_efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def fp16_calls(q: Tensor, caches: list[tuple[Tensor, Tensor]]) -> dict[str, Callable[[], Any]]:
    """By name: what SDPA chooses by itself, each of its kernels alone, and both products with a softmax.

    q (batch, query_heads, 1, head_dim); keys and values (batch, kv_heads, tokens, head_dim) of each layer, which are
    different tensors: one that was both would be read once.
    """
    assert all(keys.data_ptr() != values.data_ptr() for keys, values in caches)
    calls = {"fp16_sdpa": lambda: [_sdpa(q, *cache) for cache in caches]}
    for name, backend in BACKENDS.items():
        calls[name] = lambda backend=backend: _through(backend, q, caches)
    return calls | {"fp16_matmul": lambda: [_matmul(q, *cache) for cache in caches]}


def _through(backend: SDPBackend, q: Tensor, caches: list[tuple[Tensor, Tensor]]) -> None:
    with sdpa_kernel(backend):
        for cache in caches:
            _sdpa(q, *cache)


def _sdpa(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)


def _matmul(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    batch, _, _, dim = q.shape
    asked = q.reshape(batch, keys.shape[1], -1, dim)
    return torch.softmax(asked @ keys.transpose(-1, -2) * dim**-0.5, -1) @ values
