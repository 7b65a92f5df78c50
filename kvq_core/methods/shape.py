"""What methods know of a model: its numbers, and which it is."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model a method may depend on. ``scaling``: what its attention multiplies q.k with, by layer;
    1/sqrt(head_dim) where it is not given. ``unknown_rope``: layers whose keys before RoPE cannot be had, found when
    the model is used for the first time. ``key_bias``: whether the key projections have one; ``normed``: and a norm
    behind it."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int
    scaling: tuple[float, ...] = ()
    unknown_rope: tuple[int, ...] = ()
    key_bias: Literal["none", "bias", "normed"] = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scaling", self.scaling or (self.head_dim**-0.5,) * self.layers)

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
