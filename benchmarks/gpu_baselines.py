"""Attention of one new token over an fp16 cache, by every way torch has: the fastest is what a packed cache is judged
by, whichever that is on a machine."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
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
    return {
        name: lambda attend=attend: [attend(q, *cache) for cache in caches]  # type: ignore[misc]
        for name, attend in attentions().items()
    }


def attentions() -> dict[str, Attend]:
    """The ways by name."""
    backends = {name: partial(_through, backend) for name, backend in BACKENDS.items()}
    return {"fp16_sdpa": _sdpa, **backends, "fp16_matmul": _matmul}


def _through(backend: SDPBackend, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return _sdpa(q, keys, values)


def _sdpa(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)


def _matmul(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    batch, _, _, dim = q.shape
    asked = q.reshape(batch, keys.shape[1], -1, dim)
    return torch.softmax(asked @ keys.transpose(-1, -2) * dim**-0.5, -1) @ values
