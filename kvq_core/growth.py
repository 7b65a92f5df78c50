"""How a lane's bits an element change with the length of the context, on any model's shape: arithmetic, no tensors.

The quantized region is taken at the width a run measured, less what does not grow with the tokens (a basis, norms);
windows are the lane's own, layers and tensors it leaves alone are fp16. So a curve shows where windows and a basis stop
mattering. Widths that depend on the data (QAQ, a schedule chosen from a spectrum) stay those of the measured run.
"""

from dataclasses import dataclass
from typing import Literal

from kvq_core.methods import ModelShape
from kvq_core.record import Memory
from kvq_core.spec import Lane

FULL_PRECISION = ("sinks", "window", "untouched")
FP16 = 16.0
Kind = Literal["key", "value"]


@dataclass(frozen=True)
class Growth:
    """``bits`` of a quantized element without ``fixed`` bytes a quantized layer holds whatever the context."""

    lane: Lane
    bits: dict[Kind, float | None]  # None: the run quantized nothing of it, so its width is not known

    @classmethod
    def of(cls, lane: Lane, memory: Memory, measured: ModelShape) -> "Growth":
        """From a finished run's memory on a model of that shape."""
        return cls(lane, {kind: _packed_bits(lane, memory, measured, kind) for kind in ("key", "value")})

    def effective_bits(self, shape: ModelShape, tokens: int) -> tuple[float | None, float | None]:
        """Bits of a key and of a value element, everything counted, of a prompt of ``tokens``; None where unknown."""
        return self._effective("key", shape, tokens), self._effective("value", shape, tokens)

    def nbytes(self, shape: ModelShape, tokens: int, batch: int) -> float | None:
        """Bytes of the caches of ``batch`` such prompts; what a lane stores beside the tokens is stored for each."""
        found = self.effective_bits(shape, tokens)
        if None in found:
            return None
        elements = shape.layers * shape.kv_heads * shape.head_dim * tokens
        return batch * elements * sum(bits or 0.0 for bits in found) / 8

    def _effective(self, kind: Kind, shape: ModelShape, tokens: int) -> float | None:
        window = self.lane.windows()[0 if kind == "key" else 1]
        packed = window.packed(tokens)
        layers = _layers(self.lane, shape)
        width = self.bits[kind]
        if not packed or not layers or not self.lane.build().quantizes:
            return FP16
        if width is None:
            return None
        channels = shape.kv_heads * shape.head_dim
        fixed = 8 * self.lane.build().fixed_bytes(shape)[0 if kind == "key" else 1] / (channels * tokens)
        share = packed / tokens
        own = share * width + (1 - share) * FP16 + fixed
        return (layers * own + (shape.layers - layers) * FP16) / shape.layers


def _packed_bits(lane: Lane, memory: Memory, shape: ModelShape, kind: Kind) -> float | None:
    """Bits of a quantized element in a run, without what its layers hold whatever the context."""
    width = memory.key_bits_quantized if kind == "key" else memory.value_bits_quantized
    if width is None:
        return None
    stored = sum(
        size for name, size in memory.bytes_by_part.items()
        if name.startswith(f"{kind}_") and name.removeprefix(f"{kind}_") not in FULL_PRECISION
    )  # fmt: skip
    elements = 8 * stored / width
    fixed = lane.build().fixed_bytes(shape)[0 if kind == "key" else 1] * _layers(lane, shape)
    return 8 * (stored - fixed) / elements


def _layers(lane: Lane, shape: ModelShape) -> int:
    """Layers of a model the lane quantizes; a lane that names layers is taken to leave the same ones on any model."""
    return shape.layers if isinstance(lane.layers, str) else sum(layer < shape.layers for layer in set(lane.layers))
