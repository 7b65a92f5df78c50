"""KIVI: keys per channel, values per token, a full-precision residual."""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, transformers_cache
from kvq_core.methods.widths import SINK, ResidualMethod, grouping_why_not


class Kivi(ResidualMethod):
    """Keys are quantized per channel over groups of tokens, values per token over groups of channels.

    Stored: packed codes, an fp16 scale and an fp16 minimum a group, and the residual tokens in fp16. Keys leave the
    residual all at once whenever it holds residual_length tokens, so the number of full-precision keys swings
    between 0 and residual_length - 1; values keep exactly the newest residual_length tokens. With sink_tokens the
    first tokens are never quantized and key groups start after them (the baseline of the InnerQ paper).
    At 2 bits and groups of 32 a quantized element costs 2 + 32/32 = 3 bits.
    """

    name: ClassVar[str] = "kivi"
    title: ClassVar[str] = "KIVI"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2402.02750"
    scales = ("tokens", "channels")
    token_local = (False, True)

    sink_tokens: int = Field(
        0,
        ge=0,
        le=1024,
        title="Sink tokens",
        json_schema_extra=SINK,
        description="First tokens of the prompt, never quantized.",
    )

    def windows(self) -> tuple[Window, Window]:
        key = Window(sink=self.sink_tokens, recent=0, step=self.residual_length)
        return key, Window(sink=self.sink_tokens, recent=self.residual_length, step=1)

    def why_not(self, shape: ModelShape) -> str | None:
        return grouping_why_not(shape.head_dim, self.group_size)

    def fit(self, prompt: Prompt) -> Fitted:
        key = GroupCodec(self.width("key"), self.group_size, "tokens", prompt.metadata)
        value = GroupCodec(self.width("value"), self.group_size, "channels", prompt.metadata)
        return Fitted(key, value)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        near = transformers_cache(self.width("key"), self.group_size, self.residual_length)
        said = "Made after KIVI, but keys are grouped along the channels of a token, as values are. "
        ours = Elsewhere("authors' code", "https://github.com/jy-yuan/KIVI", "Research code for its own model classes.")
        return (*(replace(way, differs=said + (way.differs or "")) for way in near), ours)

    def summary(self) -> str:
        return super().summary() + (f" · {self.sink_tokens} sinks" if self.sink_tokens else "")
