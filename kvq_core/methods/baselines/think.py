"""ThinK: key channels that the last queries read least are left out."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from kvq_kernels import GroupCodes, Path, dequantize_groups, pack, quantize_groups, unpack
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, bits_with_shared, layer_slices
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.widths import Bits

ASKED = 32  # last queries that score the channels


class Think(Method):
    """Of every KV head the key channels that matter least to the prompt's last 32 queries are not stored and read as
    zero: those with the least sum of squared queries times sum of squared keys.

    Stored: the other channels of the prompt's keys, in fp16 or with bits a code (then with an fp16 scale and minimum a
    channel), and a bit a channel that says which ones they are. A key element costs 16 (1 - pruned), or bits
    (1 - pruned). The channels are chosen once, on the prompt; generated keys, and all values, stay whole in fp16.

    What the last queries of the prompt hardly read is lost for every later query, too, whatever it asks.
    """

    name: ClassVar[str] = "think"
    title: ClassVar[str] = "ThinK"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2407.21018"
    not_folded = "ThinK ranks channels by queries and keys as they are; leave fold out"
    deviations: ClassVar[tuple[str, ...]] = (
        "All keys of the prompt are pruned, the newest 32, too, as in kvpress (its ThinKPress was reviewed by the "
        "paper's author); the paper, by recollection alone, leaves a recent window whole.",
        "A score is the mean over the query heads that share a KV head, as in kvpress.",
        "bits is how SVDq's authors compare with it (3/4 of the channels at 4 bits, called 3 bits); they do not say "
        "how they group: here each channel has one range over all tokens of the prompt, like their other baseline.",
    )

    pruned: float = Field(
        0.5, ge=0, le=0.95, title="Pruned", description="Share of a head's key channels that is left out."
    )
    bits: Bits | None = Field(
        None, title="Bits", description="Bits of a code of the channels that stay; empty keeps them in fp16."
    )

    @property
    def needs_queries(self) -> bool:
        return True

    def windows(self) -> tuple[Window, Window]:
        return Window(prompt_only=True), Window(step=None)

    def fit(self, prompt: Prompt) -> Fitted:
        assert prompt.queries is not None
        dim = prompt.keys.shape[-1]
        scores = channel_scores(prompt.queries, prompt.keys)
        lost = scores.topk(self._lost(dim), -1, largest=False).indices
        kept = torch.ones_like(scores, dtype=torch.bool).scatter_(-1, lost, False)
        energy = (scores * kept).sum(-1) / scores.sum(-1).clamp_min(1e-30)
        note = f"{dim - self._lost(dim)} of {dim} channels stay, with {energy.mean():.1%} of the scores"
        codec = ThinkCodec(self.bits, prompt.metadata, kept, {"channels": pack(kept.to(torch.uint8), 1)})
        return Fitted(codec, None, (note,))

    def _lost(self, head_dim: int) -> int:
        return int(head_dim * self.pruned)

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        kept = shape.head_dim - self._lost(shape.head_dim)
        return shape.kv_heads * (-(-shape.head_dim // 8) + (4 * kept if self.bits else 0)), 0

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "ThinKPress sets the channels to zero and stores them all: it shows what is lost, and saves nothing."
        return (Elsewhere("kvpress", "https://github.com/NVIDIA/kvpress", said),)

    def summary(self) -> str:
        return f"K {1 - self.pruned:.0%} of the channels · {f'{self.bits} bits' if self.bits else 'fp16'} · V untouched"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.pruned:.0%}" + (f" {self.bits}" if self.bits else "")


def channel_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """||Q_c K_c^T||_F^2 up to a factor, of the last queries (layers, query_heads, n, head_dim) and keys (layers,
    kv_heads, tokens, head_dim): mean square times mean square, (layers, kv_heads, head_dim)."""
    asked = queries[..., -ASKED:, :].float().square().mean(-2).unflatten(1, (keys.shape[1], -1)).mean(2)
    return asked * keys.float().square().mean(-2)


@dataclass(frozen=True)
class ThinkCodec(Codec):
    """Keys without some channels. ``kept`` (layers, kv_heads, head_dim) bool, as many of every head; ``shared``: the
    same as bits."""

    width: int | None
    metadata: torch.dtype
    kept: Tensor
    shared: dict[str, Tensor] = field()  # the class has one by default, a field has none

    def _at(self, layers: slice, tokens: int) -> Tensor:
        """Numbers of the channels that stay, in their order: (layers, kv_heads, tokens, kept)."""
        kept = self.kept[layers]
        at = kept.nonzero()[:, -1].view(*kept.shape[:2], 1, -1)
        return at.expand(-1, -1, tokens, -1)

    def encode(self, x: Tensor, start: int) -> Block:
        parts = [self._part(x[layers].gather(-1, self._at(layers, x.shape[-2]))) for layers in layer_slices(x)]
        return Block(x.shape[-2], {name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def _part(self, thin: Tensor) -> dict[str, Tensor]:
        if self.width is None:
            return {"codes": thin.half()}
        found = quantize_groups(thin.mT, self.width, thin.shape[-2], self.metadata)
        return {"codes": pack(found.codes, self.width), "scales": found.scales, "zeros": found.zeros}

    def decode(self, block: Block) -> Tensor:
        read = torch.zeros(*self.kept.shape[:2], block.tokens, self.kept.shape[-1], device=self.kept.device)
        for layers in layer_slices(read):
            thin = self._thin({name: t[layers] for name, t in block.tensors.items()}, block.tokens)
            read[layers] = read[layers].scatter_(-1, self._at(layers, block.tokens), thin)
        return read

    def _thin(self, t: dict[str, Tensor], tokens: int) -> Tensor:
        if self.width is None:
            return t["codes"].float()
        codes = GroupCodes(unpack(t["codes"], self.width, tokens), t["scales"], t["zeros"])
        return dequantize_groups(codes, tokens).mT

    def bits(self, block: Block) -> Tensor:
        return bits_with_shared(block, self.shared, self.kept.numel())

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)
