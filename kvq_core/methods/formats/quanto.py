"""optimum-quanto, the default backend of transformers' QuantizedCache."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.methods.base import Axis
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.formats.quantized_cache import QuantizedCache, WholeCodec


@dataclass(frozen=True)
class QuantoCodec(WholeCodec):
    """optimum.quanto's WeightQBitsTensor with the range of a group, as transformers' QuantoQuantizedLayer makes it:
    codes (rows / codes a byte, columns), a scale and a shift (minus the smallest element) a group."""

    @property
    def axis(self) -> Axis:
        return "channels" if self.dimension == 0 else "tokens"

    def store(self, x: Tensor) -> dict[str, Tensor]:
        from optimum.quanto import MaxOptimizer, qint2, qint4, quantize_weight

        width = qint4 if self.bits_per_code == 4 else qint2
        scale, shift = MaxOptimizer()(x, width, self.dimension, self.group_size)
        stored = quantize_weight(x, width, self.dimension, scale, shift, self.group_size)
        return {"codes": stored._data._data, "scales": stored._scale, "zeros": stored._shift}

    def load(self, tensors: dict[str, Tensor], tokens: int) -> Tensor:
        from optimum.quanto import WeightQBitsTensor, grouped_shape, qint2, qint4

        width = qint4 if self.bits_per_code == 4 else qint2
        size = torch.Size((1, self.kv_heads, tokens, self.head_dim))
        rows, _ = grouped_shape(size, self.dimension, self.group_size)
        codes = unpacked(tensors["codes"], self.bits_per_code)[:rows]
        strides = torch.empty(size, device="meta").stride()
        scale, shift = tensors["scales"], tensors["zeros"]
        whole = WeightQBitsTensor(width, self.dimension, self.group_size, size, strides, codes, scale, shift)
        whole._data = codes  # it packs what it is given, and would unpack it by C++
        return whole.dequantize()

    def code_bytes(self, elements: int) -> int:
        rows, columns = elements // self.group_size, self.group_size
        if self.dimension:
            rows, columns = columns, rows
        return -(-rows // (8 // self.bits_per_code)) * columns

    def refused(self, tokens: int) -> str | None:
        rows = self.kv_heads * tokens
        if self.dimension == 0 or rows % self.group_size == 0:
            return None
        return (
            f"axis = -1 takes groups of {self.group_size} out of the {self.kv_heads} x {tokens} rows of a layer, and "
            "quanto fails unless they fill them; take axis = 0"
        )

    packed = WholeCodec.packed


def unpacked(codes: Tensor, bits: int) -> Tensor:
    """Codes of a PackedTensor (rows / codes a byte, columns): the first rows in the low bits. The package does the same
    in C++, which it compiles when it is first asked: that takes a minute and a compiler."""
    return torch.cat([(codes >> shift) & (2**bits - 1) for shift in range(0, 8, bits)])


class Quanto(QuantizedCache):
    """Codes of even steps between the smallest and the largest element of a group, by the package optimum-quanto: what
    transformers' generate takes where it is asked for a quantized cache.

    The prompt is quantized as a whole; newer tokens wait in full precision until residual_length of them are held, then
    all is decoded and quantized again. Axis 0 takes groups of consecutive elements in memory: 64 channels of a token,
    not tokens of a channel as its documentation says, so outlier channels of keys stretch the range of their groups.
    Quantizing again changes next to nothing. With groups of 64, bits + 0.5 an element.
    """

    name: ClassVar[str] = "quanto"
    title: ClassVar[str] = "transformers quanto"
    scales = ("channels", "channels")
    packages = {"optimum.quanto": "optimum-quanto"}

    bits: Literal[2, 4] = Field(4, title="Bits", description="Bits of a code, for keys and values alike.")
    axis: Literal[0, -1] = Field(
        0,
        title="Axis",
        description="0: groups of channels of a token. -1: of tokens of a channel, across heads; mostly fails.",
    )

    @property
    def not_chunked(self) -> str | None:
        return None if self.axis == 0 else "axis = -1 fails on most numbers of tokens; take axis = 0"

    def codec(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> WholeCodec:
        return QuantoCodec(self.bits, self.group_size, self.axis, kv_heads, head_dim, dtype)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._offered(self.axis, self.bits) if self.axis == 0 else ()

    @property
    def cache_types(self) -> dict[str, str]:
        return self._called(self.axis, self.bits) if self.axis == 0 else {}

    def summary(self) -> str:
        return self._said(self.axis, self.bits)

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.bits}"
