"""What a lane's cache takes, before anything has run: the one counter of planned bytes. A run's ``memory`` counts the
same in the tensors that it holds."""

import math
from collections import Counter
from dataclasses import dataclass

from kvq_core.errors import MethodError
from kvq_core.methods import LayerKind, ModelShape
from kvq_core.sizing.stored import Bytes, Encoded
from kvq_core.spec import TENSORS, Assignment, Lane

FP16 = 2  # bytes


@dataclass(frozen=True)
class NotKnown:
    """Why bytes cannot be told."""

    reason: str


@dataclass(frozen=True)
class CacheBytes:
    """``tensors``: bytes of keys, values and states of all sequences, full-precision windows and what is stored once a
    layer among them; ``shared``: of what belongs to the model, such as codebooks, once whatever the sequences;
    ``host_copy``: in the host's memory. ``from_data``: widths that follow from a prompt's numbers, here from random
    ones; ``by_formula``: learned data whose bytes follow from knobs and shape."""

    tensors: int
    shared: int = 0
    host_copy: int = 0
    from_data: tuple[str, ...] = ()
    by_formula: tuple[str, ...] = ()


def cache_bytes(lane: Lane, shape: ModelShape, prompt: int, tokens: int, batch: int = 1) -> CacheBytes | NotKnown:
    """Of ``batch`` sequences of ``tokens`` tokens each, the first ``prompt`` of which entered together and the others
    one by one. Layers with a window hold the tokens in it."""
    plan = plan_on(lane, shape)
    whole = sum(FP16 * kind.elements * kind.tokens(tokens) for kind in shape.kinds)
    states = shape.dtype_bytes * sum(kind.conv + kind.recurrent for kind in shape.kinds)
    total = Bytes()
    try:
        for part in plan:
            for kind, count in Counter(shape.kinds[layer] for layer in part.layers).items():
                total = _sum(total, part_bytes(part, kind, prompt, tokens), count)
    except MethodError as error:
        return NotKnown(str(error))
    methods = [part.method for part in plan]
    return CacheBytes(
        batch * math.ceil(whole + states + total.block + total.once - 1e-6),
        shared=round(total.model),
        host_copy=batch * math.ceil(total.host - 1e-6),
        from_data=tuple(dict.fromkeys(f"{m.name}: {m.from_data}" for m in methods if m.from_data)),
        by_formula=tuple(dict.fromkeys(f"{m.name}: {m.learned}" for m in methods if m.learned)),
    )


def plan_on(lane: Lane, shape: ModelShape) -> tuple[Assignment, ...]:
    """The lane's plan for a shape; layers that hold a latent in place of keys and values are quantized as full ones."""
    held = [layer for layer, kind in enumerate(shape.kinds) if kind.elements]
    return lane.plan_of(held, shape.windowed, shape.stateful)


def part_bytes(part: Assignment, kind: LayerKind, prompt: int, tokens: int) -> Bytes:
    """What a layer of the kind takes more than in fp16, by one rule and tensor. Raises MethodError."""
    held, at = kind.tokens(tokens), TENSORS.index(part.tensor)
    dims = (kind.key_dim, kind.value_dim)
    if not dims[at]:
        return Bytes()
    total, packed, streams = Bytes(), 0, 0
    fitted = tokens if part.window.rewritten else prompt  # what is stored anew is as of a prompt of all of them
    for start, count, times, later in part.blocks(min(prompt, held), held):
        packed += count * times
        streams += not later and part.beside
        if part.method.quantizes:
            own = Encoded(part.method, at, kind.kv_heads, dims, fitted, start, count, later).bytes()
            total = Bytes(total.block + own.block * times, own.once, own.model, total.host + own.host * times)
    if not packed:
        at_rest = Encoded(part.method, at, kind.kv_heads, dims, prompt, 0, part.window.step or 1, True)
        return Bytes(model=at_rest.bytes().model if part.method.learned else 0.0)
    spared = FP16 * kind.kv_heads * dims[at] * packed
    if not part.method.quantizes:
        return Bytes(float(spared))
    centre = part.rule.center_bytes(ModelShape(1, kind.kv_heads, kind.kv_heads, dims[0], 0)) if at == 0 else 0
    once = (total.once + centre) * max(streams, 1)
    return total._replace(block=total.block - (0 if part.beside else spared), once=once)


def _sum(total: Bytes, own: Bytes, count: int) -> Bytes:
    return Bytes(*(a + count * b for a, b in zip(total, own, strict=True)))
