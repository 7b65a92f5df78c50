"""A lane as one format of all layers, which is what engines set memory aside for."""

from collections.abc import Sequence

from kvq_core.engines import engines
from kvq_core.methods import ModelShape, Window
from kvq_core.sizing.fit import Cache
from kvq_core.sizing.formats import FormatBits
from kvq_core.sizing.stored import encoded_bits
from kvq_core.spec import TENSORS, Assignment, Tensor


def reserved_in(
    engine: str, name: str, plan: Sequence[Assignment], shape: ModelShape, tokens: int, batch: int, memory: int | None
) -> int | None:
    """Bytes that an engine sets aside for ``batch`` sequences of ``tokens`` tokens on a card with so many bytes of
    ``memory``, None: a small one; None where it is not known how, or layers or tokens differ in the plan. Raises
    MethodError where a method cannot store a layer's heads."""
    found = _format(engine, name, plan, shape)
    batched = engines()[engine].reads_at_once(memory)
    return None if found is None else Cache.of(found, shape).reserved(engine, tokens, batch, batched)


def _format(engine: str, name: str, plan: Sequence[Assignment], shape: ModelShape) -> FormatBits | None:
    by_tensor = {part.tensor: part for part in plan}
    last = len(shape.kinds)
    boundary = {(part.layers[0], last - 1 - part.layers[-1]) for part in plan}
    whole = all(part.layers == tuple(range(part.layers[0], part.layers[-1] + 1)) for part in plan)
    plain = all(part.rule.tokens == "all" and not part.rule.spans for part in plan)
    if not by_tensor or len(by_tensor) < len(plan) or len(boundary) > 1 or not (whole and plain):
        return None
    (ends,) = boundary
    kept = {0 if shape.stateful else len(part.method.kept_layers(last)) // 2 for part in plan}
    if kept != {ends[0]} or ends[0] != ends[1]:
        return None
    first = plan[0].method
    told = {"name": name, "method": first.name, "knobs": {}, "engines": {engine: first.cache_types.get(engine, "")}}
    windows = [_window(by_tensor[t].window) if t in by_tensor else (0, 0, 1, False) for t in TENSORS]
    bits = {dim: _bits(by_tensor, dim) for kind in shape.kinds for dim in (kind.key_dim, kind.value_dim) if dim}
    return FormatBits.model_validate({**told, "windows": windows, "boundary": ends[0], "bits": bits})


def _bits(parts: dict[Tensor, Assignment], dim: int) -> tuple[float, float]:
    """Of an encoded element of keys and of values."""
    own = ((at, parts.get(tensor)) for at, tensor in enumerate(TENSORS))
    keys, values = (16.0 if part is None else encoded_bits(part.method, at, dim, part.window) for at, part in own)
    return keys, values


def _window(window: Window) -> tuple[int, int, int, bool]:
    return window.sink, window.recent, window.step or 1, window.whole_prompt
