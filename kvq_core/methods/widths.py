"""Methods with bit widths and windows as knobs, and why groups of channels may not fit a head."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kvq_core.methods.base import Method

Bits = Literal[1, 2, 3, 4, 8]
SINK: dict[str, Any] = {"means": "sink_tokens"}
RECENT: dict[str, Any] = {"means": "recent_tokens"}


class WidthMethod(Method):
    """A method with one bit width, or one each for keys and values; a subclass says which widths there are."""

    bits: int
    key_bits: int | None
    value_bits: int | None

    def width(self, tensor: Literal["key", "value"]) -> int:
        """Bits per code of keys or of values."""
        own: int | None = getattr(self, f"{tensor}_bits")
        return self.bits if own is None else own

    def for_tensor(self, tensor: Literal["keys", "values"]) -> Method:
        width = self.width("key" if tensor == "keys" else "value")
        return self.model_copy(update={"bits": width, "key_bits": None, "value_bits": None})

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        key, value = self.width("key"), self.width("value")
        if tensors == "both" and key != value:
            return f"{self.name} K{key} V{value}"
        return f"{self.name} {value if tensors == 'values' else key}"


class BitsMethod(WidthMethod):
    """A method whose codes have 1, 2, 3, 4 or 8 bits."""

    bits: Bits = Field(2, title="Bits", description="Bits of a code, for keys and values alike.")
    key_bits: Bits | None = Field(None, title="Key bits", description="Bits of a key's code; empty means Bits.")
    value_bits: Bits | None = Field(None, title="Value bits", description="Bits of a value's code; empty means Bits.")


class ResidualMethod(BitsMethod):
    """A method whose newest tokens wait in a full-precision residual until whole token groups are complete."""

    group_size: int = Field(
        32, ge=1, le=1024, title="Group size", description="Elements that share one scale and zero-point."
    )
    residual_length: int = Field(
        32,
        ge=1,
        le=4096,
        title="Residual length",
        json_schema_extra=RECENT,
        description="Newest tokens kept in full precision; a multiple of the group size.",
    )

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.residual_length % self.group_size:
            raise ValueError(
                f"residual_length = {self.residual_length} is not a multiple of group_size = {self.group_size}; "
                f"use {-(-self.residual_length // self.group_size) * self.group_size}."
            )
        return self

    def summary(self) -> str:
        return f"K{self.width('key')} V{self.width('value')} · group {self.group_size} · window {self.residual_length}"


def grouping_why_not(head_dim: int, group_size: int) -> str | None:
    """Channel groups must tile a head."""
    if head_dim % group_size:
        return f"group_size = {group_size} does not divide head_dim = {head_dim}; choose a divisor of {head_dim}"
    return None
