"""Half-quadratic quantization, the other backend of transformers' QuantizedCache."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.methods.base import Axis, Fitted, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.formats.quantized_cache import QuantizedCache, WholeCodec
from kvq_core.methods.widths import Bits

TOGETHER = {1: 8, 2: 4, 4: 2}  # codes of as many rows share a byte; of 3 bits rows are filled up
DRIFT = (
    "groups of axis 0 stride over the whole tensor, so they change as it grows: every {} tokens all is decoded and "
    "quantized in other groups, and errors add up"
)


@dataclass(frozen=True)
class HqqCodec(WholeCodec):
    """hqq's Quantizer as transformers' HQQQuantizedLayer calls it: codes of 8, 4, 2 or 1 bits in bytes, of 3 bits ten
    to an int32; scale and zero a group, where value = (code - zero) * scale."""

    @property
    def axis(self) -> Axis | None:
        return "channels" if self.dimension == 1 else None

    def store(self, x: Tensor) -> dict[str, Tensor]:
        from hqq.core.quantize import Quantizer

        codes, meta = Quantizer.quantize(
            x,
            axis=self.dimension,
            device=x.device,
            compute_dtype=self.dtype,
            nbits=self.bits_per_code,
            group_size=self.group_size,
        )
        meta["compute_dtype"] = self.dtype
        codes, meta = Quantizer.cuda(codes, meta=meta, device=x.device)  # to that device and dtype, whichever it is
        return {"codes": codes, "scales": meta["scale"], "zeros": meta["zero"]}

    def load(self, tensors: dict[str, Tensor], tokens: int) -> Tensor:
        from hqq.core.quantize import Quantizer

        packing = Quantizer.bit_to_packing[self.bits_per_code]
        meta = {
            "nbits": self.bits_per_code,
            "group_size": self.group_size,
            "shape": torch.Size((1, self.kv_heads, tokens, self.head_dim)),
            "scale": tensors["scales"],
            "zero": tensors["zeros"],
            "axis": self.dimension,
            "packing": packing,
            "unpack_view_dtype": Quantizer.unpack_view_dtype[packing],
            "view_as_float": False,
            "compute_dtype": self.dtype,
        }
        return Quantizer.dequantize(tensors["codes"], meta)

    def code_bytes(self, elements: int) -> int:
        if self.bits_per_code == 3:
            return 4 * -(-self.group_size // 10) * (elements // self.group_size)
        return elements * self.bits_per_code // 8

    def refused(self, tokens: int) -> str | None:
        groups = self.kv_heads * tokens * self.head_dim // self.group_size
        together = TOGETHER.get(self.bits_per_code, 1)
        if self.dimension == 0 or groups % together == 0:
            return None
        return (
            f"axis = 1 packs the codes of {together} groups into each byte, and hqq fails unless {together} divides "
            f"the {groups} of {tokens} tokens in a layer; take axis = 0, 8 bits or another number of tokens"
        )

    packed = WholeCodec.packed


class Hqq(QuantizedCache):
    """Codes of even steps over the range of a group, with a zero-point that up to 20 rounds of half-quadratic
    optimization move to where fewer elements are far off, by the package hqq.

    The prompt is quantized as a whole; newer tokens wait in full precision until residual_length of them are held, then
    all is decoded and quantized again. Axis 1 takes 64 channels of a token as a group, and quantizing again changes
    little. Axis 0, transformers' default, takes elements that lie evenly over heads, tokens and channels of the whole
    tensor: groups change as it grows, and errors add up with every round, which this lane shows.
    With groups of 64, bits + 0.5 an element; 3 bits take 4, ten codes in 32 bits.
    """

    name: ClassVar[str] = "hqq"
    title: ClassVar[str] = "transformers HQQ"
    paper: ClassVar[str | None] = "https://mobiusml.github.io/hqq_blog/"
    packages = {"hqq": "hqq", "termcolor": "termcolor", "einops": "einops"}

    bits: Bits = Field(4, title="Bits", description="Bits of a code, for keys and values alike.")
    axis: Literal[0, 1] = Field(
        0, title="Axis", description="1: groups of channels of a token. 0: of elements all over the tensor, as shipped."
    )

    @property
    def not_chunked(self) -> str | None:
        if self.axis == 0 or self.bits == 8:
            return None
        return "axis = 1 fails on some numbers of tokens, and chunks make many; take axis = 0 or 8 bits"

    def why_not(self, shape: ModelShape) -> str | None:
        if self.bits == 3 and self.axis == 1:
            return "hqq cannot read 3-bit codes of axis 1 back from tensors of four dimensions; take axis = 0"
        together = TOGETHER.get(self.bits, 1)
        if self.axis == 0 and self.group_size % together:
            return f"group_size = {self.group_size} does not fill bytes that {together} codes share; take a multiple"
        return super().why_not(shape)

    def codec(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> WholeCodec:
        return HqqCodec(self.bits, self.group_size, self.axis, kv_heads, head_dim, dtype)

    def fit(self, prompt: Prompt) -> Fitted:
        codec = self.codec(prompt.keys.shape[1], prompt.keys.shape[-1], prompt.metadata)
        return Fitted(codec, codec, (DRIFT.format(self.residual_length),) if self.axis == 0 else ())

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._offered(self.axis, self.bits)

    @property
    def cache_types(self) -> dict[str, str]:
        return self._called(self.axis, self.bits)

    def summary(self) -> str:
        return self._said(self.axis, self.bits)

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.bits}"
