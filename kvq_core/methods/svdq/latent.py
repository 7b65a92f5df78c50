"""Latent channels: keys in the basis of their own singular vectors, each group of channels with its own bit width."""

from dataclasses import dataclass, field
from functools import partial

import torch
from kvq_kernels import (
    GroupCodes,
    LatentKeys,
    Path,
    latent_dense,
    latent_scores,
    pack,
    quantize_groups,
    rotate,
)
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, bits_with_shared, layer_slices
from kvq_core.codecs.forms import DecodedRead, Packed
from kvq_core.methods.svdq.selection import Selector


def side_by_side(x: Tensor, per_head: bool) -> Tensor:
    """(layers, kv_heads, tokens, head_dim) -> (layers, units, tokens, channels): one unit a head, or one a layer."""
    return x if per_head else x.transpose(1, 2).flatten(2).unsqueeze(1)


def singular_vectors(keys: Tensor, mean: Tensor) -> Tensor:
    """V of the centred keys (Eq. 1), strongest first, rounded to fp16: (layers, units, channels, channels).

    They are the eigenvectors of XᵀX, formed in float64 because squaring squares the condition number. With fewer tokens
    than channels the last ones are arbitrary and their latent channels zero.
    """
    vectors = []
    for x, m in zip(keys, mean, strict=True):  # layer by layer: a float64 copy is larger than the keys
        centred = (x - m.float()[..., None, :]).double()
        vectors.append(torch.linalg.eigh(centred.transpose(-1, -2) @ centred).eigenvectors.flip(-1).half())
    return torch.stack(vectors)


@dataclass(frozen=True)
class LatentCodec(Codec):
    """Packed latent channels. ``shared``: basis (layers, units, channels, kept) and mean (layers, units, channels).

    With ``selector``, tokens of outlier chunks are kept beside them in fp16, and landmarks are stored as well.
    """

    schedule: tuple[int, ...]
    kv_heads: int
    per_head: bool
    metadata: torch.dtype
    shared: dict[str, Tensor] = field(default_factory=dict)
    selector: Selector | None = None

    def packed(self, path: Path) -> Packed:
        return Packed(partial(LatentRead, self, path))

    @property
    def widths(self) -> list[int]:
        """Widths of the kept groups."""
        return [width for width in self.schedule if width]

    def encode(self, x: Tensor, start: int) -> Block:
        parts = [self._encode(x[layers], layers) for layers in layer_slices(x)]
        tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if self.selector is not None:
            tensors |= self.selector.exact(x, start)
        return Block(x.shape[-2], tensors)

    def _encode(self, x: Tensor, layers: slice) -> dict[str, Tensor]:
        centred = side_by_side(x.float(), self.per_head) - self.shared["mean"][layers].float()[..., None, :]
        latent = (centred @ self.shared["basis"][layers].float()).transpose(-1, -2)  # (layers, units, kept, tokens)
        coded = [self._quantize(rows, b) for rows, b in zip(self._groups(latent), self.widths, strict=True)]
        empty = latent[..., :0, 0]
        codes = [pack(c.codes.flatten(-2), b) for c, b in zip(coded, self.widths, strict=True)]
        return {
            "codes": torch.cat([empty.to(torch.uint8), *codes], -1),
            "scales": torch.cat([empty.to(self.metadata), *(c.scales[..., 0] for c in coded)], -1),
            "zeros": torch.cat([empty.to(self.metadata), *(c.zeros[..., 0] for c in coded)], -1),
        }

    def _groups(self, latent: Tensor) -> tuple[Tensor, ...]:
        return latent.chunk(len(self.widths), -2) if self.widths else ()

    def _quantize(self, rows: Tensor, bits: int) -> GroupCodes:
        """One group (..., channels, tokens), a scale a channel."""
        if bits > 1:
            return quantize_groups(rows, bits, rows.shape[-1], self.metadata)
        centre = rows.mean(-1, keepdim=True)
        spread = (rows - centre).abs().mean(-1, keepdim=True)
        zeros, scales = (centre - spread).to(self.metadata), (2 * spread).to(self.metadata)
        scales = torch.where(scales > 0, scales, torch.ones_like(scales))
        codes = ((rows - zeros.float()) / scales.float()).round_().clamp_(0, 1).to(torch.uint8)
        return GroupCodes(codes, scales, zeros)

    def decode(self, block: Block) -> Tensor:
        units, channels = self.shared["mean"].shape[1:]
        head_dim = units * channels // self.kv_heads
        slices = layer_slices(self.shared["mean"], (1 << 20) // max(1, block.tokens))
        keys = [latent_dense(self.latent_keys(block, layers), head_dim, block.tokens) for layers in slices]
        read = torch.cat(keys).unflatten(0, (-1, self.kv_heads))
        if self.selector is not None:
            read = self.selector.put_back(read, block.tensors)
        return read

    def latent_keys(self, block: Block, layers: slice = slice(None)) -> LatentKeys:
        """What the kernels read of some layers of a block, all their units in one row."""
        t, basis = block.tensors, self.shared["basis"]
        size = basis.shape[-1] // max(1, len(self.widths))
        groups = [(size, bits) for bits in self.widths]
        parts = (x[layers].flatten(0, 1) for x in (t["scales"], t["zeros"], basis, self.shared["mean"]))
        return LatentKeys.from_packed(t["codes"][layers].flatten(0, 1), groups, block.tokens, *parts)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        layers, units, channels = self.shared["mean"].shape
        widths = torch.tensor(self.schedule).repeat_interleave(channels // len(self.schedule))
        return {"latent_bits": widths.repeat(units).expand(layers, -1)}

    def bits(self, block: Block) -> Tensor:
        return bits_with_shared(block, self.shared, self.shared["mean"].numel())


@dataclass
class LatentRead(DecodedRead):
    """Latent channels, and the keys of outlier chunks, which are kept as they are."""

    codec: LatentCodec
    keys: LatentKeys = field(init=False)

    def __post_init__(self) -> None:
        self.keys = self.codec.latent_keys(self.block)

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
