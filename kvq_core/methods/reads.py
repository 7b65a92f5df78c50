"""How blocks that are no groups of codes are read packed: scores of keys, weighted sums of values (forms.Packed)."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from kvq_kernels import (
    LatentKeys,
    MixedTokens,
    codebook_scores,
    codebook_values,
    latent_scores,
    mixed_scores,
    mixed_values,
    rotate,
    unpack,
)
from torch import Tensor

from kvq_core.codebooks.encoder import EPS
from kvq_core.codecs.forms import DecodedRead

if TYPE_CHECKING:
    from kvq_core.methods.commvq.codec import KeyCodec, ValueCodec
    from kvq_core.methods.qaq.pools import RaggedBlock, RaggedCodec
    from kvq_core.methods.svdq.latent import LatentCodec


@dataclass
class LatentRead(DecodedRead):
    """Latent channels, and the keys of outlier chunks, which are kept as they are."""

    codec: "LatentCodec"
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
        turn = self.turn()
        if turn is None or self.turns is None:
            return super().scores(q)
        scores = latent_scores(q, self.keys, turn, self.block.tokens, self.path)
        if self.codec.selector is None:
            return scores
        at = self.codec.selector.outlier_tokens()  # (rows, kv_heads, outlier tokens)
        exact = rotate(self.block.tensors["outlier_keys"].float(), self.turns.at(at + self.start))
        each = at.unsqueeze(-2).expand(-1, -1, q.shape[-2], -1)
        return scores.scatter_(-1, each, q.float() @ exact.transpose(-1, -2))


@dataclass
class CodebookKeys(DecodedRead):
    """Codes of codebooks that commute with RoPE."""

    codec: "KeyCodec"

    def scores(self, q: Tensor) -> Tensor:
        t, turn = self.block.tensors, self.turn()
        if turn is None:
            return super().scores(q)
        return codebook_scores(q, self.codec.theta[0], t["codes"], t["prescale"], turn, self.path)


@dataclass
class CodebookValues(DecodedRead):
    """Binary digits. ``weights`` (rows, tokens) float32: the stored norm over the norm of what the digits add up to."""

    codec: "ValueCodec"
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


@dataclass
class MixedRead(DecodedRead):
    """Units of mixed widths. Their pools become views of one buffer, which the operations read."""

    codec: "RaggedCodec"
    block: "RaggedBlock"
    tokens: MixedTokens = field(init=False)

    def __post_init__(self) -> None:
        block = self.block
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
