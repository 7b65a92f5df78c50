"""KVQuant: non-uniform levels, keys per channel before RoPE, values per token, outliers kept apart."""

from typing import ClassVar, Literal

from pydantic import Field

from kvq_core.codebooks.files import NAME
from kvq_core.codebooks.lookup import CodebookNeed, find_codebook, require
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelRef, ModelShape, Prompt, Space
from kvq_core.methods.baselines.level_codecs import ChannelLevels, TokenLevels
from kvq_core.methods.baselines.level_tables import Tables, key_tables, levels_name, value_tables
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.widths import Bits

CALIBRATED_BITS = 2  # at which a calibration tells its errors; it has levels of all widths


class KvQuant(Method):
    """Numbers are brought to -1 .. 1 by the range they have without outliers, and stored as the nearest of 2^bits
    levels that k-means found for the layer. Keys, before RoPE, have one range a channel, fixed once; values one a
    token, over all its heads.

    Stored: packed codes; a value's fp16 middle and half range a token; the outliers, fp16 values with 16-bit
    positions (of keys as many as lie beyond the channel's range, with a 16-bit count a token); once a layer, the
    levels and the keys' ranges. An element costs about bits + 32 outlier_fraction, values 32/channels more.

    Ranges of keys, and levels, are calibrated once per model on other texts (calibration), as in the paper, each
    element weighed by the squared gradient of the text's loss; or on this prompt alone, all weighed alike. A short
    prompt tells little of the range of later keys, and those beyond it are stored as outliers, each at 32 bits.
    """

    name: ClassVar[str] = "kvquant"
    title: ClassVar[str] = "KVQuant (prompt-only calibration)"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2401.18079"
    deviations: ClassVar[tuple[str, ...]] = (
        "Without calibration key ranges, and levels of keys and of values, are fitted on the prompt, where every "
        "element weighs the same. The paper calibrates on other texts and weighs k-means by squared gradients (Fisher "
        "information), as calibration does, on fewer tokens than the authors' 16 texts of 2,048.",
        "ceil(outlier_fraction/2 x size) elements at either end of the prompt's channel, or of a value's token, are "
        "outliers. The authors' interpolated quantiles take more of few: 1.56% for 1% of 256.",
        "Ranges are rounded to fp16 before coding, outward; the authors' key offsets are not rounded.",
        "No Q-Norm, no first tokens in fp16 and no cap on outliers: off by default in the authors' code, too.",
        "With outlier_fraction = 0 later keys beyond the prompt's range are clipped to it.",
    )

    token_local = (True, True)

    bits: Bits = Field(2, title="Bits", description="Bits of a code: 2^bits levels a layer.")
    outlier_fraction: float = Field(
        0.01,
        ge=0,
        le=0.5,
        title="Outlier fraction",
        description="Share of a channel's keys and of a token's values kept exactly, half at either end.",
    )
    calibration: str | None = Field(
        None,
        pattern=NAME,
        title="Calibration",
        description="Name of ranges and levels kept for the model, such as default; empty: fitted on this prompt.",
    )

    @property
    def key_space(self) -> Space:
        return "pre"

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=1)
        return window, window

    def fit(self, prompt: Prompt) -> Fitted:
        if self.calibration is not None:
            return self._calibrated(prompt, self.calibration)
        fraction, own = self.outlier_fraction, (self.bits,)
        keys, beyond = key_tables(prompt.keys, fraction, own, prompt.metadata)
        values = value_tables(prompt.values, fraction, own, prompt.metadata)
        tokens = prompt.keys.shape[2]
        notes = [f"prompt-only calibration: ranges and levels from these {tokens} tokens, all weighed alike"]
        if fraction:
            notes.append(f"{beyond:.2%} of the prompt's key elements are outliers")
        return Fitted(*self._codecs(prompt, (keys, values), kept=False), tuple(notes))

    def _codecs(self, prompt: Prompt, tables: tuple[Tables, Tables], kept: bool) -> tuple[ChannelLevels, TokenLevels]:
        """Of keys and of values, with tables that belong to the prompt, or are ``kept`` with the model."""
        _, heads, _, dim = prompt.keys.shape
        keys, values = ({**own, "levels": own[levels_name(self.bits)]} for own in tables)
        of_keys = {name: keys[name] for name in ("levels", "middles", "halves")}
        of_values = {"levels": values["levels"]}
        size, fraction = (self.bits, heads, dim), self.outlier_fraction
        key, value = (({}, own) if kept else (own, {}) for own in (of_keys, of_values))
        return (
            ChannelLevels(*size, *key, sparse=fraction > 0),
            TokenLevels(*size, *value, fraction, prompt.metadata),
        )

    def _calibrated(self, prompt: Prompt, name: str) -> Fitted:
        """With the model's kept tables. Raises MethodError naming the command that makes them."""
        heads, dim = prompt.keys.shape[1], prompt.keys.shape[-1]
        layers, model = prompt.layers or tuple(range(len(prompt.keys))), prompt.model
        id, weights = (model.id, model.weights_hash) if model else (None, None)
        book = require(self._wanted(name), id, weights, layers, heads, dim)
        device, tables = prompt.keys.device, book.tensors()
        keys, values = (
            {own.removeprefix(kind): tables[own][list(layers)].to(device) for own in tables if own.startswith(kind)}
            for kind in ("key_", "value_")
        )
        other = "" if book.info.weights_hash == weights else ", through other weights"
        note = (
            f"calibrated on {book.info.train_tokens} tokens of {book.info.source}{other}, weighed by squared "
            f"gradients: {book.info.file_name}"
        )
        return Fitted(*self._codecs(prompt, (keys, values), kept=True), (note,))

    joint = True  # outliers of all heads are listed together

    @property
    def from_data(self) -> str | None:
        return "outliers of keys beyond the ranges" if self.outlier_fraction else None

    @property
    def learned(self) -> str | None:
        return None if self.calibration is None else "ranges and levels"

    def sized(self, prompt: Prompt) -> Fitted:
        """Ranges and levels of the prompt where those of a model are read."""
        fraction, own = self.outlier_fraction, (self.bits,)
        keys, _ = key_tables(prompt.keys, fraction, own, prompt.metadata)
        values = value_tables(prompt.values, fraction, own, prompt.metadata)
        return Fitted(*self._codecs(prompt, (keys, values), kept=self.calibration is not None))

    def _wanted(self, name: str) -> CodebookNeed:
        return CodebookNeed("ranges", name, CALIBRATED_BITS, outlier_fraction=self.outlier_fraction)

    def data_hash(self, model: ModelRef) -> str | None:
        found = self.calibration and find_codebook(self._wanted(self.calibration), model.id, model.weights_hash)
        return found.info.content if found else None

    def lacks(self, model: ModelRef) -> tuple[CodebookNeed, ...]:
        wanted = () if self.calibration is None else (self._wanted(self.calibration),)
        return tuple(need for need in wanted if find_codebook(need, model.id, model.weights_hash) is None)

    @property
    def not_centred(self) -> str | None:
        return None if self.calibration is None else "its ranges were calibrated on keys as they are"

    @property
    def not_folded(self) -> str | None:  # type: ignore[override]  # a knob decides it
        return None if self.calibration is None else "its ranges were calibrated on keys as they are"

    @property
    def not_rotated(self) -> str | None:
        return None if self.calibration is None else "its levels were calibrated on values as they are"

    @property
    def lane_title(self) -> str:
        return self.title if self.calibration is None else "KVQuant"

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        if self.calibration is not None:  # they belong to the model
            return 0, 0
        levels = 2 << self.bits
        return levels + 4 * shape.kv_heads * shape.head_dim, levels

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "Research code for its own model classes; calibrates on other texts, with gradients."
        return (Elsewhere("authors' code", "https://github.com/SqueezeAILab/KVQuant", said),)

    def summary(self) -> str:
        outliers = f"{self.outlier_fraction:.3g} outliers" if self.outlier_fraction else "no outliers"
        return f"K{self.bits} V{self.bits} levels · {outliers} · calibrated" + (
            " on the prompt" if self.calibration is None else ""
        )

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self.bits}"
