"""Keys before RoPE and values of a model over real text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.models import LoadedModel
from kvq_core.models.lockstep import causal_attention

Progress = Callable[[str, int, int], None]  # what is being done, done, total


@dataclass(frozen=True)
class Samples:
    """keys (before RoPE) and values (layers, kv_heads, tokens, head_dim) float16, as a cache holds them."""

    keys: Tensor
    values: Tensor


def collect(model: LoadedModel, sequences: list[list[int]], progress: Progress) -> Samples:
    """Run the model on each sequence by itself and keep what its cache would hold, in order."""
    shape, total = model.shape, sum(map(len, sequences))
    size = (shape.layers, shape.kv_heads, total, shape.head_dim)
    samples = Samples(torch.empty(size, dtype=torch.float16), torch.empty(size, dtype=torch.float16))
    rope = model.rope(max(map(len, sequences)))
    done = 0
    for ids in sequences:
        now = slice(done, done + len(ids))

        def attend(
            layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float, now: slice = now
        ) -> Tensor:
            samples.keys[layer, :, now] = rope.on([layer]).unrotate(keys.float(), 0)[0].cpu()
            samples.values[layer, :, now] = values[0].cpu()
            return causal_attention(queries, keys, values, scaling)

        model.checked(model.forward(torch.tensor([ids]), 0, attend, last_only=True))
        done += len(ids)
        progress("Reading text", done, total)
    return samples


def by_layer(samples: Tensor) -> Iterator[Tensor]:
    """(layers, kv_heads, tokens, head_dim) float16 -> (kv_heads, tokens, head_dim) float32, a layer a turn."""
    return (layer.float() for layer in samples)
