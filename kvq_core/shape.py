"""The shape of a model: what each of its layers holds, and the numbers that methods and counts of bytes depend on."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from kvq_core.frozen import Frozen

Kind = Literal["full", "sliding", "chunked", "latent", "none"]


class LayerKind(Frozen):
    """What one layer holds. ``kind``: of which tokens keys and values are kept, all, the newest ``window``, those of a
    chunk of ``window``, or a latent of every token (MLA: ``key_dim`` channels after RoPE and ``value_dim`` of the
    latent, which all heads share); none: no keys and values. ``index_dim``: channels of a key of its own by which a
    layer chooses tokens. ``conv``, ``recurrent``: elements of a state, of a sequence whatever its length. ``reads``:
    the earlier layer whose keys and values a layer without any reads."""

    kind: Kind
    window: int | None = None
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    index_dim: int = 0
    conv: int = 0
    conv_width: int = 0  # tokens that ``conv`` spans
    recurrent: int = 0
    in_chunks: bool = True  # whether a state goes on from what earlier tokens left, where several follow at once
    reads: int | None = None

    @property
    def elements(self) -> int:
        """Of one token."""
        return self.kv_heads * (self.key_dim + self.value_dim) + self.index_dim

    def tokens(self, context: int) -> int:
        """How many of a context's tokens it needs."""
        if self.kind == "none":
            return 0
        return context if self.window is None else min(self.window, context)


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model a method may depend on. ``scaling``: what its attention multiplies q.k with, by layer;
    1/sqrt(head_dim) where it is not given. ``unknown_rope``: layers whose keys before RoPE cannot be had, found when
    the model is used for the first time. ``key_bias``: whether the key projections have one; ``normed``: and a norm
    behind it. ``kinds``: what each layer holds; all layers hold all tokens where they are not given. ``query_heads``,
    ``kv_heads`` and ``head_dim`` are those of layers of full attention, which lanes quantize. ``context``: 0 where it
    is not known. ``architecture`` and ``dtype`` of the weights are as a configuration has them; ``stated``: what it
    does not say, and what was taken instead."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int
    scaling: tuple[float, ...] = ()
    unknown_rope: tuple[int, ...] = ()
    key_bias: Literal["none", "bias", "normed"] = "none"
    kinds: tuple[LayerKind, ...] = ()
    architecture: str = "unknown"
    dtype: str = "bfloat16"
    stated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scaling", self.scaling or ((self.head_dim or 1) ** -0.5,) * self.layers)
        own = LayerKind(kind="full", kv_heads=self.kv_heads, key_dim=self.head_dim, value_dim=self.head_dim)
        object.__setattr__(self, "kinds", self.kinds or (own,) * self.layers)

    @classmethod
    def of_layers(cls, kinds: tuple[LayerKind, ...], query_heads: int, context: int, **more: Any) -> "ModelShape":
        """The shape of layers of these kinds, with the heads of the first of full attention, or that keeps keys."""
        held = sorted((kind for kind in kinds if kind.kv_heads), key=lambda kind: kind.kind != "full")
        main = held[0] if held else LayerKind(kind="none")
        return cls(len(kinds), query_heads, main.kv_heads, main.key_dim, context, kinds=kinds, **more)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a weight, and of an element of a state."""
        return {"float32": 4, "float8_e4m3fn": 1}.get(self.dtype, 2)

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
