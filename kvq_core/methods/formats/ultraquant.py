"""vLLM's 4-bit format for AMD GPUs: MXFP4's numbers behind a Hadamard transform of the keys."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from kvq_core.codecs.hadamard import Hadamard
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.float4 import LEAST, Mxfp4Codec, whole_blocks
from kvq_core.methods.formats.tokenwise import Format, boundary

BLOCK = 32
SHARE = 0.156  # of a block's largest magnitude, which becomes about the step: 6.4 steps, where e2m1 ends at 6


@dataclass(frozen=True)
class UltraCodec(Mxfp4Codec):
    """Blocks whose power of two is the nearest one, in logarithms, to ``SHARE`` of the largest magnitude."""

    def exponents(self, most: Tensor) -> Tensor:
        return (SHARE * most).clamp_min(LEAST).log2().round()

    packed = Mxfp4Codec.packed


class UltraQuant(Format):
    """4-bit floating-point numbers (e2m1) in blocks of 32 channels of a token, each with a power of two as scale; keys
    behind a Hadamard transform of the whole head, values as they are.

    4.25 bits an element. The largest elements of a block may be cut by up to a third, which keeps the steps of the
    others small. The first and last boundary_layers layers stay fp16. No window.
    """

    name: ClassVar[str] = "ultraquant_4bit"
    title: ClassVar[str] = "vLLM UltraQuant"
    scales = (None, "channels")
    deviations: ClassVar[tuple[str, ...]] = (
        "What lies halfway between two levels goes to the one with an even code; the engine's rule is not known here.",
    )
    home: ClassVar[Home | None] = Home("vLLM", "raw")

    boundary_layers: int = Field(
        2, ge=0, le=64, title="Boundary layers", description="First and last layers that stay fp16, as vLLM keeps them."
    )

    @property
    def not_rotated(self) -> str | None:
        return "it rotates keys itself"

    def kept_layers(self, layers: int) -> frozenset[int]:
        return boundary(self.boundary_layers, layers)

    def why_not(self, shape: ModelShape) -> str | None:
        if shape.head_dim & (shape.head_dim - 1):
            return f"head_dim = {shape.head_dim} is no power of two, and keys are turned whole"
        return whole_blocks(shape.head_dim, BLOCK)

    def fit(self, prompt: Prompt) -> Fitted:
        turn = Hadamard.of(prompt.keys.shape[-1], prompt.keys.device)
        return Fitted(UltraCodec(turn, block=BLOCK), UltraCodec(block=BLOCK))

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        differs = None if self.boundary_layers == 2 else "vLLM keeps the first and last two layers."
        how, since = f"vllm serve M --kv-cache-dtype {self.name}", first_release("vLLM", self.name)
        return (Elsewhere("vLLM", how, differs, "Needs an AMD GPU.", since),)

    @property
    def cache_types(self) -> dict[str, str]:
        return {"vLLM": self.name} if self.boundary_layers == 2 else {}

    def summary(self) -> str:
        return f"e2m1 · blocks of {BLOCK} · K Hadamard" + (
            f" · {self.boundary_layers} first and last layers fp16" if self.boundary_layers else ""
        )
