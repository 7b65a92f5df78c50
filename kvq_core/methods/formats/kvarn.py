"""KVarN: variance-normalized tiles, and the windows around them, as vLLM's branch ships them."""

from typing import ClassVar, Literal

from pydantic import Field

from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.window import Window
from kvq_core.engines import UNRELEASED
from kvq_core.methods.base import Fitted, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.variance_tiles import LOWEST, TileCodec
from kvq_core.methods.widths import SINK, Bits, BitsMethod

KINDS: tuple[Literal["key", "value"], ...] = ("key", "value")
DEPLOYED = (64, 128, 256)  # sizes of heads in vLLM's pull request 46812


class Kvarn(BitsMethod):
    """Tiles of 128 tokens of a KV head behind a Hadamard transform; rows and columns of a tile are divided by scales
    that bring all to nearly one standard deviation, then each row takes even steps over its range: a channel's for
    keys, a token's for values.

    Stored: codes, in fp16 a step and a smallest element a row and a scale a column: with head_dim 128 and tiles of 128
    tokens the bits of a code + 0.375. The first sink_tokens and the newest, up to a tile is full, stay in fp16.
    Scales of rows and columns are not let below exp(floor) = 0.74: tensors whose spread is smaller, as values' often
    is, are hardly normalized. Without a floor the result does not depend on the spread.
    """

    name: ClassVar[str] = "kvarn"
    title: ClassVar[str] = "KVarN"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2606.03458"
    home: ClassVar[Home | None] = Home("vLLM", "raw")
    deviations: ClassVar[tuple[str, ...]] = (
        "Standard deviations are summed in float64, which decides between states that are equally even in float32.",
        "The engine rounds what a token takes up to a power of two bytes where head_dim is 256 or more; here the bytes "
        "are those that are used.",
        "floor = null stops at exp(-10), so that scales fit fp16.",
    )

    bits: Bits | None = Field(  # type: ignore[assignment]
        None, title="Bits", description="Bits of a code, for keys and values alike; empty: as shipped, K4 V2."
    )
    tile: Literal[64, 128] = Field(128, title="Tile", description="Tokens that are normalized together.")
    floor: float | None = Field(
        -0.3,
        ge=LOWEST,
        le=0,
        title="Floor",
        description="Smallest logarithm of a scale of rows and columns; -0.3 as shipped, empty for none.",
    )
    iterations: int = Field(8, ge=0, le=64, title="Iterations", description="Rounds of normalization; 8 as shipped.")
    sink_tokens: int = Field(
        128,
        ge=0,
        le=1024,
        title="Sink tokens",
        json_schema_extra=SINK,
        description="First tokens of the prompt, never quantized.",
    )

    def width(self, tensor: Literal["key", "value"]) -> int:
        shipped = {"key": 4, "value": 2}[tensor]
        own: int | None = getattr(self, f"{tensor}_bits")
        return own or self.bits or shipped

    def windows(self) -> tuple[Window, Window]:
        window = Window(sink=self.sink_tokens, recent=0, step=self.tile)
        return window, window

    @property
    def not_rotated(self) -> str | None:
        return "it rotates what it stores itself"

    def why_not(self, shape: ModelShape) -> str | None:
        if shape.head_dim & (shape.head_dim - 1):
            return f"head_dim = {shape.head_dim} is no power of two, and heads are turned whole"
        return None

    def fit(self, prompt: Prompt) -> Fitted:
        dim = prompt.keys.shape[-1]
        turns = (Hadamard.of(x.shape[-1], x.device) for x in (prompt.keys, prompt.values))
        key, value = (
            TileCodec(self.width(tensor), self.tile, tensor == "key", self.iterations, self.floor, turn)
            for tensor, turn in zip(KINDS, turns, strict=True)
        )
        said = (
            f"no engine deploys this: vLLM's pull request takes heads of {', '.join(map(str, DEPLOYED))}, not of {dim}"
        )
        return Fitted(key, value, () if dim in DEPLOYED else (said,))

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        key, value = self.width("key"), self.width("value")
        shipped = key == 4 and value in (2, 4) and self.floor == -0.3 and self.iterations == 8
        if not shipped or self.sink_tokens != 128:
            return ()
        how = f"vllm serve M --kv-cache-dtype kvarn_k{key}v{value}_g{self.tile} --block-size {self.tile}"
        said = "Pull request 46812, open; not in 0.33. Heads of 64, 128 or 256, in fp16 or bf16."
        return (Elsewhere("vLLM", how, said, since=UNRELEASED),)

    def summary(self) -> str:
        floor = "no floor" if self.floor is None else f"floor {self.floor:g}"
        sinks = f" · {self.sink_tokens} sinks" if self.sink_tokens else ""
        return f"K{self.width('key')} V{self.width('value')} · tiles of {self.tile} · {floor}{sinks}"
