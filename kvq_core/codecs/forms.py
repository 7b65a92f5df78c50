"""In what form packed execution holds and reads what a codec stores. The codec says so itself, in ``Codec.packed``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from kvq_kernels import Grid, PackedGroups, Path, Turn
from kvq_kernels.dispatch import use_triton
from kvq_kernels.grouped import Axis
from torch import Tensor

from kvq_core.codecs.blocks import Block


class Decoder(Protocol):
    """What of a codec reading needs."""

    def decode(self, block: Block) -> Tensor:
        """float32 (layers, kv_heads, tokens, head_dim)."""


class RopeForm(Protocol):
    """The model's RoPE, for keys that are stored before it."""

    def turn(self, start: int, end: int, device: torch.device) -> Turn:
        """What the operations take for keys at positions start .. end - 1."""

    def at(self, positions: Tensor) -> Turn:
        """The same for any positions (...): tables (..., head_dim / 2)."""

    def rotate(self, keys: Tensor, start: int) -> Tensor:
        """Stored keys (rows, kv_heads, tokens, head_dim) float32 as attention reads them."""


class BlockReader(Protocol):
    """A block as it is read: scores where it holds keys, weighted sums where it holds values.

    ``block`` is what the stream is to hold, the one given or an equal one that shares memory. What a reading keeps
    beside it (places of units, norms of values) could be worked out again from it; ``index_bytes`` counts that.
    """

    @property
    def block(self) -> Block: ...

    @property
    def index_bytes(self) -> int: ...

    def scores(self, q: Tensor) -> Tensor:
        """q (rows, kv_heads, n, head_dim) after RoPE -> float32 (rows, kv_heads, n, tokens of the block)."""

    def weigh(self, p: Tensor) -> Tensor:
        """p (rows, kv_heads, n, tokens of the block) -> float32 (rows, kv_heads, n, head_dim)."""


@dataclass(frozen=True)
class Groups:
    """Groups of codes as a growing store takes them: their layout, and what replaces plain rounding.

    ``norms`` (rows, kv_heads, 1, head_dim): what is packed is divided by them. ``encode``: of x (rows, kv_heads,
    tokens, head_dim), and whether it is the prompt's.
    """

    grid: Grid
    axis: Axis
    norms: Tensor | None = None
    encode: Callable[[Tensor, bool], PackedGroups] | None = None


@dataclass(frozen=True)
class Packed:
    """``read``: of a block, the position of its first token, and the model's RoPE where keys are stored before it; made
    once a block. ``groups``: the same in a growing store, for tokens that leave the window for good as they age; None
    where something else than groups of codes is stored."""

    read: Callable[[Block, int, RopeForm | None], BlockReader]
    groups: Groups | None = None

    @classmethod
    def decoded(cls, codec: Decoder, path: Path) -> "Packed":
        """Read by the codec's own ``decode``, whatever it stores: right, and slow."""
        return cls(partial(DecodedRead, codec, path))


@dataclass
class DecodedRead:
    """A block that is decoded anew whenever it is read; nothing decoded is kept."""

    codec: Decoder
    path: Path
    block: Block
    start: int
    turns: RopeForm | None

    @property
    def index_bytes(self) -> int:
        return 0

    def scores(self, q: Tensor) -> Tensor:
        keys = self._decode()
        return q.float() @ (keys if self.turns is None else self.turns.rotate(keys, self.start)).transpose(-1, -2)

    def weigh(self, p: Tensor) -> Tensor:
        return p.float() @ self._decode()

    def turn(self) -> Turn | None:
        """RoPE of the block's tokens, where keys are stored before it."""
        end = self.start + self.block.tokens
        device = next(iter(self.block.tensors.values())).device
        return None if self.turns is None else self.turns.turn(self.start, end, device)

    def _decode(self) -> Tensor:
        values = self.codec.decode(self.block)
        use_triton("decode", self.path, values, f"{type(self.codec).__name__} is read by its own decode")
        return values
