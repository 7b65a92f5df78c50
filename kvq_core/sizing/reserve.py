"""What engines set aside for a cache: pages, padding, sliding layers at full length, pages of states."""

import math
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Literal

from kvq_core.frozen import Frozen
from kvq_core.shape import LayerKind
from kvq_core.sizing.formats import FormatBits
from kvq_core.sizing.layers import SHIPPED

ALIGNED = 16  # tokens that vLLM's page of attention beside states is a multiple of
NEAR = 1.25  # kinds of layers whose counts are closer than that are one group's size in vLLM, the larger count's
Stack = Counter[LayerKind]  # layers by what they hold


class EngineReserve(Frozen):
    """How an engine sets aside memory. ``block``: tokens of a page, or that cells are padded to; ``chunk``: new tokens
    that a sliding layer holds beside its window, None where that is not known; ``unified``: sliding layers beside full
    ones take all tokens; ``states``: how it holds states, None where that is not known; ``latent``: its words of the
    formats that it has for MLA, None: all; ``tensors``: it takes what its tensors do."""

    version: str
    block: int
    chunk: int | None = None
    unified: bool = False
    states: Literal["pages", "float32"] | None = None
    latent: tuple[str, ...] | None = None
    tensors: bool = False
    evidence: tuple[str, ...] = ()


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
    name: str, format: FormatBits, stack: Stack, context: int, batch: int, dtype_bytes: int
) -> int | None:
    """Bytes that an engine sets aside for ``batch`` sequences of ``context`` tokens; None where it is not known how it
    holds one of the layers."""
    engine, held = engines()[name], [layer for layer in stack if layer.elements]
    states = [layer for layer in stack if layer.recurrent or layer.conv]
    if engine.latent is not None and any(layer.kind == "latent" for layer in held):
        if format.engines[name] not in engine.latent:
            return None
    if (states and engine.states is None) or (_windowed(held) and engine.chunk is None and not engine.unified):
        return None
    token = _token_bytes(format, engine, stack)
    if states and engine.states == "pages":
        return batch * _paged(stack, token, context, dtype_bytes)
    each = sum(stack[layer] * token(layer) * _cells(engine, layer, held, context) for layer in held)
    return batch * math.ceil(each + sum(stack[layer] * _state_bytes(layer) for layer in states))


def _token_bytes(format: FormatBits, engine: EngineReserve, stack: Stack) -> Callable[[LayerKind], float]:
    """Of a token in a layer. Pages of unified layers are as large as the largest one's; of a format that keeps boundary
    layers, a layer takes what those of its kind take on the mean."""
    kept = 2 * format.boundary / max(1, sum(stack.values()))
    has_states = any(layer.recurrent or layer.conv for layer in stack)

    def own(layer: LayerKind) -> float:
        plain = layer.elements * 2.0
        share = 0.0 if has_states else min(1.0, kept)  # vLLM keeps no boundary layers of hybrids
        return share * plain + (1 - share) * format.token_bytes(layer)

    if not engine.unified or not _windowed(stack):
        return own
    largest = max(own(layer) for layer in stack)
    return lambda layer: largest if layer.elements else 0.0


def _windowed(layers: "Stack | list[LayerKind]") -> bool:
    return any(layer.window is not None for layer in layers)


def _cells(engine: EngineReserve, layer: LayerKind, held: list[LayerKind], context: int) -> int:
    """Tokens that a layer is given room for."""
    whole = _padded(context, engine.block)
    mixed = any(other.window is None for other in held)
    if layer.window is None or (engine.unified and mixed):
        return whole
    spare = engine.block if engine.unified else 0  # a window may begin within a page
    return min(whole, _padded(layer.window + (engine.chunk or 0), engine.block) + spare)


def _state_bytes(layer: LayerKind) -> int:
    """llama.cpp holds both states in float32, and the convolution's without the token that comes in."""
    return 4 * (_incoming(layer) + layer.recurrent)


def _incoming(layer: LayerKind) -> int:
    """Elements of a convolution's state without the newest token's."""
    return layer.conv // layer.conv_width * (layer.conv_width - 1) if layer.conv else 0


def _paged(stack: Stack, token: Callable[[LayerKind], float], context: int, dtype_bytes: int) -> int:
    """vLLM's pages are alike for all layers: as large as a state, in whole multiples of 16 tokens; a layer with a state
    takes one, and a kind with fewer layers than the groups have room for is filled up."""
    attend = sum(count for layer, count in stack.items() if layer.elements)
    hold = sum(count for layer, count in stack.items() if layer.recurrent or layer.conv)
    state = max(dtype_bytes * (_incoming(layer) + layer.recurrent) for layer in stack)
    per_token = max((token(layer) for layer in stack if layer.elements), default=0.0)
    if not attend:
        return hold * state
    block = page_tokens(state, per_token)
    small, large = sorted((attend, hold))
    size = large if large < NEAR * small else small
    pages = _padded(attend, size) * math.ceil(context / block) + _padded(hold, size)
    return math.ceil(pages * block * per_token)


def page_tokens(state: int, token: float) -> int:
    """Tokens of vLLM's page of attention beside states of so many bytes."""
    return ALIGNED * math.ceil(state / (ALIGNED * token))


def _padded(count: int, step: int) -> int:
    return math.ceil(count / step) * step
