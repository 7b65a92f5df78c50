"""Blocks of a format by its name, and the arithmetic of servers in NumPy."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvq_core.codecs.codec import Codec
from kvq_core.methods import Prompt, make

Array = NDArray[np.float32]


def codecs(name: str, keys: Tensor, **knobs: object) -> tuple[Codec, Codec]:
    """Of a format fitted on keys that are its values as well: (layers, kv_heads, tokens, head_dim)."""
    fitted = make(name, **knobs).fit(Prompt(keys, keys, None))
    assert fitted.key is not None and fitted.value is not None
    return fitted.key, fitted.value


def read(name: str, x: Tensor, **knobs: object) -> tuple[Tensor, Tensor]:
    """x (tokens, head_dim) as a cache's keys and as its values are read."""
    key, value = codecs(name, x[None, None], **knobs)
    keys, values = (codec.decode(codec.encode(x[None, None], 0))[0, 0] for codec in (key, value))
    return keys, values


def row(*channels: float, dim: int = 64) -> Tensor:
    return torch.tensor([[*channels, *[0.0] * (dim - len(channels))]])


def normal(dim: int, rows: int = 8192) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(dim))


def bfloat16(x: NDArray) -> Array:
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().float().numpy()


def butterflies(x: Array) -> Array:
    """The unnormalised Walsh-Hadamard transform along the last axis, by butterflies in float64."""
    found, half = x.astype(np.float64), 1
    while half < x.shape[-1]:
        pairs = found.reshape(*x.shape[:-1], -1, 2, half)
        found = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2)
        found, half = found.reshape(x.shape), half * 2
    return found.astype(np.float32)
