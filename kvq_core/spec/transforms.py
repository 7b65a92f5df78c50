"""What stands between a rule's tensors and its codec: a constant keys lose, scales they are divided by, a rotation."""

from typing import Literal

from kvq_core.errors import SpecError
from kvq_core.methods import Method, ModelShape, largest_block
from kvq_core.spec.options import CodecOptions


class Transforms(CodecOptions):
    """Applied in this order, undone in the other when tensors are read: keys less a constant, divided by scales; keys
    and values turned in blocks."""

    def check(self, method: Method, keys: bool, values: bool) -> None:
        """Raises SpecError where a method that quantizes ``keys``, or ``values``, cannot stand behind them on any
        model."""
        if self.center != "none" and (reason := method.not_centred if keys else _no_keys("center")):
            raise SpecError(f"center = {self.center}: {reason}.")
        if self.fold != "none" and (reason := method.not_folded if keys else _no_keys("fold")):
            raise SpecError(f"fold = {self.fold}: {reason}.")
        block = self.rotate_block
        if block is not None and block & (block - 1):
            raise SpecError(f"rotate_block = {block} is no power of two; give 2, 4, 8, ... up to head_dim.")
        if block is not None and self.rotate == "none":
            raise SpecError(f"rotate_block = {block} needs rotate = hadamard or signed; give both.")
        if self.rotate != "none" and (reason := _not_rotated(method, keys, values)):
            raise SpecError(f"rotate = {self.rotate}: {reason}.")

    def head_not_rotated(self, head_dim: int) -> str | None:
        """Why heads of that size cannot be turned; None where they can."""
        largest = largest_block(head_dim)
        if self.rotate == "none":
            return None
        if largest == 1:
            return f"rotate = {self.rotate} mixes blocks of a power of two, and head_dim = {head_dim} is odd"
        if largest % (self.rotate_block or 1):
            return f"rotate_block = {self.rotate_block} does not divide head_dim = {head_dim}; give {largest} or less"
        return None

    def why_not(self, shape: ModelShape, layers: Literal["all"] | tuple[int, ...]) -> str | None:
        """Why keys of some of a model's layers cannot lose the constant, or be divided; None where they can."""
        if self.center in ("bias", "slow") and shape.key_bias != "bias":
            there = (
                "have no bias"
                if shape.key_bias == "none"
                else "have a norm or a bound behind their bias, which changes it"
            )
            return f"center = {self.center}, and the model's key projections {there}; take center = mean"
        if self.center in ("mean", "bias", "slow"):
            return shape.not_before_rope(layers, "center = mean_after_rope")
        return None if self.fold == "none" else shape.not_before_rope(layers, "fold = none")

    def stored_bytes(self, shape: ModelShape) -> int:
        """Of a quantized layer's constant and scales of keys: fp16 a KV head and channel each, and none of a constant
        that is known from the weights."""
        held = (self.center in ("mean", "mean_after_rope")) + (self.fold != "none")
        return 2 * shape.kv_heads * shape.head_dim * held

    @property
    def named(self) -> str:
        """In a word or two each: `` centred rotated``; empty where there are none."""
        centred = {"none": "", "slow": " without slow biases"}.get(self.center, " centred")
        folded = "" if self.fold == "none" else " folded"
        return centred + folded + ("" if self.rotate == "none" else " rotated")


def _no_keys(option: str) -> str:
    return f"this lane quantizes no keys; leave {option} out"


def _not_rotated(method: Method, keys: bool, values: bool) -> str | None:
    if not (keys or values):
        return "this lane quantizes nothing; leave rotate out"
    if method.not_rotated is None and method.key_space == "pre" and keys:
        return f"{method.name} stores these keys before RoPE, and keys are turned after it; take tensors = values"
    return method.not_rotated
