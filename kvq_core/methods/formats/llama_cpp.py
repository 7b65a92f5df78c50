"""llama.cpp's quantized cache types (ggml-common.h, ggml-quants.c; llama-kv-cache.cpp for the rotation)."""

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from kvq_core.codecs.hadamard import largest_block
from kvq_core.codecs.queries import QueryRounding
from kvq_core.engines import first_release
from kvq_core.methods.base import Fitted, Method, ModelRef, ModelShape, Prompt
from kvq_core.methods.deployments import UNROTATED, Elsewhere, Home
from kvq_core.methods.formats.ggml import (
    OWN_ORDER,
    Q8_0_QUERIES,
    LevelBlocks,
    RangeBlocks,
    SignedBlocks,
    WholeBlocks,
    key_turn_of,
    order_hash,
    rounded_in,
    tiles,
    turn_of,
)
from kvq_core.methods.formats.tokenwise import OWN_ROTATION, Format, TokenCodec

LEAST_TURN = 64  # channels; heads that are no multiple of it are not turned


def key_turn(head_dim: int) -> int:
    """Channels that keys, and the queries that meet them, are turned in: the largest 64 * 2^k that divides a head."""
    return 0 if head_dim % LEAST_TURN else largest_block(head_dim)


def value_turn(head_dim: int) -> int:
    """Channels that values are turned in."""
    return 0 if head_dim % LEAST_TURN else LEAST_TURN


class LlamaCppType(Format):
    """What the six have in common."""

    home: ClassVar[Home | None] = Home("llama.cpp", "stored")
    queries_to: ClassVar[str | None] = Q8_0_QUERIES
    deviations: ClassVar[tuple[str, ...]] = (
        OWN_ORDER,
        "Queries are rounded as on a CPU and in CUDA's kernel for one row; CUDA reads prompts by queries in fp16.",
        "Sums are float32 throughout; the engine adds products of 8-bit integers and rounds some sums to fp16.",
        # llama-kv-cache.cpp:327-332
        "DeepSeek 3.2 and 4, GLM-DSA and Dots3 turn their keys whatever is asked, fp16 ones too, where the indexer's "
        "head is as large as theirs.",
    )

    rotate: bool = Field(
        True,
        title="Rotate",
        description="Turn keys by Hadamard transforms of 64, 128, ... channels, values by those of 64, as llama.cpp "
        "does since April 2026; a head that is no multiple of 64 is not turned.",
    )
    quantize_query: bool = Field(
        True, title="Round queries", description="To 8 bits in blocks of 32 channels, as attention over such keys does."
    )

    @property
    def not_rotated(self) -> str | None:
        return OWN_ROTATION if self.rotate else None

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        return rounded_in(self._key_block, model) if self.quantize_query else None

    def for_tensor(self, tensor: Literal["keys", "values"]) -> Method:
        return self.model_copy(update={"quantize_query": True})

    def data_hash(self, model: ModelRef) -> str | None:
        return order_hash(model)

    def why_not(self, shape: ModelShape) -> str | None:
        return tiles(shape.head_dim)

    @abstractmethod
    def codec(self) -> TokenCodec:
        """Of keys and of values, before anything is turned."""

    def fit(self, prompt: Prompt) -> Fitted:
        dim, device, plain = prompt.keys.shape[-1], prompt.keys.device, self.codec()
        key = replace(plain, turn=key_turn_of(self._key_block(dim), device, prompt.model))
        value = replace(plain, turn=turn_of(value_turn(dim) if self.rotate else 0, device))
        said = f"head_dim = {dim} is no multiple of {LEAST_TURN}, so nothing is rotated, as in llama.cpp"
        return Fitted(key, value, (said,) if self.rotate and dim % LEAST_TURN else ())

    def _key_block(self, head_dim: int) -> int:
        return key_turn(head_dim) if self.rotate else 0

    def _served(self, *more: str) -> tuple[Elsewhere, ...]:
        said = "Builds before April 2026 (PR 21038) rotate nothing." if self.rotate else ""
        query = "A prompt's queries stay fp16 with CUDA." if self.quantize_query else "Queries are rounded to 8 bits."
        flags = f"{'' if self.rotate else UNROTATED}llama-server -m M.gguf -fa on -ctk {self.name} -ctv {self.name}"
        differs = " ".join(filter(None, (said, query, *more)))
        return (Elsewhere("llama.cpp", flags, differs, since=first_release("llama.cpp", self.name)),)

    @property
    def cache_types(self) -> dict[str, str]:
        return {"llama.cpp" if self.rotate else "ik_llama.cpp": self.name}

    def summary(self) -> str:
        turned = " · rotated" if self.rotate else ""
        return f"blocks of 32{turned}{' · Q 8 bits' if self.quantize_query else ''}"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return self.name if self.rotate else f"{self.name} unrotated"


NO_KERNEL = "CUDA reads it through copies in fp16 unless it is built with GGML_CUDA_FA_QUANTS=all."


class Q8_0(LlamaCppType):
    """8-bit integers in blocks of 32 channels of a token, each with an fp16 scale, its largest magnitude over 127.

    8.5 bits an element. Keys and values are turned by Hadamard transforms first, which spreads outlier channels, and
    queries are rounded like keys: they add as much error to scores. No window: the newest token is read as stored.
    """

    name: ClassVar[str] = "q8_0"
    title: ClassVar[str] = "llama.cpp q8_0"

    def codec(self) -> TokenCodec:
        return WholeBlocks()

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served()


class Q5_1(LlamaCppType):
    """5-bit codes in blocks of 32 channels of a token, each with an fp16 step and an fp16 smallest element.

    6 bits an element. Keys and values are turned by Hadamard transforms first, queries rounded to 8 bits. No window:
    the newest token is read as it is stored.
    """

    name: ClassVar[str] = "q5_1"
    title: ClassVar[str] = "llama.cpp q5_1"

    def codec(self) -> TokenCodec:
        return RangeBlocks(bits_per_code=5)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served(NO_KERNEL)


class Q5_0(LlamaCppType):
    """5-bit codes on both sides of zero in blocks of 32 channels of a token, each with an fp16 scale.

    5.5 bits an element. The element of the largest magnitude is met exactly; one as large with the other sign is cut by
    a sixteenth. Keys and values are turned by Hadamard transforms first, queries rounded to 8 bits. No window.
    """

    name: ClassVar[str] = "q5_0"
    title: ClassVar[str] = "llama.cpp q5_0"

    def codec(self) -> TokenCodec:
        return SignedBlocks(bits_per_code=5)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served(NO_KERNEL)


class Q4_1(LlamaCppType):
    """4-bit codes in blocks of 32 channels of a token, each with an fp16 step and an fp16 smallest element.

    5 bits an element. Keys and values are turned by Hadamard transforms first, queries rounded to 8 bits. No window:
    the newest token is read as it is stored.
    """

    name: ClassVar[str] = "q4_1"
    title: ClassVar[str] = "llama.cpp q4_1"

    def codec(self) -> TokenCodec:
        return RangeBlocks(bits_per_code=4)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served(NO_KERNEL)


class Q4_0(LlamaCppType):
    """4-bit codes on both sides of zero in blocks of 32 channels of a token, each with an fp16 scale.

    4.5 bits an element. The element of the largest magnitude is met exactly; one as large with the other sign is cut by
    an eighth. Keys and values are turned by Hadamard transforms first, without which outlier channels of keys take all
    the range; queries are rounded to 8 bits. No window.
    """

    name: ClassVar[str] = "q4_0"
    title: ClassVar[str] = "llama.cpp q4_0"

    def codec(self) -> TokenCodec:
        return SignedBlocks(bits_per_code=4)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served()


class Iq4Nl(LlamaCppType):
    """Indices of sixteen uneven levels, denser near zero, in blocks of 32 channels of a token with an fp16 scale.

    4.5 bits an element. No level is zero: what is 0 reads as a 127th of the block's largest element. Keys and values
    are turned by Hadamard transforms first, queries rounded to 8 bits. No window.
    """

    name: ClassVar[str] = "iq4_nl"
    title: ClassVar[str] = "llama.cpp iq4_nl"

    def codec(self) -> TokenCodec:
        return LevelBlocks()

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        return self._served("CUDA's attention does not read it: attention leaves the GPU.")
