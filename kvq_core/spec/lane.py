"""One lane: a method with its knobs, and where and how it applies."""

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import Method, ModelShape, Window, make, methods
from kvq_core.spec.frozen import Frozen
from kvq_core.spec.prefill import Chunks, Reading

Centering = Literal["none", "mean", "bias", "mean_after_rope"]
Count = Annotated[int, Field(ge=0)]


class Lane(Frozen):
    """One cache under one label: a method with its knobs, and where it applies."""

    label: str = Field("", max_length=60, description="Name of the lane; empty: made from the method.")
    method: str = Field(description="Name of the method.")
    knobs: dict[str, Any] = Field(default_factory=dict, description="The method's knobs; missing ones keep defaults.")
    tensors: Literal["both", "keys", "values"] = Field(
        "both", description="What the method quantizes; the rest is fp16."
    )
    layers: Literal["all"] | tuple[Count, ...] = Field(
        "all", description='Layers it quantizes, "all" or a list of numbers from 0; the others are fp16.'
    )
    sink_tokens: int | None = Field(None, ge=0, le=4096, description="First tokens kept fp16; null: the method's own.")
    recent_tokens: int | None = Field(
        None, ge=0, le=8192, description="Newest tokens kept fp16; null: the method's own."
    )

    center: Centering = Field(
        "none",
        description="What quantized keys are stored without, a constant of each KV head and channel: the prompt's mean "
        "key before RoPE, the bias of the key projection, or the mean after RoPE.",
    )

    prefill: Reading = Field(
        "full",
        description="How the prompt is read: full, in full precision before anything is quantized, as papers do; "
        "deployed, as the method's first engine does; or in chunks through the lane's own cache.",
    )

    @field_validator("label", mode="before")
    @classmethod
    def _one_line(cls, label: Any) -> Any:
        """Labels name lanes in tables and error messages: no line breaks, no blank that looks like no label."""
        return " ".join(label.split()) if isinstance(label, str) else label

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if isinstance(self.layers, tuple) and not self.layers:
            raise SpecError('layers = [] quantizes nothing; give layer numbers or "all".')
        if reason := self._not_centred():
            raise SpecError(f"center = {self.center}: {reason}.")
        if reason := self._not_chunked():
            raise SpecError(f"prefill: {reason}.")
        built = self.build().model_dump(mode="json")
        # 2.0 or true given for a whole number is that number from here on, in the record as in the run's id
        object.__setattr__(self, "knobs", {name: built[name] for name in self.knobs})
        return self

    def build(self) -> Method:
        """The frozen method, lane options applied to the knobs that mean the same.

        Raises SpecError for an unknown method, an impossible knob, or an option given twice.
        """
        settings = dict(self.knobs)
        for option, knob in self._options():
            if knob is None:
                continue
            if knob in self.knobs:
                raise SpecError(f"{option} is given by the lane and by the knob {knob!r}; give one of them.")
            settings[knob] = getattr(self, option)
        built = make(self.method, **settings)
        if not built.quantizes and (self.sink_tokens is not None or self.recent_tokens is not None):
            raise SpecError(f"{self.method} quantizes nothing: sink_tokens and recent_tokens have no meaning here.")
        return built

    def windows(self) -> tuple[Window, Window]:
        """Windows of keys and of values after the lane's options."""
        built = self.build()
        changes = {
            option.removesuffix("_tokens"): getattr(self, option) for option, knob in self._options() if knob is None
        }
        key, value = (_changed(window, changes) for window in built.windows())
        whole = Window(step=None)
        return (whole if self.tensors == "values" else key), (whole if self.tensors == "keys" else value)

    def _options(self) -> list[tuple[str, str | None]]:
        """Lane options that are set, each with the method's knob of the same meaning, if it has one."""
        if self.method not in methods():
            make(self.method)
        knobs = methods()[self.method].window_knobs()
        given = [o for o in ("sink_tokens", "recent_tokens") if getattr(self, o) is not None]
        return [(option, knobs.get(option)) for option in given]

    def _not_centred(self) -> str | None:
        """Why its keys cannot be stored without a constant, on any model; None where they can, or are not to be."""
        if self.center == "none":
            return None
        if self.windows()[0].step is None:
            return "this lane quantizes no keys; leave center out"
        return self.build().not_centred

    @property
    def chunks(self) -> Chunks | None:
        """The chunks in which the prompt enters the cache; None where it is read in full precision first."""
        if self.prefill == "full":
            return None
        if isinstance(self.prefill, Chunks):
            return self.prefill
        home = self.build().home
        return None if home is None else Chunks(chunk=home.chunk, own_chunk=home.own_chunk)

    def _not_chunked(self) -> str | None:
        """Why the prompt cannot enter its cache in chunks, on any model; None where it can, or is not to."""
        if self.chunks is None:
            return None
        method = self.build()
        if reason := method.not_chunked:
            return reason
        if self.chunks.own_chunk == "raw" or not method.quantizes:
            return None
        for tensor, local, window in zip(("keys", "values"), method.token_local, self.windows(), strict=True):
            if window.step is not None and not local:
                return (
                    f"own_chunk = stored needs codes that a token has by itself, and {method.title} codes {tensor} of "
                    "several tokens together; take own_chunk = raw, or a method that quantizes per token"
                )
        return None

    def center_bytes(self, shape: ModelShape) -> int:
        """Stored bytes of a quantized layer's constant: fp16, and none where it is known from the weights."""
        return 2 * shape.kv_heads * shape.head_dim if self.center in ("mean", "mean_after_rope") else 0

    def why_not(self, shape: ModelShape) -> str | None:
        """Why this lane cannot run on a model of this shape; None when it can."""
        if isinstance(self.layers, tuple) and max(self.layers) >= shape.layers:
            return f"layer {excerpt(max(self.layers))} does not exist; the model has layers 0 to {shape.layers - 1}"
        method = self.build()
        if self.center == "bias" and shape.key_bias != "bias":
            there = (
                "have no bias"
                if shape.key_bias == "none"
                else "have a norm or a bound behind their bias, which changes it"
            )
            return f"center = bias, and the model's key projections {there}; take center = mean"
        lost = None
        if method.key_space == "pre" and method.quantizes:
            lost = shape.not_before_rope(self.layers, "a method that stores keys after RoPE")
        elif self.center in ("mean", "bias"):
            lost = shape.not_before_rope(self.layers, "center = mean_after_rope")
        return lost or method.why_not(shape)


# what a lane says beside its method and its knobs
LANE_OPTIONS = tuple(name for name in Lane.model_fields if name not in ("label", "method", "knobs"))


def _changed(window: Window, changes: dict[str, Any]) -> Window:
    return replace(window, **changes) if window.step is not None else window
