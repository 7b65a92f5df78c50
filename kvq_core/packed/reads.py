"""A codec's blocks as the operations read them: scores of packed keys, weighted sums of packed values.

Every codec that stores something else than groups of codes has its reading here, made once a block. What a reading
keeps beside the block (places of units, norms of values) could be worked out again from the block; ``index_bytes``
counts it.
"""

from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Protocol

import torch
from kvq_kernels import (
    Grid,
    LatentKeys,
    MixedTokens,
    PackedGroups,
    Path,
    codebook_scores,
    codebook_values,
    latent_scores,
    mixed_scores,
    mixed_values,
    packed_values,
    rotate,
    unpack,
)
from torch import Tensor

from kvq_core.errors import MethodError
from kvq_core.learned.encoder import EPS
from kvq_core.methods import Block, Codec
from kvq_core.methods.codebook import KeyCodec, ValueCodec
from kvq_core.methods.codec import GroupCodec
from kvq_core.methods.latent import LatentCodec
from kvq_core.methods.ragged import RaggedBlock, RaggedCodec
from kvq_core.packed.turns import Turns


class KeyRead(Protocol):
    """Packed keys. ``block`` is what the stream is to hold, the one given or an equal one that shares memory."""

    @property
    def block(self) -> Block: ...

    @property
    def index_bytes(self) -> int: ...

    def scores(self, q: Tensor) -> Tensor:
        """q (rows, kv_heads, n, head_dim) after RoPE -> float32 (rows, kv_heads, n, tokens of the block)."""


class ValueRead(Protocol):
    """Packed values."""

    @property
    def block(self) -> Block: ...

    @property
    def index_bytes(self) -> int: ...

    def weigh(self, p: Tensor) -> Tensor:
        """p (rows, kv_heads, n, tokens of the block) -> float32 (rows, kv_heads, n, head_dim)."""


@singledispatch
def read_of(codec: Codec, block: Block, start: int, turns: Turns | None, path: Path) -> KeyRead | ValueRead:
    """How a block is read whose first token is at position ``start``. ``turns``: its keys are stored before RoPE."""
    raise MethodError(f"{type(codec).__name__} has no packed execution.")


def grid_of(codec: GroupCodec) -> Grid:
    """The grid of a codec's groups."""
    return Grid(codec.bits_per_code, codec.group_size, "asymmetric", codec.metadata, codec.metadata)


@dataclass
class GroupValues:
    """Groups along the channels of one block that never grows (the paper's V4 of SVDq)."""

    codec: GroupCodec
    block: Block
    path: Path
    index_bytes: int = 0

    def weigh(self, p: Tensor) -> Tensor:
        t, codec = self.block.tensors, self.codec
        packed = PackedGroups(t["codes"], t["scales"], t["zeros"])
        channels = t["codes"].shape[-1] * 8 // codec.bits_per_code
        return packed_values(p, packed, grid_of(codec), codec.axis, channels, self.path)


@read_of.register
def _(codec: GroupCodec, block: Block, start: int, turns: Turns | None, path: Path) -> GroupValues:
    return GroupValues(codec, block, path)


@dataclass
class LatentRead:
    """Latent channels, and the keys of outlier chunks, which are kept as they are."""

    codec: LatentCodec
    block: Block
    start: int
    turns: Turns
    path: Path
    keys: LatentKeys = field(init=False)

    def __post_init__(self) -> None:
        t, shared = self.block.tensors, self.codec.shared
        size = shared["basis"].shape[-1] // max(1, len(self.codec.widths))
        groups = [(size, bits) for bits in self.codec.widths]
        parts = (x.flatten(0, 1) for x in (t["scales"], t["zeros"], shared["basis"], shared["mean"]))
        self.keys = LatentKeys.stored(t["codes"].flatten(0, 1), groups, self.block.tokens, *parts)

    @property
    def index_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.keys.offsets, self.keys.widths))

    def scores(self, q: Tensor) -> Tensor:
        turn = self.turns.turn(self.start, self.start + self.block.tokens, q.device)
        scores = latent_scores(q, self.keys, turn, self.block.tokens, self.path)
        if self.codec.selector is None:
            return scores
        at = self.codec.selector.outlier_tokens()  # (rows, kv_heads, outlier tokens)
        exact = rotate(self.block.tensors["outlier_keys"].float(), self.turns.at(at + self.start))
        each = at.unsqueeze(-2).expand(-1, -1, q.shape[-2], -1)
        return scores.scatter_(-1, each, q.float() @ exact.transpose(-1, -2))


@read_of.register
def _(codec: LatentCodec, block: Block, start: int, turns: Turns | None, path: Path) -> LatentRead:
    assert turns is not None
    return LatentRead(codec, block, start, turns, path)


@dataclass
class CodebookKeys:
    """Codes of codebooks that commute with RoPE."""

    codec: KeyCodec
    block: Block
    start: int
    turns: Turns
    path: Path
    index_bytes: int = 0

    def scores(self, q: Tensor) -> Tensor:
        t = self.block.tensors
        turn = self.turns.turn(self.start, self.start + self.block.tokens, q.device)
        return codebook_scores(q, self.codec.theta[0], t["codes"], t["prescale"], turn, self.path)


@read_of.register
def _(codec: KeyCodec, block: Block, start: int, turns: Turns | None, path: Path) -> CodebookKeys:
    assert turns is not None
    return CodebookKeys(codec, block, start, turns, path)


@dataclass
class CodebookValues:
    """Binary digits. ``weights`` (rows, tokens) float32: the stored norm over the norm of what the digits add up to."""

    codec: ValueCodec
    block: Block
    path: Path
    weights: Tensor = field(init=False)

    def __post_init__(self) -> None:
        t, book = self.block.tensors, self.codec.encoder.codebook[0]
        sums = [unpack(digits, 1, len(book)).float() @ book for digits in t["codes"].split(4096, 1)]
        norms = torch.cat([part.norm(dim=-1) for part in sums], 1).clamp_min(EPS)
        self.weights = t["prescale"].float() / norms

    @property
    def index_bytes(self) -> int:
        return self.weights.numel() * self.weights.element_size()

    def weigh(self, p: Tensor) -> Tensor:
        encoder = self.codec.encoder
        digits = self.block.tensors["codes"]
        return codebook_values(p, digits, self.weights, encoder.codebook[0], encoder.scale[0], self.path)


@read_of.register
def _(codec: ValueCodec, block: Block, start: int, turns: Turns | None, path: Path) -> CodebookValues:
    return CodebookValues(codec, block, path)


@dataclass
class MixedRead:
    """Units of mixed widths. Their pools become views of one buffer, which the operations read."""

    codec: RaggedCodec
    block: Block
    path: Path
    tokens: MixedTokens = field(init=False)

    def __post_init__(self) -> None:
        block = self.block
        assert isinstance(block, RaggedBlock)
        t = block.tensors
        none = t["lows"].new_empty(*t["lows"].shape, 0)
        outliers, positions = t.get("outliers", none), t.get("positions", none.to(torch.int16))
        parts = t["widths"], t["lows"], t["extents"], outliers, positions
        self.tokens = MixedTokens.stored(list(block.pools), block.slots, *parts)
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


@read_of.register
def _(codec: RaggedCodec, block: Block, start: int, turns: Turns | None, path: Path) -> MixedRead:
    return MixedRead(codec, block, path)
