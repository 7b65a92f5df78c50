"""Codes of non-uniform levels, and outliers beside them: keys with a range a channel, values with one a token."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar, Literal

import torch
from kvq_kernels import Path, pack, unpack
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, count_codes, layer_slices, of_layer
from kvq_core.codecs.forms import Packed
from kvq_core.methods.baselines.heads import join_heads, part_heads
from kvq_core.methods.baselines.levels import level_of, nearest_level
from kvq_core.methods.baselines.outliers import as_index, put_back, share_apart

LEAST = 2.0**-14  # the smallest half range: fp16's smallest normal number


def ranges(rows: Tensor, fraction: float, metadata: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows (..., n) without their outliers, ``fraction`` / 2 at either end: the middle and the half range (..., 1)
    in ``metadata``, the half range rounded so that all of them lie within; and the positions of the outliers."""
    size = rows.shape[-1]
    each = min(ceil(fraction / 2 * size), (size - 1) // 2)
    below, above = (rows.topk(each + 1, -1, largest) for largest in (False, True))
    low, high = below.values[..., each:], above.values[..., each:]
    middle = ((low + high) / 2).to(metadata)
    half = torch.maximum(high - middle.float(), middle.float() - low) * (1 + torch.finfo(metadata).eps)
    at = torch.cat([below.indices[..., :each], above.indices[..., :each]], -1)
    return middle, half.clamp_min(LEAST).to(metadata), at


@dataclass(frozen=True)
class LevelCodec(Codec):
    """Codes of levels along the channels. ``shared``: levels (layers, 2^bits) in fp16; or ``kept``, the same where it
    belongs to the model and not to the prompt."""

    axis: ClassVar[Literal["tokens", "channels"]]  # of the elements that share a range
    bits_per_code: int
    kv_heads: int
    head_dim: int
    shared: dict[str, Tensor] = field()  # the class has one by default, a field has none
    kept: dict[str, Tensor]

    @property
    def model_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.kept.values())

    @property
    def tables(self) -> dict[str, Tensor]:
        """What codes are read by, wherever it belongs."""
        return self.kept or self.shared

    def encode(self, x: Tensor, start: int) -> Block:
        parts = [self._part(x[layers].float(), layers) for layers in layer_slices(x)]
        return Block(x.shape[-2], {name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        own = replace(self, shared=of_layer(self.shared, layer), kept=of_layer(self.kept, layer))
        return own.decode(own.encode(x, start))

    @abstractmethod
    def _part(self, x: Tensor, layers: slice) -> dict[str, Tensor]:
        """What is stored of some layers' x (layers, kv_heads, tokens, head_dim)."""

    @property
    def _along(self) -> int:
        """Codes of a row: a head's channels, or all heads'."""
        return self.head_dim * (1 if self.axis == "tokens" else self.kv_heads)

    def _codes(self, unit: Tensor, layers: slice) -> Tensor:
        """Packed codes of unit (layers, ..., channels)."""
        return pack(nearest_level(unit, self.tables["levels"][layers].float()), self.bits_per_code)

    def _units(self, codes: Tensor, layers: slice) -> Tensor:
        return level_of(unpack(codes, self.bits_per_code, self._along), self.tables["levels"][layers])

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        """How often each level is used, and the share of outliers."""
        if not blocks:
            return {}
        width, count = self.bits_per_code, self._along
        codes = torch.cat([unpack(block.tensors["codes"], width, count).flatten(2) for block in blocks], -1)
        counts = torch.cat([count_codes(codes[at], 1 << width) for at in layer_slices(codes)])
        apart = share_apart(blocks, self.kv_heads * self.head_dim, self.kv_heads)
        return {"code_counts": counts[:, :, None], **apart}

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)


@dataclass(frozen=True)
class ChannelLevels(LevelCodec):
    """Keys. The tables have the channels' ``middles`` and ``halves``, too, (layers, kv_heads, head_dim); ``sparse``:
    what lies beyond them is kept, else clipped."""

    sparse: bool
    axis = "tokens"

    packed = LevelCodec.packed

    def _part(self, x: Tensor, layers: slice) -> dict[str, Tensor]:
        middles, halves = (self.tables[name][layers].float()[..., None, :] for name in ("middles", "halves"))
        unit = (x - middles) / halves
        tensors = {"codes": self._codes(unit, layers)}
        if not self.sparse:
            return tensors
        beyond = join_heads(unit.abs() > 1)[:, 0]  # (layers, tokens, channels)
        at = beyond.nonzero()[:, -1]
        kept = join_heads(x)[:, 0][beyond].half()
        return {
            **tensors,
            "outliers": kept,
            "positions": as_index(at, beyond.shape[-1]),
            "counts": beyond.sum(-1).to(torch.int16),
        }

    def decode(self, block: Block) -> Tensor:
        t, parts = block.tensors, []
        for layers in layer_slices(self.tables["middles"], (1 << 20) // max(1, block.tokens)):
            middles, halves = (self.tables[name][layers].float()[..., None, :] for name in ("middles", "halves"))
            parts.append(self._units(t["codes"][layers], layers) * halves + middles)
        read = join_heads(torch.cat(parts))
        if self.sparse:
            counts = t["counts"].flatten().long()
            token = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
            read.flatten(0, 2)[token, t["positions"].long()] = t["outliers"].float()
        return part_heads(read, self.kv_heads)

    def bits(self, block: Block) -> Tensor:
        """By token: some have more outliers than others."""
        t, channels = block.tensors, self.kv_heads * self.head_dim
        codes = 8 * t["codes"].shape[1] * t["codes"].shape[-1] / channels
        if not self.sparse:
            return torch.tensor(codes).view(1, 1, 1, 1)
        apart = 16 + 8 * t["positions"].element_size()
        return (codes + (16 + apart * t["counts"].float()) / channels)[:, None, :, None].cpu()


@dataclass(frozen=True)
class TokenLevels(LevelCodec):
    """Values: each token has its own range and as many outliers as any other."""

    outlier_fraction: float
    metadata: torch.dtype
    axis = "channels"

    packed = LevelCodec.packed

    def _part(self, x: Tensor, layers: slice) -> dict[str, Tensor]:
        rows = join_heads(x)
        middle, half, at = ranges(rows, self.outlier_fraction, self.metadata)
        tensors = {"codes": self._codes((rows - middle.float()) / half.float(), layers)}
        tensors |= {"middles": middle, "halves": half}
        if at.shape[-1]:
            tensors |= {"outliers": rows.gather(-1, at).half(), "positions": as_index(at, rows.shape[-1])}
        return tensors

    def decode(self, block: Block) -> Tensor:
        t, parts = block.tensors, []
        for layers in layer_slices(t["codes"], (1 << 20) * self.bits_per_code // 8):
            rows = self._units(t["codes"][layers], layers)
            rows = rows * t["halves"][layers].float() + t["middles"][layers].float()
            if "outliers" in t:
                put_back(rows, t["positions"][layers], t["outliers"][layers])
            parts.append(rows)
        return part_heads(torch.cat(parts), self.kv_heads)

    def bits(self, block: Block) -> Tensor:
        elements = block.tensors["middles"].numel() * self.kv_heads * self.head_dim
        return torch.tensor(8 * sum(block.nbytes.values()) / elements).view(1, 1, 1, 1)
