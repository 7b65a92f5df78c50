"""One lane: a method with its knobs, and where and how it applies."""

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import Method, ModelShape, Window, largest_block, make, methods

Centering = Literal["none", "mean", "bias", "mean_after_rope"]
Rotation = Literal["none", "hadamard", "signed"]
Count = Annotated[int, Field(ge=0)]


class Frozen(BaseModel):
    """Data that never changes; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    rotate: Rotation = Field(
        "none",
        description="Turn the channels of quantized keys (after RoPE, centred before) and values by a Hadamard "
        "transform, and back when they are read; signed: after random signs of each layer and head.",
    )
    rotate_block: int | None = Field(
        None,
        ge=2,
        le=1024,
        description="Channels that rotate mixes, a power of two; null: the largest that divides a head.",
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
        self._check_rotation()
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

    def _check_rotation(self) -> None:
        """Raises SpecError where this lane's tensors cannot be turned on any model."""
        if self.rotate_block is not None and self.rotate_block & (self.rotate_block - 1):
            raise SpecError(f"rotate_block = {self.rotate_block} is no power of two; give 2, 4, 8, ... up to head_dim.")
        if self.rotate == "none":
            if self.rotate_block is not None:
                raise SpecError(f"rotate_block = {self.rotate_block} needs rotate = hadamard or signed; give both.")
            return
        if reason := self._not_rotated():
            raise SpecError(f"rotate = {self.rotate}: {reason}.")

    def _not_rotated(self) -> str | None:
        method, (keys, values) = self.build(), self.quantized()
        if not keys and not values:
            return "this lane quantizes nothing; leave rotate out"
        if reason := method.not_rotated:
            return reason
        if keys and method.key_space == "pre":
            return f"{self.method} stores these keys before RoPE, and keys are turned after it; take tensors = values"
        return None

    def quantized(self) -> tuple[bool, bool]:
        """Whether it quantizes keys, and values."""
        keys, values = (window.step is not None for window in self.windows())
        return keys, values

    def _rotates_not(self, head_dim: int) -> str | None:
        """Why heads of that size cannot be turned."""
        largest = largest_block(head_dim)
        if self.rotate == "none":
            return None
        if largest == 1:
            return f"rotate = {self.rotate} mixes blocks of a power of two, and head_dim = {head_dim} is odd"
        if largest % (self.rotate_block or 1):
            return f"rotate_block = {self.rotate_block} does not divide head_dim = {head_dim}; give {largest} or less"
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
        return lost or self._rotates_not(shape.head_dim) or method.why_not(shape)


# what a lane says beside its method and its knobs
LANE_OPTIONS = tuple(name for name in Lane.model_fields if name not in ("label", "method", "knobs"))


def _changed(window: Window, changes: dict[str, Any]) -> Window:
    return replace(window, **changes) if window.step is not None else window
