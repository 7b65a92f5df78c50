"""QAQ: every token gets the bits its own range and attention call for, outliers kept exactly."""

from dataclasses import replace
from math import ceil
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt
from kvq_core.methods.qaq.pools import RaggedCodec
from kvq_core.methods.qaq.tolerance import BitRule, attention_rows, extents, query_norms


class Qaq(Method):
    """Each unit (a token's key or value in one head, or in all heads of a layer) is stored with its own bit width, as
    many bits as keep the errors it causes below a tolerance, and its largest and smallest elements are kept apart.

    Stored a unit: packed codes at its width, fp16 minimum and range, 4 bits that name the width, and the outliers as
    fp16 values with 16-bit positions. Codes are midpoints of 2^B equal cells of the range without outliers. Values:
    sigma_t <= sigma_max / (sqrt(T) S_t), S_t the largest weight among the last attention_window queries. Keys:
    sigma^2 <= log(T^3/(T-1) sigma_max^2 + 1) / ||sQ||^2, ||Q||^2 the upper-10% quantile of the prompt's queries, s what
    the model multiplies scores with, 1/sqrt(head_dim) in most. B = ceil(log2(range / (2 sqrt(3) sigma))), all of
    Section 4; the newest attention_window - 1 tokens get bits_max. After every step all widths are evaluated again and
    changed units re-encoded from the host copy of the original values, which is listed apart from the cache.
    """

    name: ClassVar[str] = "qaq"
    title: ClassVar[str] = "QAQ"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2403.04643"
    deviations: ClassVar[tuple[str, ...]] = (
        "The printed variance of a softmax weight has E^2/Var for Var/E^2; the paper's final inequality is right.",
        "The paper neglects the 1/sqrt(head_dim) of the scores; here Q is multiplied by the model's factor.",
        "The authors' code rounds around the mean of the unit and clips skewed data; the paper's midpoints are used.",
        "The host copy holds 8-bit codes, not fp16: midpoint cells nest, so they give every narrower code of the "
        "original exactly, at half the bytes.",
        "Query heads that share a KV head: the largest weight and the largest ||Q||^2 of the group count.",
        "ceil(outlier_fraction / 2 x size) outliers at either end of a unit, as in the authors' code: 2 of 64 elements "
        "at 1%. Their positions are counted, which the paper's ratios leave out.",
        "target_bits is an addition: the tolerance is solved on the prompt for that many bits a code on average.",
    )

    target_bits: float = Field(
        3,
        ge=0,
        le=8,
        title="Target bits",
        description="Mean bits of a code on the prompt, for keys and values apart; the tolerances follow from it.",
    )
    key_tolerance: float | None = Field(
        None,
        ge=1e-12,
        le=1e6,
        title="Key tolerance",
        description="Largest standard deviation of an attention weight, σ_max of S; overrides Target bits for keys.",
    )
    value_tolerance: float | None = Field(
        None,
        ge=1e-12,
        le=1e6,
        title="Value tolerance",
        description="Largest standard deviation of an output element, σ_max of X; overrides Target bits for values.",
    )
    bits_min: int = Field(
        1, ge=0, le=8, title="Fewest bits", description="No unit gets fewer bits; 0 stores its middle."
    )
    bits_max: int = Field(8, ge=1, le=8, title="Most bits", description="No unit gets more.")
    outlier_fraction: float = Field(
        0.01, ge=0, le=0.5, title="Outlier fraction", description="Elements of a unit kept exactly, half at either end."
    )
    attention_window: int = Field(
        5, ge=1, le=64, title="Attention window", description="Last queries whose largest attention weight counts."
    )
    unit: Literal["head", "layer"] = Field(
        "head", title="Unit", description="What shares a width: a token in one head, or in all heads of a layer."
    )
    update: Literal["every_step", "once"] = Field(
        "every_step",
        title="Update",
        description="Evaluate widths again after every step, or once on the prompt with generated tokens in fp16.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.bits_min > self.bits_max:
            raise ValueError(f"bits_min = {self.bits_min} is above bits_max = {self.bits_max}; swap them.")
        solved = self.key_tolerance is None or self.value_tolerance is None
        if solved and not self.bits_min <= self.target_bits <= self.bits_max:
            allowed = f"bits_min = {self.bits_min} to bits_max = {self.bits_max}"
            raise ValueError(f"target_bits = {self.target_bits:g} is outside {allowed}.")
        return self

    @property
    def from_data(self) -> str | None:
        return "bits of every unit"

    @property
    def needs_queries(self) -> bool:
        return True

    def windows(self) -> tuple[Window, Window]:
        window = Window(step=1, rewritten=True) if self.update == "every_step" else Window(prompt_only=True)
        return window, window

    def why_not(self, shape: ModelShape) -> str | None:
        size = shape.head_dim * (shape.kv_heads if self.unit == "layer" else 1)
        if size > 1 << 16:
            return f"a unit of {size} elements is too large for 16-bit positions; use unit = head"
        return None

    @property
    def not_chunked(self) -> str | None:
        if self.update == "every_step":
            return None
        return "update = once decides widths when the whole prompt has been read; take update = every_step"

    @property
    def spans_layers(self) -> bool:
        return self.key_tolerance is None or self.value_tolerance is None

    def across_layers(self, prompt: Prompt) -> Self:
        key, value = self._rules(prompt, self._rows(prompt))
        return self.model_copy(update={"key_tolerance": key.tolerance, "value_tolerance": value.tolerance})

    def fit(self, prompt: Prompt) -> Fitted:
        layers, heads, tokens, _ = prompt.keys.shape
        rows = self._rows(prompt)
        rules = self._rules(prompt, rows)
        outliers, size = self._outliers(prompt.keys)
        notes = [f"{2 * outliers} of {size} elements of a unit are outliers ({2 * outliers / size:.1%})"]
        for rule, kind, given in zip(rules, ("key", "value"), (self.key_tolerance, self.value_tolerance), strict=True):
            if given is None:
                solved = f"solved for {self.target_bits:g} bits a code on the prompt"
                notes.append(f"{kind} tolerance {rule.tolerance:.3g}, {solved}")
        codecs = [
            RaggedCodec(
                layers,
                heads,
                x.shape[-1],
                self.unit,
                self._outliers(x)[0],
                prompt.metadata,
                rule,
                tokens,
                seen,
                self.update == "every_step",
            )
            for x, rule, seen in zip((prompt.keys, prompt.values), rules, ((), rows), strict=True)
        ]
        return Fitted(codecs[0], codecs[1], tuple(notes))

    def _outliers(self, x: Tensor) -> tuple[int, int]:
        """Outliers at either end of a unit of keys or of values, and the unit's elements."""
        size = x.shape[-1] * (x.shape[1] if self.unit == "layer" else 1)
        return min(ceil(self.outlier_fraction / 2 * size), (size - 1) // 2), size

    def _rows(self, prompt: Prompt) -> tuple[Tensor, ...]:
        assert prompt.queries is not None
        keys = prompt.keys if prompt.rotated is None else prompt.rotated  # centred keys have other scores
        return attention_rows(prompt.queries, keys, self.attention_window, self.unit, prompt.scaling)

    def _rules(self, prompt: Prompt, rows: tuple[Tensor, ...]) -> tuple[BitRule, BitRule]:
        """Of keys and of values; tolerances that are not given are solved on the prompt."""
        assert prompt.queries is not None
        heads = prompt.keys.shape[1]
        bounds = self.bits_min, self.bits_max, self.attention_window, heads, self.unit
        norms = query_norms(prompt.queries, heads, self.unit, prompt.scaling)

        def solved(rule: BitRule, x: Tensor, given: float | None, seen: tuple[Tensor, ...]) -> BitRule:
            if given is None:
                ranges = extents(x, self.unit, self._outliers(x)[0], prompt.metadata)
                given = rule.solve(ranges, seen, self.target_bits)
            return replace(rule, tolerance=given)

        key = solved(BitRule(*bounds, norms), prompt.keys, self.key_tolerance, ())
        return key, solved(BitRule(*bounds, None), prompt.values, self.value_tolerance, rows)

    def usage_bytes(self, shape: ModelShape, tokens: int) -> int:
        return super().usage_bytes(shape, tokens) + shape.layers * shape.kv_heads * 4 * tokens

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        given = self.key_tolerance is not None or self.value_tolerance is not None
        return self.name if given else f"{self.name} {self.target_bits:g}"

    def summary(self) -> str:
        def of(tolerance: float | None) -> str:
            return f"~{self.target_bits:g}" if tolerance is None else f"σ {tolerance:g}"

        widths = f"K{of(self.key_tolerance)} V{of(self.value_tolerance)} · {self.bits_min} to {self.bits_max} bits"
        updates = "every step" if self.update == "every_step" else "once"
        outliers = f"{self.outlier_fraction:.3g} outliers"
        return f"{widths} · a {self.unit} · {outliers} · window {self.attention_window} · {updates}"
