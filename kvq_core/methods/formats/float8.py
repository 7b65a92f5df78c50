"""8-bit floating point: the cache that vLLM, SGLang and TensorRT-LLM switch on with one word."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import of_layer
from kvq_core.codecs.queries import QueryRounding, rounded_e4m3
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, ModelRef, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.tokenwise import Format, TokenCodec

VLLM = Home("vLLM", "stored")
CALIBRATED = "its scales are calibrated on this prompt, which a server takes from the checkpoint"
Kind = Literal["e4m3", "e5m2"]
DTYPES: dict[Kind, torch.dtype] = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST: dict[Kind, float] = {"e4m3": 448.0, "e5m2": 57344.0}
SGLANG: dict[Kind, str] = {  # 0.5.23, srt/arg_groups/fields/model.py and srt/mem_cache/kv_cache_dtype.py
    "e4m3": "With an NVIDIA GPU CUDA 11.8 or newer.",
    "e5m2": "Needs a GPU, an NVIDIA one with CUDA 11.8 or newer.",
}
AGES: dict[Kind, str] = {"e4m3": "Needs a GPU since Ada or Hopper.", "e5m2": "Runs on Ampere GPUs as well."}


def to_float8(x: Tensor, kind: Kind) -> Tensor:
    """Rounded to the nearest, larger magnitudes to the largest number: servers' writers saturate, where torch's cast of
    e5m2 gives infinity."""
    return x.clamp(-LARGEST[kind], LARGEST[kind]).to(DTYPES[kind])


def prompt_scale(x: Tensor, largest: float, each_head: bool = False) -> Tensor:
    """What divides x (layers, kv_heads, tokens, head_dim) so that its largest magnitude in a layer, or in a head,
    becomes ``largest``: float32 (layers, kv_heads or 1, 1, 1)."""
    most = x.abs().amax((2, 3) if each_head else (1, 2, 3), keepdim=True).float() / largest
    return most.where(most > 0, torch.ones_like(most))


@dataclass(frozen=True)
class ScaledCodec(TokenCodec):
    """Rows that are divided by one scale of their layer, or of their head, first; ``shared`` holds it, or nothing where
    it is 1."""

    shared: dict[str, Tensor] = field(default_factory=dict)

    def encode(self, x: Tensor, start: int) -> Block:
        return super().encode(x / self.shared["scale"] if self.shared else x, start)

    def decode(self, block: Block) -> Tensor:
        found = super().decode(block)
        return found * self.shared["scale"] if self.shared else found

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        own = replace(self, shared=of_layer(self.shared, layer))
        return own.decode(own.encode(x, start))

    packed = TokenCodec.packed


@dataclass(frozen=True)
class Float8Codec(ScaledCodec):
    """A byte an element."""

    kind: Kind = "e4m3"

    def store(self, x: Tensor) -> dict[str, Tensor]:
        return {"codes": to_float8(x, self.kind)}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["codes"].float()

    packed = TokenCodec.packed


class Fp8(Format):
    """Keys and values as 8-bit floating-point numbers: 4 bits of exponent and 3 of mantissa (e4m3), or 5 and 2 (e5m2).

    8 bits an element and, where scales are calibrated, one float32 a layer or KV head. Servers take 1 where the
    checkpoint brings none. Rounding is relative, at most 1/16 of an element with e4m3, so no scale rescues channels
    that are large: it is large elements that lose most. No window: the newest token is read as it is stored.
    """

    name: ClassVar[str] = "fp8"
    title: ClassVar[str] = "FP8"
    home: ClassVar[Home | None] = VLLM
    queries_to: ClassVar[str | None] = "e4m3"

    format: Kind = Field("e4m3", title="Format", description="Bits of exponent and mantissa.")
    scale: Literal["one", "tensor", "head"] = Field(
        "one", title="Scale", description="1, or the prompt's largest magnitude in a layer, or in a KV head."
    )
    quantize_query: bool = Field(
        True, title="Round queries", description="To e4m3 as well, at scale 1, as FP8 attention does."
    )

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        # at scale 1 whatever the keys' scale: vLLM 0.33.0, model_executor/layers/quantization/kv_cache.py:171-199,
        # overwrites what line 153 takes from the keys; SGLang 0.5.23's fa3 casts without a scale
        return rounded_e4m3 if self.quantize_query and self.format == "e4m3" else None

    def fit(self, prompt: Prompt) -> Fitted:
        if self.scale == "one":
            return Fitted(Float8Codec(kind=self.format), Float8Codec(kind=self.format))
        key, value = (
            Float8Codec(kind=self.format, shared={"scale": prompt_scale(x, LARGEST[self.format], self.scale == "head")})
            for x in (prompt.keys, prompt.values)
        )
        return Fitted(key, value, (CALIBRATED,))

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        asked = {"e4m3": "fp8", "e5m2": "fp8_e5m2"}[self.format]
        scaled = "" if self.scale == "one" else "Scales come from the checkpoint, not from the prompt. "
        vllm = scaled + ("Queries stay." if self.query_rounding() is None and self.format == "e4m3" else "")
        raw = f"{scaled}A prompt's own chunk is read as computed by the Triton backend; queries stay there."
        first = first_release("vLLM", asked)
        ways = [
            Elsewhere("vLLM", f"vllm serve M --kv-cache-dtype {asked}", vllm.strip() or None, AGES[self.format], first)
        ]
        word = f"fp8_{self.format}"
        how = f"python -m sglang.launch_server --model-path M --kv-cache-dtype {word}"
        ways.append(Elsewhere("SGLang", how, raw, SGLANG[self.format], first_release("SGLang", word)))
        if self.format == "e4m3":
            needs = "Needs an NVIDIA GPU since Ampere."  # its docs/source/features/quantization.md, hardware matrix
            how, first = "trtllm-serve M --kv_cache_dtype fp8", first_release("TensorRT-LLM", "fp8")
            ways.append(Elsewhere("TensorRT-LLM", how, scaled.strip() or None, needs, first))
        return tuple(ways)

    @property
    def cache_types(self) -> dict[str, str]:
        servers = {"vLLM": "fp8" if self.format == "e4m3" else "fp8_e5m2", "SGLang": f"fp8_{self.format}"}
        return {**servers, **({"TensorRT-LLM": "fp8"} if self.format == "e4m3" else {})}

    def summary(self) -> str:
        scaled = {"one": "scale 1", "tensor": "a scale a layer", "head": "a scale a head"}[self.scale]
        return f"{self.format} · {scaled}{' · Q e4m3' if self.query_rounding() else ''}"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return self.name if self.format == "e4m3" else f"{self.name} {self.format}"
