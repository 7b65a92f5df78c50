"""GEAR: coarse codes, the outliers apart, and the rounding error as a product of two thin matrices."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from kvq_kernels import Path
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, layer_slices
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt
from kvq_core.methods.baselines.heads import join_heads, joint_grouping_why_not, part_heads
from kvq_core.methods.baselines.outliers import as_index, extremes, put_back, share_apart
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.widths import Bits

SEED = 0  # of the power iteration's start


class Gear(Method):
    """KIVI's grouping (keys per channel over tokens, values per token over channels) with two repairs: the smallest
    and largest elements are kept apart, and what rounding got wrong is added back as a matrix of low rank a head.

    Stored: packed codes with an fp16 scale and minimum a group; outlier_fraction of the elements as fp16 values with
    their positions, half at either end of a channel's tokens (keys) or of a token's channels (values); and for every
    head two fp16 factors, (tokens, rank) and (head_dim, rank), fitted to the rounding error by power iteration.
    With T tokens in a block an element costs bits + 32/group_size + 16 rank (1/head_dim + 1/T) + 32 outlier_fraction.

    Tokens leave full precision group_size at a time; blocks of generated tokens are short and take half the rank.
    outlier_fraction = 0 is the paper's GEAR-L. The factors weigh most on small heads and short blocks: compare at equal
    bytes.
    """

    name: ClassVar[str] = "gear"
    title: ClassVar[str] = "GEAR"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2403.05527"
    deviations: ClassVar[tuple[str, ...]] = (
        "The power iteration starts from a seeded random matrix, the authors' from an unseeded one. It orthonormalizes "
        "in every loop, theirs in the last: the same result but for rounding, a little short of the best low rank.",
        "Key outliers are counted along a channel's tokens, outlier_fraction/2 of them at either end; the authors' "
        "code takes that share of a token's channels, 8% of 1,000 tokens.",
        "Codes have 2^bits - 1 steps; the authors' variants with outliers have bits^2 - 1, the same at 2 and 4 bits.",
        "Blocks of generated tokens take half the rank, as the authors' defaults 4 and 2 do.",
        "The authors' CUDA path (gearlKIVI) keeps no outliers; here they are kept unless outlier_fraction is 0.",
        "Tokens leave full precision group_size at a time; the authors' streaming gap, 64, is a knob of its own.",
        "Both factors and the outliers are stored in fp16, rounded once; nothing else is rounded between the stages.",
    )

    bits: Bits = Field(2, title="Bits", description="Bits of a code, for keys and values alike.")
    group_size: int = Field(
        64,
        ge=1,
        le=1024,
        title="Group size",
        description="Elements that share one scale and minimum, and tokens that leave full precision together.",
    )
    rank: int = Field(
        4, ge=1, le=64, title="Rank", description="Columns of the two factors of the prompt's rounding error, a head."
    )
    loops: int = Field(3, ge=1, le=20, title="Loops", description="Rounds of the power iteration.")
    outlier_fraction: float = Field(
        0.02,
        ge=0,
        le=0.5,
        title="Outlier fraction",
        description="Share of the elements kept exactly, half at either end; 0 is GEAR-L.",
    )

    joint = True  # positions of outliers are wider where there are many elements

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=self.group_size)
        return window, window

    def why_not(self, shape: ModelShape) -> str | None:
        return joint_grouping_why_not(shape, self.group_size)

    def fit(self, prompt: Prompt) -> Fitted:
        _, heads, _, dim = prompt.keys.shape

        def codec(axis: Literal["tokens", "channels"]) -> GearCodec:
            base = GroupCodec(self.bits, self.group_size, axis, prompt.metadata)
            return GearCodec(base, axis, heads, dim, self.rank, self.loops, self.outlier_fraction)

        return Fitted(codec("tokens"), codec("channels"))

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "Research code; its CUDA path keeps no outliers (GEAR-L with KIVI's kernels)."
        return (Elsewhere("authors' code", "https://github.com/opengear-project/GEAR", said),)

    def summary(self) -> str:
        outliers = f"{self.outlier_fraction:.3g} outliers" if self.outlier_fraction else "GEAR-L"
        return f"K{self.bits} V{self.bits} · group {self.group_size} · rank {self.rank} · {outliers}"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name}{'' if self.outlier_fraction else '-l'} {self.bits}"


def low_rank(error: Tensor, rank: int, loops: int) -> tuple[Tensor, Tensor]:
    """error (..., tokens, head_dim) ~ left @ right^T: left (..., tokens, rank) of orthonormal columns and right
    (..., head_dim, rank), as ``poweriteration`` of the authors' compress_function.py finds them."""
    *_, tokens, dim = error.shape
    rank = min(rank, tokens, dim)
    right = torch.rand(dim, rank, generator=torch.Generator().manual_seed(SEED)).to(error.device)
    for _ in range(loops - 1):
        right = error.mT @ _spanning(error, right)
    left = _spanning(error, right)
    return left, error.mT @ left


def _spanning(error: Tensor, right: Tensor) -> Tensor:
    """Orthonormal columns that span what error makes of right's columns."""
    return torch.linalg.qr(error @ torch.linalg.qr(right).Q).Q


@dataclass(frozen=True)
class GearCodec(Codec):
    """``base``'s codes of what is left without the outliers, the outliers, and the factors of the error."""

    base: GroupCodec
    axis: Literal["tokens", "channels"]
    kv_heads: int
    head_dim: int
    rank: int
    loops: int
    outlier_fraction: float

    def encode_prompt(self, x: Tensor, start: int) -> Block:
        return self._encode(x, self.rank)

    def encode(self, x: Tensor, start: int) -> Block:
        return self._encode(x, max(1, self.rank // 2))

    def _encode(self, x: Tensor, rank: int) -> Block:
        parts = [self._part(x[layers].float(), rank) for layers in layer_slices(x)]
        return Block(x.shape[-2], {name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def _part(self, x: Tensor, rank: int) -> dict[str, Tensor]:
        rows, kept = self._rows(x), dict[str, Tensor]()
        each = min(round(self.outlier_fraction / 2 * rows.shape[-1]), rows.shape[-1] // 2)
        if each:
            at = extremes(rows, each)
            kept = {"outliers": rows.gather(-1, at).half(), "positions": as_index(at, rows.shape[-1])}
            rows = rows.scatter(-1, at, rows.mean(-1, keepdim=True).expand(at.shape))
        tensors = self.base.encode(rows.mT if self.axis == "tokens" else rows, 0).tensors | kept
        left, right = low_rank(x - self._coded(Block(x.shape[-2], tensors)), rank, self.loops)
        return {**tensors, "left": left.half(), "right": right.half()}

    def _rows(self, x: Tensor) -> Tensor:
        """What outliers are sought in: a channel's tokens, or a token's channels of all heads."""
        return x.mT if self.axis == "tokens" else join_heads(x)

    def _coded(self, block: Block) -> Tensor:
        """What codes and outliers alone read back as: (layers, kv_heads, tokens, head_dim)."""
        read = self.base.decode(block)
        if "outliers" in block.tensors:
            rows = read.mT if self.axis == "tokens" else read
            put_back(rows, block.tensors["positions"], block.tensors["outliers"])
        return read if self.axis == "tokens" else part_heads(read, self.kv_heads)

    def decode(self, block: Block) -> Tensor:
        parts, t = [], block.tensors
        dim, rank = t["right"].shape[-2:]
        for layers in layer_slices(t["left"], (1 << 20) * rank // dim):
            part = Block(block.tokens, {name: tensor[layers] for name, tensor in t.items()})
            parts.append(self._coded(part) + t["left"][layers].float() @ t["right"][layers].float().mT)
        return torch.cat(parts)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        return self.base.usage(blocks) | share_apart(blocks, self.kv_heads * self.head_dim, self.kv_heads)

    def bits(self, block: Block) -> Tensor:
        return self.base.bits(block)

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)
