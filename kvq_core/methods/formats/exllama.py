"""ExLlamaV3's quantized cache (exllamav3_ext/cache/q_cache_kernels.cuh, lmq.cuh)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.hadamard import Hadamard
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.ggml import tiles
from kvq_core.methods.formats.planes import pack_planes, unpack_planes
from kvq_core.methods.formats.tokenwise import Format, TokenCodec
from kvq_core.methods.widths import WidthMethod

Width = Literal[2, 3, 4, 5, 6, 7, 8]
GROUP = 32  # channels of a scale and of the rotation
LEAST = 1e-10  # added to every scale


@dataclass(frozen=True)
class MidriseGroups(TokenCodec):
    """Groups of 32 channels, turned by a Hadamard transform of their own, in even steps of the largest magnitude: no
    level is zero, and the largest is (1 - 2**-bits) of the scale. ``compander`` a: levels and the bounds between them
    are bent by a t + (1 - a) t^3; 0 leaves them even."""

    bits_per_code: int = 4
    compander: float = 0.0

    def store(self, x: Tensor) -> dict[str, Tensor]:
        groups, half = x.unflatten(-1, (-1, GROUP)), 1 << self.bits_per_code - 1
        scales = groups.abs().amax(-1, keepdim=True) + LEAST
        scaled = groups * (1 / scales)
        if self.compander:
            bounds = self._bent(torch.arange(1, 2 * half, device=x.device) / half - 1)
            codes = torch.bucketize(scaled, bounds, right=True, out_int32=True)
        else:
            codes = scaled.mul_(half).add_(half).clamp_(0, 2 * half - 1)
        packed = pack_planes(codes.to(torch.uint8).flatten(-2), self.bits_per_code)
        return {"codes": packed, "scales": scales.squeeze(-1).half()}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        codes, half = unpack_planes(tensors["codes"], self.bits_per_code), 1 << self.bits_per_code - 1
        if self.compander:
            levels = self._bent((torch.arange(2 * half, device=codes.device) + 0.5) / half - 1)
            found = levels.index_select(0, codes.flatten().int()).view(codes.shape)
        else:
            found = codes.float().sub_(half - 0.5).div_(half)
        return found.unflatten(-1, (-1, GROUP)).mul_(tensors["scales"].float()[..., None]).flatten(-2)

    def _bent(self, t: Tensor) -> Tensor:
        return t * (self.compander + (1 - self.compander) * t.square())

    packed = TokenCodec.packed


class Exl3(WidthMethod, Format):
    """Codes of 2 to 8 bits in groups of 32 channels of a token, each turned by a Hadamard transform of its own and with
    an fp16 scale, its largest magnitude.

    bits + .5 an element. Steps lie on both sides of zero and none at it, so that what is 0 reads as half a step before
    it is turned back. Queries stay. No window: the newest token is read as it is stored.
    """

    name: ClassVar[str] = "exl3"
    title: ClassVar[str] = "ExLlamaV3 cache"
    home: ClassVar[Home | None] = Home("ExLlamaV3", "stored")
    deviations: ClassVar[tuple[str, ...]] = (
        "The compander's codes are found by comparing with the bounds between them, where the kernel solves the cubic: "
        "numbers that lie on a bound may take the other code.",
        "What is read is float32; the kernel rounds it to fp16.",
    )

    bits: Width = Field(4, title="Bits", description="Bits of a code, for keys and values alike.")
    key_bits: Width | None = Field(None, title="Key bits", description="Bits of a key's code; empty means Bits.")
    value_bits: Width | None = Field(None, title="Value bits", description="Bits of a value's code; empty means Bits.")
    compander: float = Field(
        0.0,
        ge=0,
        le=1,
        title="Compander",
        description="Steps denser near zero the smaller it is, as -cca; 0 switches it off, and so does 1.",
    )

    @property
    def own_home(self) -> Home | None:
        # a compander takes the path that attends to what it has just computed
        return Home("ExLlamaV3", "raw") if self.compander else self.home

    @property
    def not_rotated(self) -> str | None:
        return "it rotates what it stores itself"

    def why_not(self, shape: ModelShape) -> str | None:
        return tiles(shape.head_dim)

    def fit(self, prompt: Prompt) -> Fitted:
        turn = Hadamard.of(GROUP, prompt.keys.device)
        key, value = (MidriseGroups(turn, self.width(tensor), self.compander) for tensor in ("key", "value"))
        return Fitted(key, value)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        bent = f" -cca {self.compander:g}" if self.compander else ""
        flags = f"-cq {self.width('key')},{self.width('value')}{bent}"
        if self.compander:
            said = "With a compander a prompt's own chunk is read as computed; it is lost under tensor parallelism."
        else:
            said = "Heads that are no power of two up to 512 read a prompt's own chunk as computed."
        said += (
            " A prompt enters 1,024 tokens at a time while other jobs generate (1.6.5); its scripts take 4,096 alone."
        )
        needs = "Needs an NVIDIA GPU, with CUDA 12.4 or newer."  # its README
        return (Elsewhere("ExLlamaV3", flags, said, needs, first_release("ExLlamaV3", "-cca" if bent else "-cq")),)

    @property
    def cache_types(self) -> dict[str, str]:
        one = self.width("key") == self.width("value") and not self.compander
        return {"ExLlamaV3": str(self.width("key"))} if one else {}

    def summary(self) -> str:
        bent = f" · compander {self.compander:g}" if self.compander else ""
        return f"K{self.width('key')} V{self.width('value')} · groups of 32 · rotated{bent}"
