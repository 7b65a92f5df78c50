"""Plain per-channel quantization of keys and values."""

from typing import ClassVar

from pydantic import Field

from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Prompt
from kvq_core.methods.widths import Bits, ResidualMethod


class PerChannel(ResidualMethod):
    """Keys and values are quantized per channel, in groups of consecutive tokens.

    Stored: packed codes with an fp16 scale and an fp16 minimum a group, and the residual tokens in fp16. A group
    needs all its tokens, so tokens leave the residual together whenever it holds residual_length of them.
    """

    name: ClassVar[str] = "per_channel"
    title: ClassVar[str] = "Per channel"
    scales = ("tokens", "tokens")

    bits: Bits = Field(4, title="Bits", description="Bits of a code, for keys and values alike.")

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=self.residual_length)
        return window, window

    def fit(self, prompt: Prompt) -> Fitted:
        key, value = (
            GroupCodec(self.width(tensor), self.group_size, "tokens", prompt.metadata) for tensor in ("key", "value")
        )
        return Fitted(key, value)
