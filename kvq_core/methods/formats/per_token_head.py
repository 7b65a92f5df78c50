"""vLLM's formats with one scale a token and KV head: int8, fp8 and int4 (its Triton attention backend)."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from kvq_kernels import pack, unpack
from torch import Tensor

from kvq_core.codecs.hadamard import largest_block
from kvq_core.codecs.queries import QueryRounding
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, ModelRef, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.float8 import LARGEST, VLLM, to_float8
from kvq_core.methods.formats.tokenwise import Format, TokenCodec

LEAST = 1e-6  # no scale is smaller
INT8, INT4 = 127, 15
SEED = 0x9E3779B9  # of the signs of int4's rotation
ZERO_BITS = 15  # the lowest mantissa bits of a scale, which hold int4's zero point


def _away(x: Tensor) -> Tensor:
    """Rounded to the nearest, halves away from zero."""
    return (x.abs() + 0.5).floor() * x.sign()


@dataclass(frozen=True)
class SymmetricHeads(TokenCodec):
    """``amax / largest`` in float32 a row, codes as 8-bit integers, or in e4m3 where ``floating``."""

    floating: bool = False

    def store(self, x: Tensor) -> dict[str, Tensor]:
        largest = LARGEST["e4m3"] if self.floating else INT8
        scales = (x.abs().amax(-1, keepdim=True) / largest).clamp_min(LEAST)
        scaled = x * (1 / scales)
        codes = to_float8(scaled, "e4m3") if self.floating else _away(scaled).clamp(-128, 127).to(torch.int8)
        return {"codes": codes, "scales": scales}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["codes"].float() * tensors["scales"]

    packed = TokenCodec.packed


@dataclass(frozen=True)
class RotatedInt4(TokenCodec):
    """Rows after random signs and an unnormalised Hadamard transform, both rounded to bfloat16 as the engine does;
    4-bit codes of even steps, and a float32 scale whose four lowest bits are the zero point."""

    def store(self, x: Tensor) -> dict[str, Tensor]:
        y = _turned(x)
        low, high = y.amin(-1, keepdim=True), y.amax(-1, keepdim=True)
        scales = ((high - low) / INT4).clamp_min(LEAST)
        zeros = _away(-low / scales).clamp(0, INT4)
        codes = _away(y / scales + zeros).clamp(0, INT4).to(torch.uint8)
        held = (scales.view(torch.int32) & ~ZERO_BITS) | zeros.to(torch.int32)
        return {"codes": pack(codes, 4), "scales": held.view(torch.float32)}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        held = tensors["scales"].view(torch.int32)
        zeros, scales = (held & ZERO_BITS).float(), (held & ~ZERO_BITS).view(torch.float32)
        codes = unpack(tensors["codes"], 4, 2 * tensors["codes"].shape[-1]).float()
        return _turned_back((codes - zeros) * scales)

    packed = TokenCodec.packed


def _turned(x: Tensor) -> Tensor:
    """Hn (D x), the transform's sums in bfloat16; a row grows by sqrt(block)."""
    signs = _signs(x.shape[-1], x.device)
    return _sums((x.bfloat16() * signs).bfloat16().float()).bfloat16().float()


def _turned_back(y: Tensor) -> Tensor:
    block = largest_block(y.shape[-1])
    return _sums(y) * _signs(y.shape[-1], y.device) / block


def _sums(x: Tensor) -> Tensor:
    """The unnormalised Hadamard transform of every block of channels."""
    block = largest_block(x.shape[-1])
    matrix = torch.ones(1, 1, device=x.device)
    half = torch.tensor([[1.0, 1.0], [1.0, -1.0]], device=x.device)
    for _ in range(block.bit_length() - 1):
        matrix = torch.kron(matrix, half)
    return (x.unflatten(-1, (-1, block)) @ matrix).flatten(-2)


def _signs(head_dim: int, device: torch.device) -> Tensor:
    """(head_dim,) of 1 and -1: one block's, the same for all."""
    block = largest_block(head_dim)
    drawn = torch.bernoulli(torch.full((block,), 0.5), generator=torch.Generator().manual_seed(SEED))
    return (1 - 2 * drawn).repeat(head_dim // block).to(device)


class PerTokenHead(Format):
    """What the three have in common."""

    home: ClassVar[Home | None] = VLLM
    # vLLM 0.33.0, v1/attention/backends/triton_attn.py: the one backend that has these, for every compute capability
    hardware: ClassVar[str] = "Any GPU that vLLM's Triton attention runs on."

    def fit(self, prompt: Prompt) -> Fitted:
        return Fitted(self.codec(), self.codec())

    @abstractmethod
    def codec(self) -> TokenCodec:
        """Of keys and of values."""

    @property
    def cache_types(self) -> dict[str, str]:
        return {"vLLM": self.name}

    def _served(self) -> tuple[Elsewhere, ...]:
        how = f"vllm serve M --kv-cache-dtype {self.name}"
        return (Elsewhere("vLLM", how, needs=self.hardware, since=first_release("vLLM", self.name)),)

    def summary(self) -> str:
        return "a scale a token and KV head"


class Int8PerTokenHead(PerTokenHead):
    """8-bit integers with one float32 scale a token and KV head, the head's largest magnitude over 127.

    8 + 32/head_dim bits an element: 8.5 at 64, 8.25 at 128. No window: the newest token is read as it is stored.
    One outlier channel sets the step of the whole head.
    """

    name: ClassVar[str] = "int8_per_token_head"
    title: ClassVar[str] = "vLLM int8 per token head"
    scales = ("channels", "channels")

    def codec(self) -> TokenCodec:
        return SymmetricHeads()

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served()


class Fp8PerTokenHead(PerTokenHead):
    """8-bit floating point (e4m3) with one float32 scale a token and KV head, the head's largest magnitude over 448.

    8 + 32/head_dim bits an element: 8.5 at 64, 8.25 at 128. No window: the newest token is read as it is stored.
    """

    name: ClassVar[str] = "fp8_per_token_head"
    title: ClassVar[str] = "vLLM fp8 per token head"
    hardware: ClassVar[str] = "Of NVIDIA's GPUs those since Ada or Hopper."  # there, 8-bit floating point alone

    def codec(self) -> TokenCodec:
        return SymmetricHeads(floating=True)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served()


class Int4PerTokenHead(PerTokenHead):
    """4-bit codes of a token and KV head after random signs and a Hadamard transform, with one float32 scale that hides
    the zero point in its lowest four bits.

    4 + 32/head_dim bits an element: 4.5 at 64, 4.25 at 128. The rotation is rounded to bfloat16 on the way, as the
    engine does. No window: the newest token is read as it is stored.
    """

    name: ClassVar[str] = "int4_per_token_head"
    title: ClassVar[str] = "vLLM int4 per token head"
    queries_to: ClassVar[str | None] = "bfloat16, turned as keys are"

    @property
    def not_rotated(self) -> str | None:
        return "it rotates what it stores itself"

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        return lambda queries: _turned_back(_turned(queries.float()))  # to bfloat16, as its keys

    def why_not(self, shape: ModelShape) -> str | None:
        if shape.head_dim % 2:
            return f"head_dim = {shape.head_dim} is odd, and two codes share a byte"
        return None

    def codec(self) -> TokenCodec:
        return RotatedInt4()

    def fit(self, prompt: Prompt) -> Fitted:
        dim = prompt.keys.shape[-1]
        if (block := largest_block(dim)) == dim:
            return super().fit(prompt)
        note = f"head_dim = {dim} is no power of two: as in the engine, blocks of {block} channels are turned"
        return Fitted(self.codec(), self.codec(), (note,))

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served()

    def summary(self) -> str:
        return "signs and Hadamard · a scale a token and KV head"
