"""ik_llama.cpp's cache type beyond llama.cpp's: q6_0 (its ggml-quants.c; llama.cpp for the rotation)."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from kvq_core.codecs.hadamard import largest_block
from kvq_core.codecs.queries import QueryRounding
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, ModelRef, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.ggml import (
    OWN_ORDER,
    Q8_0_QUERIES,
    SignedBlocks,
    key_turn_of,
    order_hash,
    rounded_in,
    tiles,
    turn_of,
)
from kvq_core.methods.formats.tokenwise import OWN_ROTATION, Format, TokenCodec

LEAST_TURN, MOST_TURN = 64, 512  # channels, of heads that are no power of two


def turn_block(head_dim: int) -> int:
    """Channels that are turned together: a head that is a power of two, else the largest of 512 ... 64 that divides
    it, else 0."""
    largest = largest_block(head_dim)
    if largest == head_dim:
        return head_dim
    return 0 if largest < LEAST_TURN else min(largest, MOST_TURN)


@dataclass(frozen=True)
class FittedBlocks(SignedBlocks):
    """q6_0: 26 bytes. The scale that is stored fits the codes best, squares weighing each element, as on a CPU
    (quantize_row_q6_0_ref); CUDA's copy kernel keeps the first scale."""

    bits_per_code: int = 6

    def fitted(self, scales: Tensor, blocks: Tensor, scaled: Tensor, codes: Tensor) -> Tensor:
        whole = codes.float().sub_(self.half)
        weighed = scaled.square().mul_(whole)
        squares = (weighed * whole).sum(-1, keepdim=True)
        return ((weighed * blocks).sum(-1, keepdim=True) / squares).where(squares > 0, scales)

    packed = TokenCodec.packed


class Q6_0(Format):
    """6-bit codes on both sides of zero in blocks of 32 channels of a token, each with an fp16 scale that is fitted to
    the codes.

    6.5 bits an element, between llama.cpp's q5_1 and q8_0. Queries are rounded to 8 bits in blocks of 32 channels.
    Nothing is rotated unless it is asked for. No window: the newest token is read as it is stored.
    """

    name: ClassVar[str] = "q6_0"
    title: ClassVar[str] = "ik_llama.cpp q6_0"
    home: ClassVar[Home | None] = Home("ik_llama.cpp", "stored")
    queries_to: ClassVar[str | None] = Q8_0_QUERIES
    deviations: ClassVar[tuple[str, ...]] = (
        OWN_ORDER,
        "Scales are fitted as on a CPU; CUDA keeps the largest magnitude over 32, which is 2 % more error.",
        "Sums are float32 throughout; the engine adds products of 8-bit integers and rounds some sums to fp16.",
    )

    rotate: bool = Field(
        False,
        title="Rotate",
        description="Turn keys and values by Hadamard transforms (-khad -vhad) of the head where that is a power of "
        "two, else of 512 to 64 channels.",
    )

    @property
    def not_rotated(self) -> str | None:
        return OWN_ROTATION if self.rotate else None

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        return rounded_in(self._block, model)

    def data_hash(self, model: ModelRef) -> str | None:
        return order_hash(model)

    def why_not(self, shape: ModelShape) -> str | None:
        return tiles(shape.head_dim)

    def fit(self, prompt: Prompt) -> Fitted:
        dim, device = prompt.keys.shape[-1], prompt.keys.device
        block = self._block(dim)
        key, value = FittedBlocks(key_turn_of(block, device, prompt.model)), FittedBlocks(turn_of(block, device))
        said = f"no Hadamard transform of 64 channels or more tiles head_dim = {dim}, so nothing is rotated"
        return Fitted(key, value, (said,) if self.rotate and not block else ())

    def _block(self, head_dim: int) -> int:
        return turn_block(head_dim) if self.rotate else 0

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        turned = " -khad -vhad" if self.rotate else ""
        how = f"ik_llama.cpp/build/bin/llama-server -m M.gguf -fa on -ctk q6_0 -ctv q6_0{turned}"
        needs = "A CPU with AVX2 or NEON, or an NVIDIA GPU since Turing; no others are fully supported."  # its README
        since = first_release("ik_llama.cpp", "-vhad" if self.rotate else "q6_0")
        return (Elsewhere("ik_llama.cpp", how, needs=needs, since=since),)

    @property
    def cache_types(self) -> dict[str, str]:
        return {} if self.rotate else {"ik_llama.cpp": "q6_0"}

    def summary(self) -> str:
        return f"blocks of 32{' · rotated' if self.rotate else ''} · Q 8 bits"
