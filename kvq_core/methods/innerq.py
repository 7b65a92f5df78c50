"""InnerQ: groups along the dimension each attention product reduces over, symmetric or asymmetric group by group."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.fold import pair_scales
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, ModelShape, Prompt
from kvq_core.methods.inner import InnerCodec, Mode
from kvq_core.methods.widths import RECENT, SINK, BitsMethod, grouping_why_not


class InnerQ(BitsMethod):
    """Keys are grouped along channels (per token) and values along tokens (per channel), the inner dimension of their
    products, and every group takes the symmetric or the asymmetric grid, whichever is closer.

    Stored: packed codes, an fp16 scale a group, one word a group that is the signs of a symmetric group (a bit an
    element) or the float32 minimum of an asymmetric one, in hybrid modes a mask bit a group, the key norms, and sinks
    and recent tokens in fp16. Asymmetric: Eq. 10 to 12. Symmetric: Eq. 13 with the sign kept beside a magnitude of
    ``bits`` bits, so 7 levels at 2 bits, which is 3 bits an element: 3.5 with the scale, as for asymmetric groups of
    32 with a float32 minimum; hybrid 3.53 (Section 4.1.2). A fair asymmetric lane at the same 3.5 bits is bits 3,
    group 64, zero_point float16; at 2 bits, group 32 that grid costs 3.0. Windows: Section 4.2, keys leave one by one,
    values a group at a time. Keys are divided by n_c = sqrt(max_t |K_tc|) of the prompt, per KV head (Section 4.3).
    """

    name: ClassVar[str] = "innerq"
    title: ClassVar[str] = "InnerQ"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2602.23200"
    scales = ("channels", "tokens")
    deviations: ClassVar[tuple[str, ...]] = (
        "This is the paper's first version; the second, whose abstract claims 1.3 times the speed of other methods and "
        "2.7 times that of fp16, was not read.",
        "Eq. 10 with Eq. 13 taken literally clips all negative values; codes are sign and magnitude, the reading that "
        'the text ("separating the sign bit") and the sizes of Table 1 agree with.',
        "normalize_keys = exact applies n after RoPE, where its maxima were taken: decoding multiplies it back, which "
        "equals scaling the query. Folding untied norms into W_Q and W_K (Algorithm 2, lines 18 to 20) is wrong under "
        "RoPE; folded ties n over each pair that RoPE rotates, which makes folding exact (the lane option fold).",
        "Algorithm 1 evicts a group of keys every step (lines 15 to 17); here the oldest key leaves once more than "
        "recent_tokens are held, and the oldest group of values once recent_tokens + group_size are.",
        "Scores are scaled as the model does it (Eq. 4: 1/sqrt(head_dim)), not by 1/head_dim as the algorithms print.",
    )

    group_size: int = Field(
        32, ge=1, le=1024, title="Group size", description="Channels of a key, tokens of a value, that share a scale."
    )
    mode: Mode = Field(
        "hybrid",
        title="Mode",
        description="Grid of a group: hybrid takes the closer one; hybrid_prefill does so for the prompt only.",
    )
    sink_tokens: int = Field(
        32,
        ge=0,
        le=1024,
        title="Sink tokens",
        json_schema_extra=SINK,
        description="First tokens of the prompt, never quantized.",
    )
    recent_tokens: int = Field(
        96,
        ge=0,
        le=4096,
        title="Recent tokens",
        json_schema_extra=RECENT,
        description="Newest tokens kept in full precision.",
    )
    normalize_keys: Literal["exact", "folded", "off"] = Field(
        "exact",
        title="Key normalization",
        description="Divide key channels by n before quantization; folded ties n over rotated pairs.",
    )
    zero_point: Literal["float32", "float16"] = Field(
        "float32", title="Zero-point", description="Precision of an asymmetric group's minimum; the paper's is float32."
    )

    @property
    def token_local(self) -> tuple[bool, bool]:  # type: ignore[override]  # the mode decides it
        """A key's groups are its own channels; with hybrid_prefill how they are coded hangs on whose token it is."""
        return self.mode != "hybrid_prefill", False

    def windows(self) -> tuple[Window, Window]:
        key = Window(sink=self.sink_tokens, recent=self.recent_tokens, step=1)
        return key, Window(sink=self.sink_tokens, recent=self.recent_tokens, step=self.group_size)

    @property
    def not_folded(self) -> str | None:  # type: ignore[override]  # a knob decides it
        if self.normalize_keys != "folded":
            return None
        return "normalize_keys = folded does this already; take exact or off, or leave fold out"

    @property
    def not_rotated(self) -> str | None:
        if self.normalize_keys != "folded":
            return None
        return "normalize_keys = folded commutes with RoPE and not with a rotation after it; take exact or off"

    def why_not(self, shape: ModelShape) -> str | None:
        if self.normalize_keys == "folded" and shape.head_dim % 2:
            return f"normalize_keys = folded ties pairs of channels, and head_dim = {shape.head_dim} is odd"
        return grouping_why_not(shape.head_dim, self.group_size)

    def fit(self, prompt: Prompt) -> Fitted:
        zero_point = prompt.metadata if self.zero_point == "float16" else torch.float32
        norms = key_norms(prompt.keys, self.normalize_keys, prompt.metadata, prompt.pairs)
        common = (self.mode, prompt.metadata, zero_point)
        shared = {} if norms is None else {"norms": norms}
        key = InnerCodec(self.width("key"), self.group_size, "channels", *common, shared)
        value = InnerCodec(self.width("value"), self.group_size, "tokens", *common)
        levels = " and ".join(f"{(2 << bits) - 1}" for bits in sorted({key.bits_per_code, value.bits_per_code}))
        note = f"symmetric groups have {levels} levels: one sign bit an element beside the code, counted in the bits"
        return Fitted(key, value, () if self.mode == "asymmetric" else (note,))

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        return (0 if self.normalize_keys == "off" else 2 * shape.kv_heads * shape.head_dim), 0

    def summary(self) -> str:
        windows = f"{self.sink_tokens} sinks · window {self.recent_tokens}"
        return f"K{self.width('key')} V{self.width('value')} · group {self.group_size} · {self.mode} · {windows}"


def key_norms(keys: Tensor, how: str, dtype: torch.dtype, pairs: Tensor | None = None) -> Tensor | None:
    """n_c = sqrt(max_t |K_tc|) (Section 4.3) of keys (layers, kv_heads, tokens, head_dim), 1 where a channel is zero.

    (layers, kv_heads, 1, head_dim) in ``dtype``, the numbers that encoding and decoding both use; ``folded`` takes the
    maximum over each pair RoPE rotates, so that K / n commutes with RoPE, see ``pair_scales``.
    """
    if how == "off":
        return None
    if how == "folded":
        return pair_scales(keys, pairs, dtype)
    norms = keys.abs().amax(-2, keepdim=True).sqrt().to(dtype)
    return torch.where(norms > 0, norms, torch.ones_like(norms))
