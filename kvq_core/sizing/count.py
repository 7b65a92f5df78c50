"""What a lane's cache takes, before anything has run: the one counter of planned bytes. A run's ``memory`` counts the
same in the tensors that it holds."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvq_core.errors import MethodError
from kvq_core.methods import LayerKind, Method, ModelRef, ModelShape
from kvq_core.sizing.engine_format import reserved_in
from kvq_core.sizing.stored import Bytes, Encoded, learned_bytes
from kvq_core.spec import TENSORS, Assignment, Lane, Tensor

FP16 = 2  # bytes


@dataclass(frozen=True)
class NotKnown:
    """Why bytes cannot be told."""

    reason: str


@dataclass(frozen=True)
class CacheBytes:
    """``tensors``: bytes of keys, values and states of all sequences, full-precision windows and what is stored once a
    layer among them; ``shared``: of what belongs to the model, such as codebooks, once whatever the sequences;
    ``host_copy``: in the host's memory; ``reserved``: what the engine sets aside for the tensors, None where none is
    named or it is not known how. ``from_data``: widths that follow from a prompt's numbers, here from random ones;
    ``learned``: what belongs to the model, and whether it is its own or counted by formula."""

    tensors: int
    shared: int = 0
    host_copy: int = 0
    reserved: int | None = None
    from_data: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()

    @property
    def taken(self) -> int:
        """Of the device's memory: what the engine sets aside where that is known, else tensors, and what they share."""
        return (self.tensors if self.reserved is None else self.reserved) + self.shared


@dataclass(frozen=True)
class MeasuredWidth:
    """What a run tells of a rule's width: ``bits`` of an encoded element, None where it encoded none; ``method``: with
    what the prompt decided of the bytes that are stored once a layer."""

    bits: float | None
    method: Method

    def bytes(self, tensor: int, heads: int, dim: int, tokens: int) -> Bytes:
        """Of keys (``tensor`` 0) or of values (1) in one layer. Raises MethodError where the width is not known."""
        if self.bits is None:
            raise MethodError(f"{self.method.name}: the run quantized nothing by it, so that its width is not known.")
        once = self.method.fixed_bytes(ModelShape(1, heads, heads, dim, 0))[tensor]
        return Bytes(self.bits / 8 * heads * dim * tokens, float(once))


Widths = Mapping[tuple[int, Tensor], MeasuredWidth]  # by a rule's number and its tensor
NONE: Widths = MappingProxyType({})


def cache_bytes(
    lane: Lane,
    shape: ModelShape,
    prompt: int,
    tokens: int,
    batch: int = 1,
    engine: str | None = None,
    model: ModelRef | None = None,
    memory: int | None = None,
    widths: Widths = NONE,
) -> CacheBytes | NotKnown:
    """Of ``batch`` sequences of ``tokens`` tokens each, the first ``prompt`` of which entered together and the others
    one by one. Layers with a window hold the tokens in it. ``engine``: one of ``engines``, on a card with so many
    bytes of ``memory``; ``model``: whose learned data is meant, where it is known; ``widths``: those that a run
    measured."""
    plan = plan_on(lane, shape)
    states = shape.dtype_bytes * sum(kind.conv + kind.recurrent for kind in shape.kinds)
    try:
        total = plan_bytes(plan, shape, prompt, tokens, widths)
        reserved = None if engine is None else reserved_in(engine, lane.label, plan, shape, tokens, batch, memory)
    except MethodError as error:
        return NotKnown(str(error))
    methods = list(dict.fromkeys(part.method for part in plan))
    return CacheBytes(
        batch * (fp16_bytes(shape, tokens) + states + _whole(total.block + total.once)),
        shared=round(total.model),
        host_copy=batch * _whole(total.host),
        reserved=reserved,
        from_data=tuple(dict.fromkeys(f"{m.name}: {m.from_data}" for m in methods if m.from_data)),
        learned=tuple(dict.fromkeys(_learned(m, model) for m in methods if m.learned)),
    )


def fp16_bytes(shape: ModelShape, tokens: int) -> int:
    """Of keys and values in fp16 of what each layer keeps of a context, states left out."""
    return sum(FP16 * kind.elements * kind.tokens(tokens) for kind in shape.kinds)


@dataclass(frozen=True)
class CacheAt:
    """A cache once ``tokens`` have entered, the first ``prompt`` of them together, on a model's shape."""

    shape: ModelShape
    prompt: int
    tokens: int


def bits_of(lane: Lane, at: CacheAt) -> float:
    """An element of keys and values together, of the layers that the lane can quantize: full-precision windows, layers
    that stay fp16 among them, and what is stored once a layer are counted. A run's ``memory`` counts the same in real
    tensors. Raises MethodError."""
    return planned_bits(plan_on(lane, at.shape), any(rule.sliding for rule in lane.every_rule), at)


def planned_bits(plan: tuple[Assignment, ...], sliding: bool, at: CacheAt, widths: Widths = NONE) -> float:
    """``bits_of`` a lane whose plan is known; ``sliding``: whether it quantizes layers of windows, too; ``widths``:
    those that a run measured."""
    elements = elements_of(sliding, at)
    more = plan_bytes(plan, at.shape, at.prompt, at.tokens, widths)
    return 8 * FP16 + 8 * (more.block + more.once) / elements if elements else 8.0 * FP16


def elements_of(sliding: bool, at: CacheAt) -> int:
    """Of keys and values that a lane can quantize."""
    kinds = [at.shape.kinds[layer] for layer in (at.shape.keyed if sliding else at.shape.full)]
    return sum(kind.tokens(at.tokens) * kind.kv_heads * (kind.key_dim + kind.value_dim) for kind in kinds)


def plan_on(lane: Lane, shape: ModelShape) -> tuple[Assignment, ...]:
    """The lane's plan for a shape; layers that hold a latent in place of keys and values are quantized as full ones."""
    held = [layer for layer, kind in enumerate(shape.kinds) if kind.elements]
    return lane.plan_of(held, shape.windowed, shape.stateful)


def plan_bytes(
    plan: tuple[Assignment, ...], shape: ModelShape, prompt: int, tokens: int, widths: Widths = NONE
) -> Bytes:
    """What all layers take more than in fp16. Raises MethodError where a method cannot store a layer's heads."""
    total = Bytes()
    for part in plan:
        for kind, count in Counter(shape.kinds[layer] for layer in part.layers).items():
            own = part_bytes(part, kind, prompt, tokens, widths.get((part.number, part.tensor)))
            total = Bytes(*(a + count * b for a, b in zip(total, own, strict=True)))
    return total


def tensor_bytes(lane: Lane, tensor: Tensor, kind: LayerKind, tokens: int) -> int:
    """Of keys, or of values, of one layer by itself, of a prompt of ``tokens``. Raises MethodError."""
    shape = ModelShape.of_layers((kind,), kind.kv_heads, 0)
    plain = FP16 * kind.tokens(tokens) * kind.kv_heads * (kind.key_dim if tensor == "keys" else kind.value_dim)
    own = plan_bytes(tuple(part for part in plan_on(lane, shape) if part.tensor == tensor), shape, tokens, tokens)
    return plain + _whole(own.block + own.once)


def part_bytes(
    part: Assignment, kind: LayerKind, prompt: int, tokens: int, width: MeasuredWidth | None = None
) -> Bytes:
    """What a layer of the kind takes more than in fp16, by one rule and tensor, at the ``width`` that a run measured
    where that is given. Raises MethodError."""
    held, at = kind.tokens(tokens), TENSORS.index(part.tensor)
    dims = (kind.key_dim, kind.value_dim)
    if not dims[at]:
        return Bytes()
    if reason := part.method.why_not(_of_one(kind, dims[at])):
        raise MethodError(f"{part.method.name}: {reason}.")
    total, packed, streams = Bytes(), 0, 0
    for start, count, times, later in part.blocks(min(prompt, held), held):
        packed += count * times
        streams += not later and part.beside
        if part.method.quantizes:
            new = Encoded(part.method, at, kind.kv_heads, dims, prompt, start, count, later)
            own = new.bytes() if width is None else width.bytes(at, kind.kv_heads, dims[at], count)
            total = Bytes(total.block + own.block * times, own.once, 0.0, total.host + own.host * times)
    total = total._replace(model=float(learned_bytes(part.method, at, kind.kv_heads, dims)))
    if not packed:
        return total
    spared = FP16 * kind.kv_heads * dims[at] * packed
    if not part.method.quantizes:
        return Bytes(float(spared))
    once = (total.once + (_before_codec(part, kind) if at == 0 else 0)) * max(streams, 1)
    return total._replace(block=total.block - (0 if part.beside else spared), once=once)


def _before_codec(part: Assignment, kind: LayerKind) -> int:
    """Of what stands between a layer's keys and their codec: a constant, scales."""
    return part.rule.transforms.stored_bytes(_of_one(kind, kind.key_dim))


def _of_one(kind: LayerKind, dim: int) -> ModelShape:
    """A layer of the kind by itself."""
    return ModelShape(1, kind.kv_heads, kind.kv_heads, dim, 0)


def _learned(method: Method, model: ModelRef | None) -> str:
    own = model is not None and not method.lacks(model)
    return f"{method.name}: {method.learned}, {'of the model' if own else 'by formula'}"


def _whole(size: float) -> int:
    """Bytes of a sum of fractions that is whole but for its rounding."""
    return math.ceil(size - 1e-6)
