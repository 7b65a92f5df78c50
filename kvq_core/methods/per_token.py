"""Plain per-token quantization of keys and values."""

from typing import ClassVar

from pydantic import Field

from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, fp8_servers, llama_cpp, transformers_cache
from kvq_core.methods.widths import RECENT, Bits, BitsMethod, grouping_why_not


class PerToken(BitsMethod):
    """Keys and values of a token are quantized in groups of consecutive channels inside a head.

    Stored: packed codes with an fp16 scale and an fp16 minimum a group, and the newest residual_length tokens in
    fp16; a token is encoded alone when it leaves the window. The simplest baseline, and the one that outlier
    channels of the keys hurt most, since they stretch the range of every group they fall into.
    """

    name: ClassVar[str] = "per_token"
    title: ClassVar[str] = "Per token"
    scales = ("channels", "channels")
    token_local = (True, True)

    bits: Bits = Field(4, title="Bits", description="Bits of a code, for keys and values alike.")
    group_size: int = Field(
        32, ge=1, le=1024, title="Group size", description="Channels that share one scale and zero-point."
    )
    residual_length: int = Field(
        32,
        ge=0,
        le=4096,
        title="Residual length",
        json_schema_extra=RECENT,
        description="Newest tokens kept in full precision.",
    )

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=self.residual_length, step=1)
        return window, window

    def why_not(self, shape: ModelShape) -> str | None:
        return grouping_why_not(shape.head_dim, self.group_size)

    def fit(self, prompt: Prompt) -> Fitted:
        key, value = (
            GroupCodec(self.width(tensor), self.group_size, "channels", prompt.metadata) for tensor in ("key", "value")
        )
        return Fitted(key, value)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        key, value = self.width("key"), self.width("value")
        same = transformers_cache(key, self.group_size, self.residual_length) if key == value else ()
        return same + llama_cpp(key, value) + (fp8_servers(key) if key == value else ())

    def summary(self) -> str:
        return f"K{self.width('key')} V{self.width('value')} · group {self.group_size} · window {self.residual_length}"
