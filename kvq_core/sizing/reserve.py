"""What engines set aside for a cache: pages, padding, what sliding layers are given, pages of states."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from kvq_core.engines import Engine, engine_data, engines
from kvq_core.frozen import Frozen
from kvq_core.shape import LayerKind, ModelShape
from kvq_core.sizing.stored import token_bytes
from kvq_core.spec import TENSORS, Assignment, Tensor

ALIGNED = 16  # tokens that vLLM's page of attention beside states is a multiple of
NEAR = 1.5  # kinds of layers whose counts are closer than that are one group's size in vLLM, the larger count's
Stack = Counter[LayerKind]  # layers by what they hold


class Allowance(Frozen):
    """What is neither weights nor cache: ``bytes``, and a ``share`` of the memory."""

    bytes: int
    share: float
    evidence: str

    def left(self, memory: int) -> int:
        """Of a memory, what weights and cache may take."""
        return int(memory * (1 - self.share)) - self.bytes


@cache
def allowance() -> Allowance:
    return Allowance.model_validate(engine_data()["allowance"])


def pages(plan: Sequence[Assignment], shape: ModelShape) -> dict[LayerKind, float] | None:
    """Bytes of a token in each kind of layer that keeps any, as a page of an engine holds it; where layers at both ends
    stay fp16, what those of a kind take on the mean. None where layers or tokens differ otherwise, as no engine has
    them. Raises MethodError where a method cannot store a layer's heads."""
    held = [layer for layer, kind in enumerate(shape.kinds) if kind.elements]
    parts, ends = {part.tensor: part for part in plan}, 0
    if plan:
        whole = not shape.stateful and len(held) == shape.layers
        ends = len(plan[0].method.kept_layers(shape.layers)) // 2 if whole else 0
        same = all(part.layers == tuple(held[ends : len(held) - ends]) for part in plan)
        every = all(part.rule.tokens == "all" for part in plan)
        if not same or not every or len(parts) < len(plan):
            return None
    kept = 2 * ends / max(1, len(held))
    kinds = {kind for kind in shape.kinds if kind.elements}
    return {kind: kept * kind.elements * 2.0 + (1 - kept) * _token_bytes(parts, kind) for kind in kinds}


def _token_bytes(parts: Mapping[Tensor, Assignment], kind: LayerKind) -> float:
    """A key that only chooses tokens stays as it is."""
    dims, total = (kind.key_dim, kind.value_dim), 2.0 * kind.index_dim
    for at, tensor in enumerate(TENSORS):
        if (part := parts.get(tensor)) is None or not part.method.quantizes or not dims[at]:
            total += 2.0 * kind.kv_heads * dims[at]
        else:
            total += token_bytes(part.method, at, kind.kv_heads, dims, part.window)
    return total


def reserved_bytes(
    name: str,
    words: set[str],
    token: Mapping[LayerKind, float],
    shape: ModelShape,
    context: int,
    batch: int,
    batched: int | None,
) -> int | None:
    """Bytes that an engine, which calls the formats ``words``, sets aside for ``batch`` sequences of ``context`` tokens
    of so many bytes (``pages``), where it reads ``batched`` new ones at once, None: as many as on a small card; None
    where it is not known how it holds one of the layers."""
    engine, stack = engines()[name], Counter(shape.kinds)
    held = [layer for layer in stack if layer.elements]
    states = [layer for layer in stack if layer.recurrent or layer.conv]
    if engine.latent is not None and any(layer.kind == "latent" for layer in held):
        if not words <= set(engine.latent):
            return None
    windowed = any(layer.window is not None for layer in held)
    in_windows = engine.in_windows(shape) if windowed else False
    if (states and engine.states is None) or in_windows is None:
        return None
    if engine.windows == "pages":
        flight = engine.batches * (batched or engine.reads_at_once(None) or 0)
        return batch * _paged(engine.block, stack, token, context, flight, shape.dtype_bytes)
    each = sum(stack[layer] * token[layer] * _cells(engine, layer, in_windows, context) for layer in held)
    return batch * math.ceil(each + sum(stack[layer] * _state_bytes(layer) for layer in states))


def _cells(engine: Engine, layer: LayerKind, in_windows: bool, context: int) -> int:
    """Tokens that a layer is given room for."""
    whole = _padded(context, engine.block)
    if layer.window is None or not in_windows:
        return whole
    return min(whole, _padded(layer.window + engine.chunk, engine.block))


def _state_bytes(layer: LayerKind) -> int:
    """llama.cpp holds both states in float32, and the convolution's without the token that comes in."""
    return 4 * (_incoming(layer) + layer.recurrent)


def _incoming(layer: LayerKind) -> int:
    """Elements of a convolution's state without the newest token's."""
    return layer.conv // layer.conv_width * (layer.conv_width - 1) if layer.conv else 0


def _paged(
    block: int, stack: Stack, token: Mapping[LayerKind, float], context: int, flight: int, dtype_bytes: int
) -> int:
    """vLLM's pages (v1/core/kv_cache_planning.py:346-545): all as large as the largest layer's or a state's. Layers are
    held in groups of one size; a kind with fewer than a group has is filled up."""
    held = [layer for layer in stack if layer.elements]
    hold = sum(count for layer, count in stack.items() if layer.recurrent or layer.conv)
    state = max((dtype_bytes * (_incoming(layer) + layer.recurrent) for layer in stack), default=0)
    if not held:
        return hold * state
    if not state and len({_end(layer) for layer in held}) == 1:  # one group, of pages of their own sizes
        each = sum(stack[layer] * token[layer] for layer in held)
        return math.ceil(each * block * _pages(_end(held[0]), block, context, flight))
    largest = max(token[layer] for layer in held)
    block = page_tokens(state, largest) if state else block
    kinds: Counter[tuple[int | None, int]] = Counter()  # layers, by their window and the tokens of a page
    for layer in held:
        times = largest / token[layer]
        kinds[_end(layer), block * int(times) if times.is_integer() else block] += stack[layer]
    groups = [(count, _pages(end, tokens, context, flight)) for (end, tokens), count in kinds.items()]
    groups += [(hold, 1)] if state else []
    small, large = min(groups)[0], max(groups)[0]
    size = large if large < NEAR * small else small
    return math.ceil(sum(_padded(count, size) * pages for count, pages in groups) * block * largest)


def _end(layer: LayerKind) -> int | None:
    """The window of a layer in vLLM, which gives chunked layers all tokens by default (config/vllm.py:2236-2256)."""
    return layer.window if layer.kind == "sliding" else None


def _pages(window: int | None, block: int, context: int, flight: int) -> int:
    """Of a sequence; a window may begin within a page (v1/kv_cache_interface.py:918-943)."""
    tokens = context if window is None else min(window - 1 + flight, context)
    return math.ceil(tokens / block) + (window is not None)


def page_tokens(state: int, token: float) -> int:
    """Tokens of vLLM's page of attention beside states of so many bytes."""
    return ALIGNED * math.ceil(state / (ALIGNED * token))


def _padded(count: int, step: int) -> int:
    return math.ceil(count / step) * step
