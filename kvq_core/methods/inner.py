"""InnerQ's groups: each on the symmetric or the asymmetric grid, as its mode allows."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import torch
from kvq_kernels import (
    Grid,
    GroupCodes,
    HybridCodes,
    PackedGroups,
    Path,
    SignedCodes,
    dequantize_groups,
    dequantize_hybrid,
    dequantize_signed,
    pack,
    quantize_groups,
    quantize_hybrid,
    quantize_pack,
    quantize_signed,
    unpack,
)
from kvq_kernels.grouped import Mode as GridMode
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, layer_slices, of_layer
from kvq_core.codecs.forms import Groups, Packed

Mode = Literal["hybrid", "symmetric", "asymmetric", "hybrid_prefill"]


@dataclass(frozen=True)
class InnerCodec(Codec):
    """Groups along ``axis``, each on the grid ``mode`` allows. Tensors are laid out with the grouped axis last."""

    bits_per_code: int
    group_size: int
    axis: Literal["tokens", "channels"]
    mode: Mode
    metadata: torch.dtype
    zero_point: torch.dtype
    shared: dict[str, Tensor] = field(default_factory=dict)

    def packed(self, path: Path) -> Packed:
        def grid(mode: GridMode) -> Grid:
            return Grid(self.bits_per_code, self.group_size, mode, self.zero_point, self.metadata)

        def encode(x: Tensor, prompt: bool) -> PackedGroups:
            """Hybrid groups, then symmetric ones, all told apart by the sign of the scale."""
            packed = quantize_pack(x, grid("hybrid" if prompt else "symmetric"), self.axis, path)
            return packed if prompt else packed._replace(scales=-packed.scales)

        norms = self.shared.get("norms")
        if self.mode == "hybrid_prefill":
            groups = Groups(grid("hybrid"), self.axis, norms, encode)
        else:
            groups = Groups(grid(self.mode), self.axis, norms)
        return replace(Packed.decoded(self, path), groups=groups)

    def encode_prompt(self, x: Tensor, start: int) -> Block:
        return self._encode(x, "hybrid" if self.mode == "hybrid_prefill" else self.mode)

    def encode(self, x: Tensor, start: int) -> Block:
        return self._encode(x, "symmetric" if self.mode == "hybrid_prefill" else self.mode)

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        own = replace(self, shared=of_layer(self.shared, layer))
        return own.decode(own.encode(x, start))

    def _encode(self, x: Tensor, mode: Mode) -> Block:
        parts = []
        for layers in layer_slices(x):
            rows = x[layers].float()
            if "norms" in self.shared:
                rows = rows / self.shared["norms"][layers].float()
            parts.append(self._code(rows.transpose(-1, -2) if self.axis == "tokens" else rows, mode))
        return Block(x.shape[-2], {name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def _code(self, rows: Tensor, mode: Mode) -> dict[str, Tensor]:
        """rows (layers, kv_heads, m, n) -> codes (..., packed n), scales (..., groups), and the word of each group."""
        if mode == "asymmetric":
            low = quantize_groups(rows, self.bits_per_code, self.group_size, self.metadata, self.zero_point)
            return {"codes": pack(low.codes, self.bits_per_code), "scales": low.scales, "zeros": low.zeros}
        if mode == "symmetric":
            signed = quantize_signed(rows, self.bits_per_code, self.group_size, self.metadata)
            return {"codes": pack(signed.codes, self.bits_per_code), "scales": signed.scales, "signs": signed.signs}
        both = quantize_hybrid(rows, self.bits_per_code, self.group_size, self.metadata, self.zero_point)
        mask = pack(both.symmetric.flatten(1).to(torch.uint8), 1)  # over the whole layer: padded once
        return {"codes": pack(both.codes, self.bits_per_code), "scales": both.scales, "words": both.words, "mask": mask}

    def decode(self, block: Block) -> Tensor:
        parts = []
        for layers in layer_slices(block.tensors["scales"], (1 << 20) // self.group_size):
            rows = self._read({name: t[layers] for name, t in block.tensors.items()}, block.tokens)
            rows = rows.transpose(-1, -2) if self.axis == "tokens" else rows
            parts.append(rows * self.shared["norms"][layers].float() if "norms" in self.shared else rows)
        return torch.cat(parts)

    def _read(self, t: dict[str, Tensor], tokens: int) -> Tensor:
        count = tokens if self.axis == "tokens" else t["scales"].shape[-1] * self.group_size
        codes = unpack(t["codes"], self.bits_per_code, count)
        if "zeros" in t:
            return dequantize_groups(GroupCodes(codes, t["scales"], t["zeros"]), self.group_size)
        if "signs" in t:
            return dequantize_signed(SignedCodes(codes, t["signs"], t["scales"]), self.group_size)
        symmetric = unpack(t["mask"], 1, prod(t["scales"].shape[1:])).view(t["scales"].shape).bool()
        coded = HybridCodes(codes, t["words"], t["scales"], symmetric)
        return dequantize_hybrid(coded, self.group_size, self.zero_point)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        symmetric, groups = torch.zeros(()), 0
        for t in (block.tensors for block in blocks):
            shape = t["scales"].shape
            if "mask" in t:
                bits = unpack(t["mask"], 1, prod(shape[1:])).view(shape)
            else:
                bits = torch.full(shape, float("signs" in t))
            symmetric, groups = symmetric + bits.float().sum((-1, -2)).cpu(), groups + prod(shape[2:])
        return {"symmetric_share": symmetric / groups} if groups else {}

    def bits(self, block: Block) -> Tensor:
        scales = block.tensors["scales"]
        stored = 8 * sum(block.nbytes.values())
        other = scales.shape[-2] if self.axis == "tokens" else block.tokens
        channels = other if self.axis == "tokens" else scales.shape[-1] * self.group_size
        return torch.tensor(stored / (prod(scales.shape[:2]) * block.tokens * channels)).view(1, 1, 1, 1)
