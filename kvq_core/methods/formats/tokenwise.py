"""What most engines' formats are: each token of a KV head is stored by itself, the newest included."""

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Protocol

import torch
from kvq_kernels import Path
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, layer_slices
from kvq_core.codecs.doubts import refuse_unless
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.queries import QueryRounding
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Method

OWN_ROTATION = "it rotates what it stores itself, by its own knob rotate; give one of the two"


class BasisChange(Protocol):
    """An orthogonal change of basis of a head's channels, the last dimension."""

    def turned(self, x: Tensor) -> Tensor:
        """x (layers, heads, n, head_dim) as it is stored."""

    def back(self, x: Tensor) -> Tensor:
        """The inverse of ``turned``."""


@dataclass(frozen=True)
class TokenCodec(Codec):
    """Rows of head_dim channels, each stored by itself: a subclass says how, in ``store`` and ``load``.

    ``turn``: what rows are turned by before they are stored, and back when they are read, as the engine does.
    """

    turn: BasisChange | None = None

    @abstractmethod
    def store(self, x: Tensor) -> dict[str, Tensor]:
        """What is kept of x (layers, kv_heads, tokens, head_dim) float32, turned: packed tensors (layers, kv_heads,
        tokens, ...)."""

    @abstractmethod
    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        """float32 (layers, kv_heads, tokens, head_dim) of what ``store`` kept, before it is turned back."""

    def encode(self, x: Tensor, start: int) -> Block:
        """Raises MethodError for infinities and NaN, of which an engine would make more."""
        sound = torch.isfinite(x).all()
        refuse_unless(sound, f"Tokens from {start} on hold infinities or NaN, which no format here stores.")
        turned = (x[layers] if self.turn is None else self.turn.turned(x[layers]) for layers in layer_slices(x))
        parts = [self.store(part.float()) for part in turned]
        one = parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return Block(x.shape[-2], one)

    def decode(self, block: Block) -> Tensor:
        first = next(iter(block.tensors.values()))
        parts = []
        for layers in layer_slices(first):
            part = self.load({name: t[layers] for name, t in block.tensors.items()})
            parts.append(part if self.turn is None else self.turn.back(part))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def bits(self, block: Block) -> Tensor:
        one = {name: t[:1, :1, :1] for name, t in block.tensors.items()}  # all tokens take the same
        stored = sum(t.numel() * t.element_size() for t in one.values()) * 8
        return torch.tensor(stored / prod(self.load(one).shape)).view(1, 1, 1, 1)

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)


class Format(Method):
    """A format whose tokens are each stored by themselves, without a window: the newest is read as it is stored."""

    token_local: ClassVar[tuple[bool, bool]] = (True, True)

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=1)
        return window, window


def rounded_behind(rounding: QueryRounding, turn: BasisChange) -> QueryRounding:
    """Queries (..., query_heads, n, head_dim) as they are, rounded in the basis that keys are stored in, one for all
    heads."""
    return lambda queries: turn.back(rounding(turn.turned(queries)))


def boundary(count: int, layers: int) -> frozenset[int]:
    """The first and the last ``count`` of so many layers."""
    return frozenset(layer for layer in range(layers) if min(layer, layers - 1 - layer) < count)
