"""KVQuant: non-uniform levels, keys per channel before RoPE, values per token, outliers kept apart."""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from kvq_core.codecs.codec import layer_slices
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt, Space
from kvq_core.methods.baselines.heads import joined
from kvq_core.methods.baselines.level_codecs import ChannelLevels, TokenLevels, ranges
from kvq_core.methods.baselines.levels import fitted_levels
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.widths import Bits


class KvQuant(Method):
    """Numbers are brought to -1 .. 1 by the range they have without outliers, and stored as the nearest of 2^bits
    levels that k-means found for the layer. Keys, before RoPE, have one range a channel, fixed once; values one a
    token, over all its heads.

    Stored: packed codes; a value's fp16 middle and half range a token; the outliers, fp16 values with 16-bit
    positions (of keys as many as lie beyond the channel's range, with a 16-bit count a token); once a layer, the
    levels and the keys' ranges. An element costs about bits + 32 outlier_fraction, values 32/channels more.

    Calibrated on this prompt alone: the paper takes ranges, levels and their weights from other texts. A short prompt
    tells little of the range of later keys, and those beyond it are stored as outliers, each at 32 bits.
    """

    name: ClassVar[str] = "kvquant"
    title: ClassVar[str] = "KVQuant (prompt-only calibration)"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2401.18079"
    deviations: ClassVar[tuple[str, ...]] = (
        "Calibrated on the prompt: key ranges, and levels of keys and of values. The paper calibrates offline and "
        "weighs k-means by squared gradients (Fisher information); here every element weighs the same.",
        "ceil(outlier_fraction/2 x size) elements at either end of the prompt's channel, or of a value's token, are "
        "outliers. The authors' interpolated quantiles take more of few: 1.56% for 1% of 256.",
        "Ranges are rounded to fp16 before coding, outward; the authors' key offsets are not rounded.",
        "No Q-Norm, no first tokens in fp16 and no cap on outliers: off by default in the authors' code, too.",
        "With outlier_fraction = 0 later keys beyond the prompt's range are clipped to it.",
    )

    bits: Bits = Field(2, title="Bits", description="Bits of a code: 2^bits levels a layer.")
    outlier_fraction: float = Field(
        0.01,
        ge=0,
        le=0.5,
        title="Outlier fraction",
        description="Share of a channel's keys and of a token's values kept exactly, half at either end.",
    )

    @property
    def key_space(self) -> Space:
        return "pre"

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=1)
        return window, window

    def fit(self, prompt: Prompt) -> Fitted:
        _, heads, tokens, dim = prompt.keys.shape
        fraction, count = self.outlier_fraction, 1 << self.bits
        parts, value_levels, beyond = [], [], 0.0
        for layers in layer_slices(prompt.keys):
            keys, values = prompt.keys[layers].mT, joined(prompt.values[layers])
            middle, half, _ = ranges(keys, fraction, prompt.metadata)
            unit = ((keys - middle.float()) / half.float()).flatten(1)
            inside = unit.abs() <= 1
            beyond += (~inside).float().mean(1).sum().item() / len(prompt.keys)
            parts.append((fitted_levels(unit, inside, count).half(), middle[..., 0], half[..., 0]))
            middle, half, at = ranges(values, fraction, prompt.metadata)
            inside = torch.ones_like(values, dtype=torch.bool).scatter_(-1, at, False).flatten(1)
            unit = ((values - middle.float()) / half.float()).flatten(1)
            value_levels.append(fitted_levels(unit, inside, count).half())
        shared = dict(zip(("levels", "middles", "halves"), map(torch.cat, zip(*parts, strict=True)), strict=True))
        key = ChannelLevels(self.bits, heads, dim, shared, sparse=fraction > 0)
        shared = {"levels": torch.cat(value_levels)}
        value = TokenLevels(self.bits, heads, dim, shared, fraction, prompt.metadata)
        notes = [f"prompt-only calibration: ranges and levels from these {tokens} tokens, all weighed alike"]
        if fraction:
            notes.append(f"{beyond:.2%} of the prompt's key elements are outliers")
        return Fitted(key, value, tuple(notes))

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        levels = 2 << self.bits
        return levels + 4 * shape.kv_heads * shape.head_dim, levels

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "Research code for its own model classes; calibrates on other texts, with gradients."
        return (Elsewhere("authors' code", "https://github.com/SqueezeAILab/KVQuant", said),)

    def summary(self) -> str:
        outliers = f"{self.outlier_fraction:.3g} outliers" if self.outlier_fraction else "no outliers"
        return f"K{self.bits} V{self.bits} levels · {outliers} · calibrated on the prompt"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.bits}"
