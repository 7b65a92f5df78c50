"""What engines set aside for a cache: pages, padding, what sliding layers are given, pages of states."""

import math
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Literal

from kvq_core.frozen import Frozen
from kvq_core.shape import LayerKind, ModelShape
from kvq_core.sizing.formats import FormatBits
from kvq_core.sizing.layers import SHIPPED

ALIGNED = 16  # tokens that vLLM's page of attention beside states is a multiple of
NEAR = 1.5  # kinds of layers whose counts are closer than that are one group's size in vLLM, the larger count's
Stack = Counter[LayerKind]  # layers by what they hold


class EngineReserve(Frozen):
    """How an engine sets aside memory. ``block``: tokens of a page, or that cells are padded to; ``windows``: what
    layers with a window are given: pages of a window and of the tokens in flight, all tokens (whole), or cells of a
    window and of ``chunk`` new tokens in the families that its code windows, some with that many layers alone; None, or
    a family that is not there: not known. ``batched_tokens``: new tokens that it reads at once, by the GiB that a card
    has at least, and ``batches`` of them in flight; ``states``: how it holds states, None where that is not known;
    ``latent``: its words of the formats that it has for MLA, None: all; ``tensors``: it takes what its tensors do."""

    version: str
    block: int
    windows: Literal["pages", "whole"] | dict[str, bool | int] | None = None
    chunk: int = 0
    batched_tokens: tuple[tuple[int, int], ...] = ()
    batches: int = 1
    states: Literal["pages", "float32"] | None = None
    latent: tuple[str, ...] | None = None
    tensors: bool = False
    evidence: tuple[str, ...] = ()

    def reads_at_once(self, memory: int | None) -> int | None:
        """New tokens, on a card with so many bytes, one of the smallest where that is not known; None where what it
        sets aside does not hang on them."""
        card = (memory or 0) / 2**30
        return next((tokens for least, tokens in self.batched_tokens if card >= least), None)

    def in_windows(self, shape: ModelShape) -> bool | None:
        """Whether its layers with a window hold no more than that; None where that is not known."""
        if not isinstance(self.windows, dict):
            return None if self.windows is None else self.windows == "pages"
        found = self.windows.get(shape.architecture)
        return found if found is None or isinstance(found, bool) else found == shape.layers


class Allowance(Frozen):
    """What is neither weights nor cache: ``bytes``, and a ``share`` of the memory."""

    bytes: int
    share: float
    evidence: str

    def left(self, memory: int) -> int:
        """Of a memory, what weights and cache may take."""
        return int(memory * (1 - self.share)) - self.bytes


@cache
def engines() -> dict[str, EngineReserve]:
    return {name: EngineReserve.model_validate(each) for name, each in _data()["engine"].items()}


@cache
def allowance() -> Allowance:
    return Allowance.model_validate(_data()["allowance"])


def _data() -> dict[str, dict[str, dict[str, object]]]:
    return tomllib.loads((SHIPPED / "engines.toml").read_text(encoding="utf-8"))


def reserved_bytes(
    name: str, format: FormatBits, stack: Stack, shape: ModelShape, context: int, batch: int, batched: int | None
) -> int | None:
    """Bytes that an engine sets aside for ``batch`` sequences of ``context`` tokens, where it reads ``batched`` new
    ones at once, None: as many as on a small card; None where it is not known how it holds one of the layers."""
    engine, held = engines()[name], [layer for layer in stack if layer.elements]
    states = [layer for layer in stack if layer.recurrent or layer.conv]
    if engine.latent is not None and any(layer.kind == "latent" for layer in held):
        if format.engines[name] not in engine.latent:
            return None
    windowed = any(layer.window is not None for layer in held)
    in_windows = engine.in_windows(shape) if windowed else False
    if (states and engine.states is None) or in_windows is None:
        return None
    token = _token_bytes(format, stack)
    if engine.windows == "pages":
        flight = engine.batches * (batched or engine.reads_at_once(None) or 0)
        return batch * _paged(engine.block, stack, token, context, flight, shape.dtype_bytes)
    each = sum(stack[layer] * token(layer) * _cells(engine, layer, in_windows, context) for layer in held)
    return batch * math.ceil(each + sum(stack[layer] * _state_bytes(layer) for layer in states))


def _token_bytes(format: FormatBits, stack: Stack) -> Callable[[LayerKind], float]:
    """Of a token in a layer; of a format that keeps boundary layers, what those of its kind take on the mean."""
    kept = 2 * format.boundary / max(1, sum(stack.values()))
    has_states = any(layer.recurrent or layer.conv for layer in stack)
    share = 0.0 if has_states else min(1.0, kept)  # vLLM keeps no boundary layers of hybrids
    return lambda layer: share * layer.elements * 2.0 + (1 - share) * format.token_bytes(layer)


def _cells(engine: EngineReserve, layer: LayerKind, in_windows: bool, context: int) -> int:
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
    block: int, stack: Stack, token: Callable[[LayerKind], float], context: int, flight: int, dtype_bytes: int
) -> int:
    """vLLM's pages (v1/core/kv_cache_planning.py:346-545): all as large as the largest layer's or a state's. Layers are
    held in groups of one size; a kind with fewer than a group has is filled up."""
    held = [layer for layer in stack if layer.elements]
    hold = sum(count for layer, count in stack.items() if layer.recurrent or layer.conv)
    state = max((dtype_bytes * (_incoming(layer) + layer.recurrent) for layer in stack), default=0)
    if not held:
        return hold * state
    if not state and len({_end(layer) for layer in held}) == 1:  # one group, of pages of their own sizes
        each = sum(stack[layer] * token(layer) for layer in held)
        return math.ceil(each * block * _pages(_end(held[0]), block, context, flight))
    largest = max(token(layer) for layer in held)
    block = page_tokens(state, largest) if state else block
    kinds: Counter[tuple[int | None, int]] = Counter()  # layers, by their window and the tokens of a page
    for layer in held:
        times = largest / token(layer)
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
