"""Blocks whose units each have their own bit width, and how packed execution reads them."""

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from kvq_kernels import MixedTokens, mixed_scores, mixed_values, unpack
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.forms import DecodedRead, Decoder

TAG = 4  # bits that name a unit's width


@dataclass(frozen=True)
class RaggedBlock(Block):
    """Units in token-major order: unit u is (token, layer, unit) of (tokens, layers, units).

    ``pools[w]`` holds the packed codes of the units of width w, (count, bytes) uint8 in unit order, so that the widths
    alone locate a unit; ``slots`` is that location, kept at hand. ``tensors``: widths, 4 bits each; lows and extents
    (tokens, layers, units); outliers and positions (tokens, layers, units, count). ``host`` holds codes of the
    original values at full width, in chunks of tokens: cells nest, so no other copy is ever needed to re-encode.
    """

    pools: tuple[Tensor, ...] = ()
    slots: Tensor = field(default_factory=lambda: torch.empty(0))
    host: tuple[Tensor, ...] = ()
    rows: tuple[Tensor, ...] = ()
    rewritten: int = 0  # units whose width changed after they were stored
    fetched: int = 0  # bytes of packed codes that came from the host copy for them
    steps: int = 0

    @property
    def widths(self) -> Tensor:
        """(units,) uint8."""
        return unpack(self.tensors["widths"], TAG, self.tensors["lows"].numel())

    @property
    def nbytes(self) -> dict[str, int]:
        return {"codes": sum(pool.numel() for pool in self.pools), **super().nbytes}

    @property
    def host_bytes(self) -> int:
        return sum(chunk.numel() for chunk in self.host)


class UnitCodec(Decoder, Protocol):
    """What of the codec reading needs."""

    @property
    def head_dim(self) -> int: ...


def unit_ranges(block: RaggedBlock) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Beginning and length of each unit's range, its outliers and their positions (..., 0 where it has none)."""
    t = block.tensors
    none = t["lows"].new_empty(*t["lows"].shape, 0)
    return t["lows"], t["extents"], t.get("outliers", none), t.get("positions", none.to(torch.int16))


def mixed_tokens(block: RaggedBlock) -> MixedTokens:
    """A block as the kernels read it."""
    return MixedTokens.from_packed(list(block.pools), block.slots, block.tensors["widths"], *unit_ranges(block))


@dataclass
class MixedRead(DecodedRead):
    """Units of mixed widths. Their pools become views of one buffer, which the operations read."""

    codec: UnitCodec
    block: RaggedBlock
    tokens: MixedTokens = field(init=False)

    def __post_init__(self) -> None:
        block = self.block
        self.tokens = mixed_tokens(block)
        sizes = [pool.numel() for pool in block.pools]
        views = (flat.view(pool.shape) for flat, pool in zip(self.tokens.codes.split(sizes), block.pools, strict=True))
        self.block = replace(block, pools=tuple(views))

    @property
    def index_bytes(self) -> int:
        return self.tokens.index_bytes

    def scores(self, q: Tensor) -> Tensor:
        return mixed_scores(q, self.tokens, self.path)

    def weigh(self, p: Tensor) -> Tensor:
        return mixed_values(p, self.tokens, self.codec.head_dim, self.path)
