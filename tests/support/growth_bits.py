"""Bits of a key and of a value element of a lane, as its growth tells them for any context."""

from kvq_core.analysis.context_growth import Growth
from kvq_core.errors import MethodError
from kvq_core.methods import ModelShape
from kvq_core.sizing.count import PlannedCache
from kvq_core.spec import TENSORS, Tensor


def effective_bits(growth: Growth, shape: ModelShape, tokens: int) -> tuple[float | None, ...]:
    """Of keys and of values, which have as many channels, of a prompt of ``tokens``; None where unknown."""
    return tuple(_of_one(growth, shape, tokens, tensor) for tensor in TENSORS)


def _of_one(growth: Growth, shape: ModelShape, tokens: int, tensor: Tensor) -> float | None:
    cache = PlannedCache(growth.lane, shape, growth.widths)
    vars(cache)["plan"] = tuple(part for part in cache.plan if part.tensor == tensor)
    try:
        both = cache.bits(tokens, tokens)
    except MethodError:
        return None
    return 16 + 2 * (both - 16)
