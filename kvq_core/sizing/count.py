"""What a lane's cache takes, before anything has run: the one counter of planned bytes. A run's ``memory`` counts the
same in the tensors that it holds."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from kvq_core.engines import engines
from kvq_core.errors import MethodError
from kvq_core.methods import LayerKind, Method, ModelRef, ModelShape
from kvq_core.sizing.reserve import pages, reserved_bytes
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


@dataclass(frozen=True)
class ServedBy:
    """An engine, one of ``engines``, on a card with so many bytes of ``memory``, None: a small one. ``batched_tokens``:
    new tokens that it reads at once, None: as many as it does by itself on such a card."""

    engine: str
    memory: int | None = None
    batched_tokens: int | None = None

    @property
    def at_once(self) -> int | None:
        """New tokens read at once; None where what the engine sets aside does not hang on them."""
        own = engines()[self.engine].reads_at_once(self.memory)
        return own and (self.batched_tokens or own)


@dataclass(frozen=True)
class CacheAt:
    """A cache once ``tokens`` have entered, the first ``prompt`` of them together, on a model's shape."""

    shape: ModelShape
    prompt: int
    tokens: int


@dataclass(frozen=True)
class PlannedCache:
    """A lane on a model's shape, planned once and counted at any length. Layers that hold a latent in place of keys and
    values are quantized as full ones. ``widths``: those that a run measured; ``model``: whose learned data is meant,
    where it is known."""

    lane: Lane
    shape: ModelShape
    widths: Widths = field(default_factory=dict)
    model: ModelRef | None = None

    @cached_property
    def plan(self) -> tuple[Assignment, ...]:
        held = [layer for layer, kind in enumerate(self.shape.kinds) if kind.elements]
        return self.lane.plan_of(held, self.shape.windowed, self.shape.stateful)

    def bytes(self, prompt: int, tokens: int, batch: int = 1, served: ServedBy | None = None) -> CacheBytes | NotKnown:
        """Of ``batch`` sequences of ``tokens`` tokens each, the first ``prompt`` of which entered together and the
        others one by one. Layers with a window hold the tokens in it."""
        try:
            more = self.more(prompt, tokens)
            tensors = self._tensors(more, tokens, batch)
            reserved = None if served is None else self.reserved(served, tokens, batch)
        except MethodError as error:
            return NotKnown(str(error))
        methods = list(dict.fromkeys(part.method for part in self.plan))
        return CacheBytes(
            tensors,
            shared=round(more.model),
            host_copy=batch * _whole(more.host),
            reserved=reserved,
            from_data=tuple(dict.fromkeys(f"{m.name}: {m.from_data}" for m in methods if m.from_data)),
            learned=tuple(dict.fromkeys(_learned(m, self.model) for m in methods if m.learned)),
        )

    def reserved(self, served: ServedBy, tokens: int, batch: int) -> int | None:
        """Bytes that an engine sets aside for so many prompts; None where it is not known how, or layers or tokens
        differ in the plan. Raises MethodError."""
        if self._pages is None:
            return None
        if engines()[served.engine].tensors:
            return self._tensors(self.more(tokens, tokens), tokens, batch)
        words = {part.method.cache_types.get(served.engine, "") for part in self.plan}
        return reserved_bytes(served.engine, words, self._pages, self.shape, tokens, batch, served.at_once)

    def _tensors(self, more: Bytes, tokens: int, batch: int) -> int:
        return batch * (fp16_bytes(self.shape, tokens) + self._states + _whole(more.block + more.once))

    def more(self, prompt: int, tokens: int) -> Bytes:
        """What all layers take more than in fp16. Raises MethodError where a method cannot store a layer's heads."""
        total = Bytes()
        for part, kind, count in self._parts:
            own = _part_bytes(part, kind, prompt, tokens, self.widths.get((part.number, part.tensor)))
            total = Bytes(*(a + count * b for a, b in zip(total, own, strict=True)))
        return total

    def bits(self, prompt: int, tokens: int) -> float:
        """An element of keys and values together, of the layers that the lane can quantize: full-precision windows,
        layers that stay fp16 among them, and what is stored once a layer are counted. A run's ``memory`` counts the
        same in real tensors. Raises MethodError."""
        elements, more = self.elements(tokens), self.more(prompt, tokens)
        return 8 * FP16 + 8 * (more.block + more.once) / elements if elements else 8.0 * FP16

    def elements(self, tokens: int) -> int:
        """Of keys and values that the lane can quantize."""
        kinds = [self.shape.kinds[layer] for layer in (self.shape.keyed if self._sliding else self.shape.full)]
        return sum(kind.tokens(tokens) * kind.kv_heads * (kind.key_dim + kind.value_dim) for kind in kinds)

    @cached_property
    def _sliding(self) -> bool:
        """Whether it quantizes layers with a window, too."""
        return any(rule.sliding for rule in self.lane.every_rule)

    @cached_property
    def _states(self) -> int:
        return self.shape.dtype_bytes * sum(kind.conv + kind.recurrent for kind in self.shape.kinds)

    @cached_property
    def _parts(self) -> tuple[tuple[Assignment, LayerKind, int], ...]:
        """What each rule stores of a kind of layers, and how many there are. Raises MethodError where it cannot."""
        kinds = self.shape.kinds
        counted = ((part, Counter(kinds[layer] for layer in part.layers)) for part in self.plan)
        found = tuple((part, kind, count) for part, held in counted for kind, count in held.items())
        for part, kind, _ in found:
            dim = _dims(kind)[TENSORS.index(part.tensor)]
            if dim and (reason := part.method.why_not(_of_one(kind, dim))):
                raise MethodError(f"{part.method.name}: {reason}.")
        return found

    @cached_property
    def _pages(self) -> Mapping[LayerKind, float] | None:
        return pages(self.plan, self.shape)


def cache_bytes(
    lane: Lane,
    shape: ModelShape,
    prompt: int,
    tokens: int,
    batch: int = 1,
    served: ServedBy | None = None,
    model: ModelRef | None = None,
    widths: Widths = NONE,
) -> CacheBytes | NotKnown:
    """``PlannedCache.bytes`` of a lane at one length."""
    return PlannedCache(lane, shape, widths, model).bytes(prompt, tokens, batch, served)


def fp16_bytes(shape: ModelShape, tokens: int) -> int:
    """Of keys and values in fp16 of what each layer keeps of a context, states left out."""
    return sum(FP16 * kind.elements * kind.tokens(tokens) for kind in shape.kinds)


def tensor_bytes(lane: Lane, tensor: Tensor, kind: LayerKind, tokens: int) -> int:
    """Of keys, or of values, of one layer by itself, of a prompt of ``tokens``. Raises MethodError."""
    shape = ModelShape.of_layers((kind,), kind.kv_heads, 0)
    plain = FP16 * kind.tokens(tokens) * kind.kv_heads * _dims(kind)[TENSORS.index(tensor)]
    parts = [part for part in PlannedCache(lane, shape).plan if part.tensor == tensor]
    own = [_part_bytes(part, kind, tokens, tokens) for part in parts]
    return plain + _whole(sum(each.block + each.once for each in own))


def _part_bytes(
    part: Assignment, kind: LayerKind, prompt: int, tokens: int, width: MeasuredWidth | None = None
) -> Bytes:
    """What a layer of the kind takes more than in fp16, by one rule and tensor, at the ``width`` that a run measured
    where that is given. Raises MethodError."""
    held, at, dims = kind.tokens(tokens), TENSORS.index(part.tensor), _dims(kind)
    if not dims[at]:
        return Bytes()
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


def _dims(kind: LayerKind) -> tuple[int, int]:
    return kind.key_dim, kind.value_dim


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
