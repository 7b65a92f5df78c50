"""Groups of codes that share a scale and a zero-point, along tokens or along channels."""

from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Literal

import torch
from kvq_kernels import (
    Grid,
    GroupCodes,
    PackedGroups,
    Path,
    dequantize_groups,
    pack,
    packed_scores,
    packed_values,
    quantize_groups,
    unpack,
)
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, count_codes, layer_slices
from kvq_core.codecs.forms import DecodedRead, Groups, Packed


@dataclass(frozen=True)
class GroupCodec(Codec):
    """Asymmetric quantization in groups of ``group_size`` along tokens (per channel) or channels (per token).

    axis "tokens" shares a scale among ``group_size`` consecutive tokens of one channel, axis "channels" among
    consecutive channels of one token, inside a head. Codes are packed along the grouped axis, scales and zero-points
    kept in ``metadata``.
    """

    bits_per_code: int
    group_size: int
    axis: Literal["tokens", "channels"]
    metadata: torch.dtype = torch.float16
    shared: dict[str, Tensor] = field(default_factory=dict)

    def encode(self, x: Tensor, start: int) -> Block:
        parts = []
        for layers in layer_slices(x):
            coded = self.code(x[layers], layers)
            parts.append((pack(coded.codes, self.bits_per_code), coded.scales, coded.zeros))
        # most blocks are of one token, whose layers are one slice
        one = parts[0] if len(parts) == 1 else tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
        codes, scales, zeros = (tensor.contiguous() for tensor in one)
        return Block(x.shape[-2], {"codes": codes, "scales": scales, "zeros": zeros})

    def packed(self, path: Path) -> Packed:
        # a store has no place for shared tensors
        return Packed(partial(GroupRead, self, path), None if self.shared else Groups(self.grid, self.axis))

    @property
    def grid(self) -> Grid:
        """The grid of the groups."""
        return Grid(self.bits_per_code, self.group_size, "asymmetric", self.metadata, self.metadata)

    def code(self, x: Tensor, layers: slice) -> GroupCodes:
        """Quantize x, a slice of the layers, into codes laid out with the grouped axis last."""
        rows = x.transpose(-1, -2) if self.axis == "tokens" else x
        return quantize_groups(rows, self.bits_per_code, self.group_size, self.metadata)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        if not blocks:
            return {}
        codes = torch.cat([self.load(block).codes.flatten(2) for block in blocks], -1)  # most blocks are of one token
        counts = torch.cat([count_codes(codes[at], 1 << self.bits_per_code) for at in layer_slices(codes)])
        return {"code_counts": counts[:, :, None]}

    def load(self, block: Block) -> GroupCodes:
        """Unpacked codes of a block, grouped axis last."""
        t = block.tensors
        count = block.tokens if self.axis == "tokens" else self._channels(block)
        return GroupCodes(unpack(t["codes"], self.bits_per_code, count), t["scales"], t["zeros"])

    def _channels(self, block: Block) -> int:
        return block.tensors["codes"].shape[-1] * 8 // self.bits_per_code

    def decode(self, block: Block) -> Tensor:
        *outer, tokens, dim = self.shape(block)
        inner = (dim, tokens) if self.axis == "tokens" else (tokens, dim)  # in memory as the codes lie
        out = torch.empty(*outer, *inner, device=block.tensors["codes"].device)
        slices = list(layer_slices(out))
        if len(slices) == 1:
            out, slices = dequantize_groups(self.load(block), self.group_size), []
        for layers in slices:
            part = Block(block.tokens, {name: t[layers] for name, t in block.tensors.items()})
            out[layers] = dequantize_groups(self.load(part), self.group_size)
        return out.mT if self.axis == "tokens" else out

    def shape(self, block: Block) -> tuple[int, ...]:
        """(layers, kv_heads, tokens, head_dim) of a block once decoded."""
        codes = block.tensors["codes"]
        dim = codes.shape[2] if self.axis == "tokens" else self._channels(block)
        return (*codes.shape[:2], block.tokens, dim)

    def bits(self, block: Block) -> Tensor:
        stored = sum(block.nbytes.values()) * 8
        return torch.tensor(stored / prod(self.shape(block))).view(1, 1, 1, 1)


@dataclass
class GroupRead(DecodedRead):
    """Groups of codes in one block that never grows (the paper's V4 of SVDq)."""

    codec: GroupCodec

    def scores(self, q: Tensor) -> Tensor:
        codec = self.codec
        return packed_scores(q, self._groups(), codec.grid, codec.axis, self.block.tokens, self.path, turn=self.turn())

    def weigh(self, p: Tensor) -> Tensor:
        codec = self.codec
        return packed_values(p, self._groups(), codec.grid, codec.axis, codec.shape(self.block)[-1], self.path)

    def _groups(self) -> PackedGroups:
        t = self.block.tensors
        return PackedGroups(t["codes"], t["scales"], t["zeros"])
