"""Bits of a lane's cache from a model's shape and a length, before anything has run."""

from collections import Counter
from dataclasses import dataclass

from kvq_core.errors import MethodError
from kvq_core.methods import LayerKind, ModelShape
from kvq_core.methods.sizes import KV_HEADS, sizes
from kvq_core.spec.assignment import Assignment
from kvq_core.spec.lane import Lane
from kvq_core.spec.rule import TENSORS, Tensor

MEASURED = 1024  # tokens of the random tensors whose bits are taken, where no length is told
MOST_MEASURED = 2048  # beyond it what tokens share, such as a factor of low rank, takes hundredths of a bit an element
MOST_HEADS = 4  # whose random tensors are encoded


@dataclass(frozen=True)
class CacheAt:
    """A cache once ``tokens`` have entered, the first ``prompt`` of them together, on a model's shape."""

    shape: ModelShape
    prompt: int
    tokens: int


def channels(layer: LayerKind, tensor: Tensor) -> int:
    return layer.key_dim if tensor == "keys" else layer.value_dim


def saved_bytes(part: Assignment, layer: LayerKind, tokens: int, packed: int, measured: int = MEASURED) -> float:
    """Bytes that a layer of ``tokens``, ``packed`` of them encoded, takes less than in fp16; what is kept beside other
    tokens is added. Widths are those of ``measured`` random tokens."""
    dim = channels(layer, part.tensor)
    if not dim:
        return 0.0
    at = TENSORS.index(part.tensor)
    once = part.method.fixed_bytes(ModelShape(1, layer.kv_heads, layer.kv_heads, dim, max(tokens, 1)))[at]
    bits = encoded_bits(part, dim, measured, min(layer.kv_heads, MOST_HEADS))[at]
    per_element = -bits if part.beside else 16 - bits
    return layer.kv_heads * dim * packed * per_element / 8 - once


def encoded_bits(part: Assignment, dim: int, measured: int = MEASURED, kv_heads: int = KV_HEADS) -> tuple[float, float]:
    """Of an encoded element of keys and of values; 16 where the method cannot store such heads."""
    try:
        return sizes(part.method, measured, dim, kv_heads).encoded
    except MethodError:
        return 16.0, 16.0


def bits_of(lane: Lane, at: CacheAt) -> float:
    """An element of keys and values together, of the layers that the lane can quantize: full-precision windows, layers
    that stay fp16 among them, and what is stored once a layer are counted. A run's ``memory`` counts the same in real
    tensors."""
    return planned_bits(lane.plan(at.shape), any(rule.sliding for rule in lane.every_rule), at)


def planned_bits(parts: tuple[Assignment, ...], sliding: bool, at: CacheAt) -> float:
    """``bits_of`` a lane whose plan is known; ``sliding``: whether it quantizes layers of windows, too."""
    layers = at.shape.keyed if sliding else at.shape.full
    kinds = {layer: at.shape.kinds[layer] for layer in layers}
    elements = sum(
        kind.tokens(at.tokens) * kind.kv_heads * channels(kind, tensor) for kind in kinds.values() for tensor in TENSORS
    )
    saved = sum(
        count * _saved(part, kind, at)
        for part in parts
        for kind, count in Counter(kinds[layer] for layer in part.layers).items()
    )
    return 16.0 - 8 * saved / elements if elements else 16.0


def _saved(part: Assignment, kind: LayerKind, at: CacheAt) -> float:
    tokens = kind.tokens(at.tokens)
    packed = part.packed_later(min(at.prompt, tokens), tokens)
    return saved_bytes(part, kind, tokens, packed, min(at.prompt, MOST_MEASURED))
