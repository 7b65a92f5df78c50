"""How a lane's bits an element change with the length of the context, on any model's shape: arithmetic, no tensors.

A context is a prompt of so many tokens. The quantized region is taken at the width a run measured, less what does not
grow with the tokens (a basis, norms); windows are the lane's own, layers and tensors it leaves alone are fp16. So a
curve shows where windows and a basis stop mattering. Widths that depend on the data (QAQ, a schedule chosen from a
spectrum) stay those of the measured run.
"""

from dataclasses import dataclass
from typing import Literal

from kvq_core.errors import KvqError
from kvq_core.methods import Method, ModelShape, Window
from kvq_core.record.fields import FULL_PRECISION, Memory, Record
from kvq_core.spec import Lane

FP16 = 16.0
Kind = Literal["key", "value"]


@dataclass(frozen=True)
class Growth:
    """``bits`` of a quantized element without ``method``'s fixed bytes, which a quantized layer holds whatever the
    context; ``shared_bytes`` of model-wide tensors such as codebooks, in no bits but ``shared_bits``."""

    lane: Lane
    method: Method
    windows: dict[Kind, Window]
    bits: dict[Kind, float | None]  # None: the run quantized nothing of it, so its width is not known
    shared_bytes: int

    @classmethod
    def of(cls, lane: Lane, memory: Memory, measured: ModelShape) -> "Growth":
        """From a finished run's memory on a model of that shape."""
        keys, values = lane.windows()
        layers = _layers(lane, measured)
        a_layer = {name: size / layers for name, size in memory.bytes_by_part.items()} if layers else {}
        method = lane.build().as_stored(a_layer, measured)
        fixed = [layers * size for size in _fixed(lane, method, measured)]
        bits: dict[Kind, float | None] = {
            "key": _packed_bits(memory, "key", fixed[0]),
            "value": _packed_bits(memory, "value", fixed[1]),
        }
        return cls(lane, method, {"key": keys, "value": values}, bits, memory.shared_bytes)

    def effective_bits(self, shape: ModelShape, tokens: int) -> tuple[float | None, float | None]:
        """Bits of a key and of a value element, everything counted, of a prompt of ``tokens``; None where unknown."""
        return self._effective("key", shape, tokens), self._effective("value", shape, tokens)

    def mean_bits(self, shape: ModelShape, tokens: int) -> float | None:
        """Bits of an element, keys and values together; None where those of either are not known."""
        key, value = self.effective_bits(shape, tokens)
        return None if key is None or value is None else (key + value) / 2

    def shared_bits(self, shape: ModelShape, tokens: int) -> float:
        """What model-wide tensors would add to an element's bits, on the model that was measured."""
        return 8 * self.shared_bytes / _elements(shape, tokens)

    def nbytes(self, shape: ModelShape, tokens: int, batch: int) -> float | None:
        """Bytes of the caches of ``batch`` such prompts; what a lane stores beside the tokens is stored for each."""
        bits = self.mean_bits(shape, tokens)
        return None if bits is None else batch * _elements(shape, tokens) * bits / 8

    def fixed_bytes(self, shape: ModelShape) -> int:
        """Bytes of all layers that are stored whatever the context: a basis, norms, a constant."""
        return _layers(self.lane, shape) * sum(_fixed(self.lane, self.method, shape))

    def _effective(self, kind: Kind, shape: ModelShape, tokens: int) -> float | None:
        packed = self.windows[kind].packed(tokens)
        layers = _layers(self.lane, shape)
        width = self.bits[kind]
        if not packed or not layers or not self.method.quantizes:
            return FP16
        if width is None:
            return None
        channels = shape.kv_heads * shape.head_dim
        fixed = 8 * _fixed(self.lane, self.method, shape)[0 if kind == "key" else 1] / (channels * tokens)
        share = packed / tokens
        own = share * width + (1 - share) * FP16 + fixed
        return (layers * own + (shape.layers - layers) * FP16) / shape.layers


def shape_of(record: Record) -> ModelShape:
    """The shape of the model a run was on."""
    env = record.environment
    return ModelShape(env.layers, env.query_heads, env.kv_heads, env.head_dim, 0)


def growths(record: Record) -> dict[int, Growth | None]:
    """Of every lane that stored anything, by its index; None where this version cannot build the lane any more."""
    found: dict[int, Growth | None] = {}
    for index, lane in enumerate(record.lanes):
        if lane.memory is not None:
            try:
                found[index] = Growth.of(
                    Lane.model_validate(record.spec["lanes"][index]), lane.memory, shape_of(record)
                )
            except (KeyError, IndexError, TypeError, ValueError, KvqError):  # a knob or a method that is no more
                found[index] = None
    return found


def _packed_bits(memory: Memory, kind: Kind, fixed: float) -> float | None:
    """Bits of a quantized element in a run, without the ``fixed`` bytes its layers hold whatever the context."""
    width = memory.key_bits_quantized if kind == "key" else memory.value_bits_quantized
    if width is None:
        return None
    stored = sum(
        size
        for name, size in memory.bytes_by_part.items()
        if name.startswith(f"{kind}_") and name.removeprefix(f"{kind}_") not in FULL_PRECISION
    )
    elements = 8 * stored / width
    return 8 * (stored - fixed) / elements


def _fixed(lane: Lane, method: Method, shape: ModelShape) -> tuple[int, int]:
    """Bytes of keys and of values that a quantized layer stores whatever the context."""
    keys, values = method.fixed_bytes(shape)
    return keys + lane.center_bytes(shape), values


def _elements(shape: ModelShape, tokens: int) -> int:
    """Elements of keys and values together."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens


def _layers(lane: Lane, shape: ModelShape) -> int:
    """Layers of a model the lane quantizes; a lane that names layers is taken to leave the same ones on any model."""
    return shape.layers if isinstance(lane.layers, str) else sum(layer < shape.layers for layer in set(lane.layers))
