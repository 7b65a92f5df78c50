"""What a method stores of random tensors: bits that do not depend on a model's numbers, but on its shape and length."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kvq_core.methods.base import Method, Prompt
from kvq_core.shape import ModelShape

KV_HEADS, GROUPS = 2, 2


@dataclass(frozen=True)
class Sizes:
    """Bits an element of keys and of values: ``encoded``, of the tokens outside windows alone; ``whole``, of the cache
    with its windows in fp16 and what is stored once a layer."""

    encoded: tuple[float, float]
    whole: tuple[float, float]

    @property
    def mean(self) -> float:
        """Of the whole cache, keys and values together."""
        return sum(self.whole) / 2


@lru_cache(4)
def _random(tokens: int, head_dim: int, kv_heads: int) -> tuple[Tensor, ...]:
    """Keys, values, queries."""
    g = torch.Generator().manual_seed(head_dim)
    heads = (kv_heads, kv_heads, kv_heads * GROUPS)
    return tuple(torch.randn(1, count, tokens, head_dim, generator=g) for count in heads)


@lru_cache(4096)
def sizes(method: Method, tokens: int, head_dim: int, kv_heads: int = KV_HEADS) -> Sizes:
    """Of a layer after ``tokens`` tokens, all of them a prompt.

    Raises MethodError as ``fit`` does. A method whose widths follow from the tensors (QAQ) has those of random ones.
    """
    keys, values, queries = _random(tokens, head_dim, kv_heads)
    fitted = method.fit(Prompt(keys, values, queries, rotated=keys))
    fixed = method.fixed_bytes(ModelShape(1, kv_heads * GROUPS, kv_heads, head_dim, max(tokens, 8192)))
    encoded, whole = [], []
    for codec, window, x, once in zip((fitted.key, fitted.value), method.windows(), (keys, values), fixed, strict=True):
        count = window.packed(tokens)
        if codec is None or not count:
            encoded.append(16.0)
            whole.append(16.0)
            continue
        first = window.sink
        block = codec.encode_prompt(x[:, :, first : first + count], first)
        # bits of a codec may hold what is stored once, spread over this prompt's tokens
        stored = 8 * sum(block.nbytes.values()) / (kv_heads * count * head_dim)
        bits = stored if once else codec.bits(block).float().mean().item()
        encoded.append(bits)
        every = kv_heads * tokens * head_dim
        whole.append((bits * count + 16 * (tokens - count)) / tokens + 8 * once / every)
    return Sizes((encoded[0], encoded[1]), (whole[0], whole[1]))
