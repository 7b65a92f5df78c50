"""How a lane's bits an element change with the length of the context, on any model's shape: arithmetic, no tensors.

A context is a prompt of so many tokens. The quantized region is taken at the width a run measured, less what does not
grow with the tokens (a basis, norms); windows are the lane's own, layers and tensors it leaves alone are fp16. So a
curve shows where windows and a basis stop mattering. Widths that depend on the data (QAQ, a schedule chosen from a
spectrum) stay those of the measured run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.methods import Method, ModelShape
from kvq_core.record.fields import Record
from kvq_core.record.memory import FULL_PRECISION, Memory, RuleMemory
from kvq_core.spec import TENSORS, Assignment, Lane, Tensor

FP16 = 16.0


@dataclass(frozen=True)
class RuleShare:
    """What one rule quantizes of a tensor: ``bits`` of an element without ``method``'s fixed bytes, which a layer holds
    whatever the context; None where the run quantized nothing of it, so that its width is not known."""

    assigned: Assignment
    method: Method
    bits: float | None

    @classmethod
    def of(cls, assigned: Assignment, layers: int, memory: Memory, measured: ModelShape) -> "RuleShare":
        """From a finished run's memory on a model of that shape, of which its rule was used in so many ``layers``."""
        stored = memory.by_rule[assigned.number] if memory.by_rule else memory
        a_layer = {name: size / layers for name, size in stored.bytes_by_part.items()}
        share = cls(assigned, assigned.method.as_stored(a_layer, measured), None)
        return replace(share, bits=_packed_bits(stored, assigned.tensor, layers * share.fixed_bytes(measured)))

    def fixed_bytes(self, shape: ModelShape) -> int:
        """Bytes that a layer stores whatever the context."""
        keys, values = self.method.fixed_bytes(shape)
        return keys + self.assigned.transforms.stored_bytes(shape) if self.assigned.tensor == "keys" else values

    def added(self, shape: ModelShape, tokens: int) -> float | None:
        """Bits that an element of its layers takes more than in fp16, fixed bytes counted; None where unknown."""
        packed = self.assigned.packed(tokens)
        if not packed:
            return 0.0
        if not self.method.quantizes:  # spans in fp16, beside what else is stored of them
            return packed / tokens * FP16
        if self.bits is None:
            return None
        fixed = 8 * self.fixed_bytes(shape) / (shape.kv_heads * shape.head_dim * tokens)
        return packed / tokens * (self.bits - (0.0 if self.assigned.beside else FP16)) + fixed


@dataclass(frozen=True)
class Growth:
    """``shared_bytes`` of model-wide tensors such as codebooks, in no bits but ``shared_bits``."""

    lane: Lane
    shares: tuple[RuleShare, ...]
    shared_bytes: int

    @classmethod
    def of(cls, lane: Lane, memory: Memory, measured: ModelShape) -> "Growth":
        """From a finished run's memory on a model of that shape."""
        plan = lane.plan(measured)
        shares = [
            RuleShare.of(assigned, sum(len(a.layers) for a in plan if a.of_one(assigned)), memory, measured)
            for i, assigned in enumerate(plan)
            if not any(assigned.alike(before) for before in plan[:i])
        ]
        return cls(lane, tuple(shares), memory.shared_bytes)

    def tensor_bits(self, tensor: Tensor, shape: ModelShape, tokens: int) -> float | None:
        """Bits of an element of keys or of values, all counted, of a prompt of ``tokens``; None where unknown."""
        held = self._held(shape, tokens, tensor)
        every = sum(held.values())
        total = FP16 * every
        for layers, share in self._there(shape):
            if share.assigned.tensor != tensor:
                continue
            needed = {layer: shape.kinds[layer].tokens(tokens) for layer in layers}
            added = {count: share.added(shape, count) for count in set(needed.values())}
            if None in added.values():
                return None
            total += sum(held[layer] * (added[count] or 0.0) for layer, count in needed.items())
        return total / every if every else FP16

    def mean_bits(self, shape: ModelShape, tokens: int) -> float | None:
        """Bits of an element, keys and values together; None where those of either are not known."""
        held = {tensor: sum(self._held(shape, tokens, tensor).values()) for tensor in TENSORS}
        stored = self._stored_bits(shape, tokens)
        return None if stored is None else stored / sum(held.values()) if any(held.values()) else FP16

    def shared_bits(self, shape: ModelShape, tokens: int) -> float:
        """What model-wide tensors would add to an element's bits, on the model that was measured."""
        return 8 * self.shared_bytes / sum(sum(self._held(shape, tokens, tensor).values()) for tensor in TENSORS)

    def nbytes(self, shape: ModelShape, tokens: int, batch: int) -> float | None:
        """Bytes of the caches of ``batch`` such prompts; what a lane stores beside the tokens is stored for each, and
        so are the windows and the states of layers that it leaves alone. Of a window that it quantizes, the tokens in
        it."""
        stored = self._stored_bits(shape, tokens)
        return None if stored is None else batch * (stored / 8 + self._beside(shape, tokens))

    def fixed_bytes(self, shape: ModelShape) -> int:
        """Bytes of all layers that are stored whatever the context: a basis, norms, a constant."""
        return sum(len(layers) * share.fixed_bytes(shape) for layers, share in self._there(shape))

    def _stored_bits(self, shape: ModelShape, tokens: int) -> float | None:
        """Of the layers that the lane can quantize, all together; None where unknown."""
        bits = {tensor: self.tensor_bits(tensor, shape, tokens) for tensor in TENSORS}
        held = {tensor: sum(self._held(shape, tokens, tensor).values()) for tensor in TENSORS}
        return None if None in bits.values() else sum(held[tensor] * (bits[tensor] or 0.0) for tensor in TENSORS)

    def _held(self, shape: ModelShape, tokens: int, tensor: Tensor) -> dict[int, int]:
        """Elements of keys, or of values, that each layer needs of which the lane can quantize any; bits are those of
        these elements."""
        own = shape.keyed if any(rule.sliding for rule in self.lane.every_rule) else shape.full
        kinds = {layer: shape.kinds[layer] for layer in own}
        dims = {layer: kind.key_dim if tensor == "keys" else kind.value_dim for layer, kind in kinds.items()}
        return {layer: kind.tokens(tokens) * kind.kv_heads * dims[layer] for layer, kind in kinds.items()}

    def _beside(self, shape: ModelShape, tokens: int) -> float:
        """Bytes of windows and states in fp16."""
        left = [shape.kinds[layer] for layer in set(shape.windowed) - set(self._held(shape, tokens, "keys"))]
        states = sum(kind.conv + kind.recurrent for kind in shape.kinds)
        return FP16 // 8 * (sum(kind.tokens(tokens) * kind.elements for kind in left) + states)

    def _there(self, shape: ModelShape) -> Iterator[tuple[list[int], RuleShare]]:
        """The shares with the layers of a model that they are of; rules are taken to mean the same layers anywhere."""
        plan = self.lane.plan(shape)
        for share in self.shares:
            alike = (assigned for assigned in plan if assigned.alike(share.assigned))
            yield [layer for assigned in alike for layer in assigned.layers], share


def growths(record: Record) -> dict[int, Growth | None]:
    """Of every lane that stored anything, by its index; None where this version cannot build the lane any more."""
    found: dict[int, Growth | None] = {}
    for index, lane in enumerate(record.lanes):
        if lane.memory is not None:
            asked = lane_of(record, index)
            found[index] = None if asked is None else Growth.of(asked, lane.memory, shape_of(record))
    return found


def _packed_bits(stored: Memory | RuleMemory, tensor: Tensor, fixed: float) -> float | None:
    """Bits of a quantized element in a run, without the ``fixed`` bytes its layers hold whatever the context."""
    kind = tensor.removesuffix("s")
    width = stored.key_bits_quantized if tensor == "keys" else stored.value_bits_quantized
    if width is None:
        return None
    packed = sum(
        size
        for name, size in stored.bytes_by_part.items()
        if name.startswith(f"{kind}_") and name.removeprefix(f"{kind}_") not in FULL_PRECISION
    )
    elements = 8 * packed / width
    return 8 * (packed - fixed) / elements
