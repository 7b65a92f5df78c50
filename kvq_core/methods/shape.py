"""What methods know of a model: its numbers, and which it is."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from kvq_core.sizing.layers import LayerKind


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model a method may depend on. ``scaling``: what its attention multiplies q.k with, by layer;
    1/sqrt(head_dim) where it is not given. ``unknown_rope``: layers whose keys before RoPE cannot be had, found when
    the model is used for the first time. ``key_bias``: whether the key projections have one; ``normed``: and a norm
    behind it. ``kinds``: what each layer holds; all layers hold all tokens where they are not given. ``query_heads``,
    ``kv_heads`` and ``head_dim`` are those of layers of full attention, which lanes quantize."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int
    scaling: tuple[float, ...] = ()
    unknown_rope: tuple[int, ...] = ()
    key_bias: Literal["none", "bias", "normed"] = "none"
    kinds: tuple[LayerKind, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scaling", self.scaling or (self.head_dim**-0.5,) * self.layers)
        own = LayerKind(kind="full", kv_heads=self.kv_heads, key_dim=self.head_dim, value_dim=self.head_dim)
        object.__setattr__(self, "kinds", self.kinds or (own,) * self.layers)

    @property
    def uniform(self) -> bool:
        """Whether all layers keep all tokens' keys and values, in heads of one shape."""
        return self.kinds == replace(self, kinds=()).kinds

    @cached_property
    def full(self) -> tuple[int, ...]:
        """Layers that keep keys and values of all tokens: those that lanes quantize."""
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind.kind == "full")

    @cached_property
    def windowed(self) -> tuple[int, ...]:
        """Layers that keep those of a window or a chunk of tokens, which lanes quantize where they say so."""
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind.kind in ("sliding", "chunked"))

    @cached_property
    def keyed(self) -> tuple[int, ...]:
        """Layers that keep keys and values at all."""
        return tuple(sorted((*self.full, *self.windowed)))

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Layers that keep them in heads of this shape: those of full attention, and windowed ones like them."""
        own = self.kv_heads, self.head_dim
        return tuple(i for i in self.keyed if (self.kinds[i].kv_heads, self.kinds[i].key_dim) == own)

    @property
    def value_dim(self) -> int:
        """Channels of a head's value, in the first layer of full attention; of its key as a rule."""
        return self.kinds[self.full[0]].value_dim if self.full else self.head_dim

    @cached_property
    def captured(self) -> tuple[int, ...]:
        """Layers that captures look at: full attention, keys in heads of this shape and values of ``value_dim``."""
        own = (self.kv_heads, self.head_dim, self.value_dim)
        told = ((k.kv_heads, k.key_dim, k.value_dim) for k in self.kinds)
        return tuple(i for i, heads in enumerate(told) if i in self.full and heads == own)

    def by_heads(self, layers: Iterable[int]) -> "tuple[ModelShape, ...]":
        """The shapes of heads among some layers, this one's first; of keys and, where those are others, of values."""
        own = dict.fromkeys(
            (k.kv_heads, dim) for k in map(self.kinds.__getitem__, layers) for dim in (k.key_dim, k.value_dim)
        )
        main = (self.kv_heads, self.head_dim)
        return (self, *(replace(self, kv_heads=heads, head_dim=dim) for heads, dim in own if (heads, dim) != main))

    def fp16_bytes(self, tokens: int) -> int:
        """Of a context: keys and values of what each layer keeps, and states."""
        return sum(2 * (kind.tokens(tokens) * kind.elements + kind.conv + kind.recurrent) for kind in self.kinds)

    @property
    def in_chunks(self) -> bool:
        """Whether a prompt can be read in several passes, one after the other."""
        return all(kind.in_chunks for kind in self.kinds)

    @property
    def stateful(self) -> bool:
        """Whether any layer keeps a state of a sequence."""
        return any(kind.conv or kind.recurrent for kind in self.kinds)

    def not_before_rope(self, layers: Literal["all"] | tuple[int, ...], instead: str) -> str | None:
        """Why keys before RoPE cannot be had of some layers; None where they can."""
        lost = ", ".join(str(layer) for layer in self.unknown_rope if layers == "all" or layer in layers)
        return (
            f"it reads keys before RoPE, and how the model rotates those of layers {lost} is not known; leave these "
            f"out of layers, or take {instead}"
            if lost
            else None
        )

    @property
    def query_groups(self) -> int:
        """Query heads that share one KV head (GQA); query head h reads KV head h // query_groups."""
        return self.query_heads // self.kv_heads


@dataclass(frozen=True)
class ModelRef:
    """Which model a prompt ran on, for methods that bring data learned from its weights. ``interleaved``: whether GGUF
    files of it hold channels of queries and keys that RoPE pairs side by side, which here are half a head apart."""

    id: str
    weights_hash: str
    interleaved: bool = False
