"""Two classes of tokens, each with its own bit width, told apart by a bit a token and KV head (ZipCache)."""

from dataclasses import dataclass
from typing import Literal

import torch
from kvq_kernels import GroupCodes, Path, dequantize_groups, pack, quantize_groups, unpack
from torch import Tensor

from kvq_core.codecs.blocks import Block, Patch
from kvq_core.codecs.codec import Codec, layer_slices
from kvq_core.codecs.forms import Packed
from kvq_core.methods.baselines.heads import join_heads, part_heads

CLASSES = ("salient", "other")


@dataclass(frozen=True)
class Unranked(Block):
    """Tokens stored by age until the attention of their step is seen, with what they were, fp16."""

    originals: Tensor

    @property
    def host_bytes(self) -> int:
        return self.originals.numel() * self.originals.element_size()


@dataclass(frozen=True)
class ClassCodec(Codec):
    """Keys in groups of a channel over all tokens of a class (axis "tokens"), or values in groups of a token over all
    heads, divided by sqrt(max |v|) of their channel first (axis "channels").

    ``widths`` of salient and other tokens; ``saliency`` (layers, kv_heads, tokens) of the prompt's.
    """

    axis: Literal["tokens", "channels"]
    widths: tuple[int, int]
    salient_fraction: float
    metadata: torch.dtype
    saliency: Tensor

    observes = True
    layerwise = True

    @property
    def encoder_bytes(self) -> int:
        return self.saliency.numel() * self.saliency.element_size()

    def encode_prompt(self, x: Tensor, start: int) -> Block:
        end = start + x.shape[-2]
        if end > self.saliency.shape[-1]:  # later text that enters at once
            return self.encode(x, start)
        return self._store(x, self._top(self.saliency[..., start:end]))

    def encode(self, x: Tensor, start: int) -> Block:
        """The newest tokens count as salient until ``observe`` ranks them."""
        age = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
        block = self._store(x, self._top(age.expand(*x.shape[:2], -1)))
        return Unranked(block.tokens, block.tensors, x.half())

    def observe(self, blocks: list[Block], queries: Tensor, attention: Tensor, start: int) -> Patch | None:
        """Rank tokens that have just left the window by the attention of the step's last query."""
        patches = []
        for i, block in enumerate(blocks):
            if isinstance(block, Unranked):
                first = sum(earlier.tokens for earlier in blocks[:i])
                seen = attention[:, :, -1, start + first : start + first + block.tokens]
                seen = seen.unflatten(1, (block.originals.shape[1], -1)).sum(2)
                blocks[i] = self._store(block.originals.float(), self._top(seen))
                patches.append(_whole(self.decode(blocks[i]), first))
        return Patch(*(torch.cat(parts) for parts in zip(*patches, strict=True))) if patches else None

    def _top(self, scores: Tensor) -> Tensor:
        """bool like scores (layers, kv_heads, tokens): the salient ones, equally many of every head."""
        count = round(self.salient_fraction * scores.shape[-1])
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(count, -1).indices, True)

    def _store(self, x: Tensor, salient: Tensor) -> Block:
        parts = [self._part(x[layers].float(), salient[layers]) for layers in layer_slices(x)]
        return Block(x.shape[-2], {name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def _part(self, x: Tensor, salient: Tensor) -> dict[str, Tensor]:
        tensors = {"classes": pack(salient.to(torch.uint8), 1)}
        if self.axis == "channels":
            scales = x.abs().amax(-2, keepdim=True).sqrt()
            tensors["channel_scales"] = torch.where(scales > 0, scales, 1.0).to(self.metadata)
            x = x / tensors["channel_scales"].float()
        for name, width, at in zip(CLASSES, self.widths, _members(salient), strict=True):
            own = x.gather(-2, at[..., None].expand(-1, -1, -1, x.shape[-1]))
            if not at.shape[-1]:
                continue
            rows = own.mT if self.axis == "tokens" else join_heads(own)
            found = quantize_groups(rows, width, rows.shape[-1], self.metadata)
            codes = pack(found.codes, width)
            tensors |= {f"{name}_codes": codes, f"{name}_scales": found.scales, f"{name}_zeros": found.zeros}
        return tensors

    def decode(self, block: Block) -> Tensor:
        layers, heads, _ = block.tensors["classes"].shape
        dim = self._head_dim(block.tensors, heads)
        read = torch.empty(layers, heads, block.tokens, dim, device=block.tensors["classes"].device)
        for some in layer_slices(read):
            self._read({name: t[some] for name, t in block.tensors.items()}, read[some])
        return read

    def _head_dim(self, t: dict[str, Tensor], heads: int) -> int:
        if "channel_scales" in t:
            return t["channel_scales"].shape[-1]
        return next(t[f"{name}_scales"] for name in CLASSES if f"{name}_scales" in t).shape[-2]

    def _read(self, t: dict[str, Tensor], out: Tensor) -> None:
        """Write what some layers' tensors hold to out (layers, kv_heads, tokens, head_dim)."""
        heads, tokens, dim = out.shape[1:]
        salient = unpack(t["classes"], 1, tokens).bool()
        for name, width, at in zip(CLASSES, self.widths, _members(salient), strict=True):
            if not at.shape[-1]:
                continue
            count = at.shape[-1] if self.axis == "tokens" else heads * dim
            codes = unpack(t[f"{name}_codes"], width, count)
            rows = dequantize_groups(GroupCodes(codes, t[f"{name}_scales"], t[f"{name}_zeros"]), count)
            own = rows.mT if self.axis == "tokens" else part_heads(rows, heads)
            out.scatter_(-2, at[..., None].expand(-1, -1, -1, dim), own)
        if self.axis == "channels":
            out *= t["channel_scales"].float()

    def bits(self, block: Block) -> Tensor:
        """By token and head, as it is salient or not."""
        t = block.tensors
        salient = unpack(t["classes"], 1, block.tokens)[..., None].bool()
        elements = salient.numel() * self._head_dim(t, salient.shape[1])
        widths = torch.where(salient, float(self.widths[0]), float(self.widths[1]))
        beside = 8 * sum(block.nbytes.values()) / elements - widths.mean()  # scales, and what packing pads
        return (widths + beside).cpu()

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)


def _members(salient: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the tokens of either class, in their order, of bool (layers, kv_heads, tokens)."""
    order = salient.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)
    count = int(salient[0, 0].sum())
    return order[..., :count], order[..., count:]


def _whole(values: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A patch of all of values (layers, kv_heads, tokens, head_dim), the first token the ``first`` stored one."""
    places = torch.ones(values.shape[:3], dtype=torch.bool, device=values.device).nonzero()
    return places[:, 0], places[:, 1], places[:, 2] + first, values.flatten(0, 2)
