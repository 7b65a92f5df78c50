"""What quanto and hqq have in common: transformers' QuantizedCache, which hands whole tensors to a backend."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from typing import ClassVar

import torch
from kvq_kernels import Path
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.window import Window
from kvq_core.engines import first_release
from kvq_core.errors import MethodError
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home, generate_cache, quantized_cache
from kvq_core.methods.widths import RECENT

DTYPE = (
    "Backends compute in the dtype of what they are given: float16 in runs, the precision of windows here. "
    "transformers gives them the model's, mostly bfloat16, whose scales are coarser."
)


@dataclass(frozen=True)
class WholeCodec(Codec):
    """All tokens of a layer as one tensor of a backend, made again with those that come: what is stored is decoded,
    joined with them and quantized anew (transformers, QuantizedLayer.update)."""

    bits_per_code: int
    group_size: int
    dimension: int  # the backend's axis
    kv_heads: int
    head_dim: int
    dtype: torch.dtype  # of what the backend is given, and so of its scales
    blank: bool = False  # nothing is computed: tensors of the backend's sizes, for counts of bytes

    rewrites = True

    @abstractmethod
    def store(self, x: Tensor) -> dict[str, Tensor]:
        """What the backend keeps of x (1, kv_heads, tokens, head_dim), one layer."""

    @abstractmethod
    def load(self, tensors: dict[str, Tensor], tokens: int) -> Tensor:
        """What the backend makes of that: (1, kv_heads, tokens, head_dim)."""

    @abstractmethod
    def refused(self, tokens: int) -> str | None:
        """Why the backend fails on so many tokens of a layer; None where it does not."""

    @abstractmethod
    def code_bytes(self, elements: int) -> int:
        """Of the codes of so many elements of a layer, as the backend lays them out."""

    def _left_blank(self, x: Tensor) -> dict[str, Tensor]:
        scales, codes = x.new_empty(x.numel() // self.group_size), self.code_bytes(x.numel())
        return {"codes": torch.empty(codes, dtype=torch.uint8), "scales": scales, "zeros": scales}

    def encode(self, x: Tensor, start: int) -> Block:
        if reason := self.refused(x.shape[-2]):
            raise MethodError(f"{reason}.")
        store = self._left_blank if self.blank else self.store
        parts = [store(layer[None].to(self.dtype).contiguous()) for layer in x]
        return Block(x.shape[-2], {name: torch.stack([part[name] for part in parts]) for name in parts[0]})

    def extend(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        held = [self.decode(block) for block in blocks]
        blocks[:] = [self.encode(torch.cat([*held, x], -2), start - sum(part.shape[-2] for part in held))]
        return self.decode(blocks[0])

    def extend_prompt(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        return self.extend(blocks, x, start)

    def decode(self, block: Block) -> Tensor:
        layers = len(next(iter(block.tensors.values())))
        parts = ({name: t[layer] for name, t in block.tensors.items()} for layer in range(layers))
        return torch.cat([self.load(part, block.tokens).float() for part in parts])

    def bits(self, block: Block) -> Tensor:
        layers = len(next(iter(block.tensors.values())))
        elements = prod((layers, self.kv_heads, block.tokens, self.head_dim))
        return torch.tensor(8 * sum(block.nbytes.values()) / elements).view(1, 1, 1, 1)

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)


class QuantizedCache(Method):
    """A method whose tensors are a backend's of transformers' QuantizedCache."""

    home: ClassVar[Home | None] = Home("transformers", "raw")
    packages: ClassVar[Mapping[str, str]]  # that it needs, by what is imported
    deviations: ClassVar[tuple[str, ...]] = (DTYPE,)

    group_size: int = Field(
        64, ge=8, le=1024, title="Group size", description="Elements that share one scale and zero-point."
    )
    residual_length: int = Field(
        128,
        ge=1,
        le=4096,
        title="Residual length",
        json_schema_extra=RECENT,
        description="Newest tokens that wait in full precision until so many are held; none of them is the prompt's.",
    )

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=self.residual_length, rewritten=True, whole_prompt=True)
        return window, window

    @abstractmethod
    def codec(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> WholeCodec:
        """Of keys and of values."""

    def why_not(self, shape: ModelShape) -> str | None:
        if lacking := [package for module, package in self.packages.items() if not _installed(module)]:
            return f"it needs the package {' and '.join(lacking)}; run: pip install --no-deps {' '.join(lacking)}"
        token = shape.kv_heads * shape.head_dim
        if token % self.group_size:
            return (
                f"group_size = {self.group_size} does not divide the {shape.kv_heads} x {shape.head_dim} elements of a "
                "token in a layer, and the backend fails unless groups fill its tensor; choose a divisor"
            )
        reason = self.codec(shape.kv_heads, shape.head_dim, torch.float16).refused(self.residual_length)
        return None if reason is None else f"residual_length = {self.residual_length}: {reason}"

    def fit(self, prompt: Prompt) -> Fitted:
        key, value = (self.codec(x.shape[1], x.shape[-1], prompt.metadata) for x in (prompt.keys, prompt.values))
        return Fitted(key, value)

    def sized(self, prompt: Prompt) -> Fitted:
        """Without the backend, whose import takes seconds."""
        own = (self.codec(x.shape[1], x.shape[-1], prompt.metadata) for x in (prompt.keys, prompt.values))
        key, value = (replace(codec, blank=True) for codec in own)
        return Fitted(key, value)

    def _offered(self, axis: int, bits: int) -> tuple[Elsewhere, ...]:
        """transformers' own cache with these settings."""
        how = quantized_cache(self.packages.values(), self.name, bits, axis, self.group_size, self.residual_length)
        said = "Scales are in the model's dtype. Models with full attention only."
        return (Elsewhere("transformers", how, said, since=first_release("transformers", "QuantizedCache")),)

    def _called(self, axis: int, bits: int) -> dict[str, str]:
        """``cache_types`` with these settings."""
        axes = {"axis_key": axis, "axis_value": axis}
        sizes = {"q_group_size": self.group_size, "residual_length": self.residual_length}
        return {"transformers": generate_cache({"backend": self.name, "nbits": bits, **axes, **sizes})}

    def _said(self, axis: int, bits: int) -> str:
        return f"{bits} bits · axis {axis} · group {self.group_size} · residual {self.residual_length}"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
