"""Plain rounding to nearest, with or without outliers kept apart."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from kvq_kernels import Path
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt
from kvq_core.methods.baselines.heads import join_heads, joint_grouping_why_not, part_heads
from kvq_core.methods.baselines.outliers import as_index, put_back, share_apart
from kvq_core.methods.widths import Bits


class Uniform(Method):
    """Keys and values of every token are rounded to the nearest of 2^bits even steps between the smallest and the
    largest element of their group, group_size consecutive channels of the token's heads side by side.

    Stored: packed codes, an fp16 scale and an fp16 minimum a group: bits + 32/group_size bits an element. No token
    stays in full precision. With outlier_fraction, that share of a token's elements, those of largest magnitude over
    all its heads, is kept as fp16 values with 16-bit positions (32 bits each) and leaves the ranges of the groups.

    The floor that methods are compared with. Outlier channels of the keys hurt it most: they widen every group that
    they fall into.
    """

    name: ClassVar[str] = "uniform"
    title: ClassVar[str] = "Uniform (RTN)"
    scales = ("channels", "channels")
    token_local = (True, True)
    deviations: ClassVar[tuple[str, ...]] = (
        "Papers that compare with plain rounding rarely say how it groups; here groups lie along the channels of a "
        "token and run on from one head into the next where group_size does not divide a head.",
    )

    bits: Bits = Field(4, title="Bits", description="Bits of a code, for keys and values alike.")
    group_size: int = Field(
        64, ge=1, le=1024, title="Group size", description="Channels of a token that share one scale and minimum."
    )
    outlier_fraction: float = Field(
        0,
        ge=0,
        le=0.5,
        title="Outlier fraction",
        description="Share of a token's elements, the largest in magnitude, kept exactly; 0 keeps none.",
    )

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=1)
        return window, window

    def why_not(self, shape: ModelShape) -> str | None:
        return joint_grouping_why_not(shape, self.group_size)

    def fit(self, prompt: Prompt) -> Fitted:
        _, heads, _, dim = prompt.keys.shape
        base = GroupCodec(self.bits, self.group_size, "channels", prompt.metadata)
        outliers = outlier_count(self.outlier_fraction, heads * dim)
        if not outliers and dim % self.group_size == 0:
            return Fitted(base, base)
        codec = UniformCodec(base, heads, heads * dim, outliers)
        notes = (f"{outliers} of a token's {heads * dim} elements are outliers ({outliers / (heads * dim):.1%})",)
        return Fitted(codec, codec, notes if outliers else ())

    def summary(self) -> str:
        outliers = f" · {self.outlier_fraction:.3g} outliers" if self.outlier_fraction else ""
        return f"K{self.bits} V{self.bits} · group {self.group_size}{outliers}"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.bits}" + (" + outliers" if self.outlier_fraction else "")


def outlier_count(fraction: float, size: int) -> int:
    """Outliers of a row of ``size``: the nearest number, at least one where any are asked for."""
    return min(size - 1, max(1, round(fraction * size))) if fraction else 0


@dataclass(frozen=True)
class UniformCodec(Codec):
    """Groups over a token's heads side by side, and ``outliers`` elements of each token kept apart."""

    base: GroupCodec
    kv_heads: int
    channels: int
    outliers: int
    axis: Literal["channels"] = "channels"

    def encode(self, x: Tensor, start: int) -> Block:
        rows = join_heads(x.float())
        if not self.outliers:
            return self.base.encode(rows, start)
        at = rows.abs().topk(self.outliers, -1, sorted=False).indices
        tensors = self.base.encode(self._without(rows, at), start).tensors
        kept = {"outliers": rows.gather(-1, at).half(), "positions": as_index(at, rows.shape[-1])}
        return Block(x.shape[-2], {**tensors, **kept})

    def _without(self, rows: Tensor, at: Tensor) -> Tensor:
        """Rows with the elements at ``at`` replaced by the mean of the others of their group: no range grows."""
        others = torch.ones_like(rows).scatter_(-1, at, 0).unflatten(-1, (-1, self.base.group_size))
        groups = rows.unflatten(-1, (-1, self.base.group_size))
        mean = (groups * others).sum(-1, keepdim=True) / others.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(others > 0, groups, mean).flatten(-2)

    def decode(self, block: Block) -> Tensor:
        rows = self.base.decode(block)
        if self.outliers:
            put_back(rows, block.tensors["positions"], block.tensors["outliers"])
        return part_heads(rows, self.kv_heads)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        return self.base.usage(blocks) | share_apart(blocks, self.channels, self.kv_heads)

    def bits(self, block: Block) -> Tensor:
        return self.base.bits(block)

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)
