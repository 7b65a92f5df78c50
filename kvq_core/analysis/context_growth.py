"""How a lane's cache grows with the length of the context, on any model's shape, as the one counter has it.

A context is a prompt of so many tokens. Widths that follow from data (QAQ, a schedule chosen from a spectrum) are those
that the run measured, and not known where it quantized nothing; all others follow from the lane. So a curve shows where
windows and a basis stop mattering.
"""

from dataclasses import dataclass, field

from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.errors import MethodError
from kvq_core.methods import ModelShape
from kvq_core.record.fields import Record
from kvq_core.record.memory import FULL_PRECISION, Memory
from kvq_core.sizing.count import MeasuredWidth, NotKnown, PlannedCache, Widths
from kvq_core.spec import Assignment, Lane


@dataclass(frozen=True)
class Growth:
    """``widths``: those that a run measured; ``shared_bytes`` of model-wide tensors such as codebooks, in no bits but
    ``shared_bits``."""

    lane: Lane
    widths: Widths
    shared_bytes: int
    _planned: dict[ModelShape, PlannedCache] = field(default_factory=dict)

    @classmethod
    def of(cls, lane: Lane, memory: Memory, measured: ModelShape) -> "Growth":
        """From a finished run's memory on a model of that shape."""
        plan = [part for part in lane.plan(measured) if part.method.quantizes]
        found = ((part, _width(part, plan, memory, measured)) for part in plan)
        widths = {(p.number, p.tensor): width for p, width in found if width.bits is None or p.method.from_data}
        return cls(lane, widths, memory.shared_bytes)

    def on(self, shape: ModelShape) -> PlannedCache:
        """The lane on a shape, planned once for all lengths."""
        if shape not in self._planned:
            self._planned[shape] = PlannedCache(self.lane, shape, self.widths)
        return self._planned[shape]

    def mean_bits(self, shape: ModelShape, tokens: int) -> float | None:
        """Bits of an element, keys and values together, all counted; None where they are not known."""
        try:
            return self.on(shape).bits(tokens, tokens)
        except MethodError:
            return None

    def shared_bits(self, shape: ModelShape, tokens: int) -> float:
        """What model-wide tensors would add to an element's bits, on the model that was measured."""
        return 8 * self.shared_bytes / self.on(shape).elements(tokens)

    def nbytes(self, shape: ModelShape, tokens: int, batch: int) -> int | None:
        """Bytes of the caches of ``batch`` such prompts, windows and states among them; None where not known."""
        found = self.on(shape).bytes(tokens, tokens, batch)
        return None if isinstance(found, NotKnown) else found.tensors


def growths(record: Record) -> dict[int, Growth | None]:
    """Of every lane that stored anything, by its index; None where this version cannot build the lane any more."""
    found: dict[int, Growth | None] = {}
    for index, lane in enumerate(record.lanes):
        if lane.memory is not None:
            asked = lane_of(record, index)
            found[index] = None if asked is None else Growth.of(asked, lane.memory, shape_of(record))
    return found


def _width(part: Assignment, plan: list[Assignment], memory: Memory, measured: ModelShape) -> MeasuredWidth:
    """Of a rule's keys or values in a run, without the bytes that its layers hold whatever the context."""
    stored = memory.by_rule[part.number] if memory.by_rule else memory
    layers = sum(len(other.layers) for other in plan if other.of_one(part))
    method = part.method.as_stored({name: size / layers for name, size in stored.bytes_by_part.items()}, measured)
    keys, kind = part.tensor == "keys", part.tensor.removesuffix("s")
    bits = stored.key_bits_quantized if keys else stored.value_bits_quantized
    if bits is None:
        return MeasuredWidth(None, method)
    before = part.transforms.stored_bytes(measured) if keys else 0
    fixed = layers * (method.fixed_bytes(measured)[0 if keys else 1] + before)
    whole = {f"{kind}_{name}" for name in FULL_PRECISION}
    packed = sum(s for name, s in stored.bytes_by_part.items() if name.startswith(f"{kind}_") and name not in whole)
    return MeasuredWidth(bits * (1 - fixed / packed), method)
