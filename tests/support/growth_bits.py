"""Bits of a key and of a value element of a lane, as its growth tells them for any context."""

from kvq_core.analysis.context_growth import Growth
from kvq_core.methods import ModelShape
from kvq_core.spec import TENSORS


def effective_bits(growth: Growth, shape: ModelShape, tokens: int) -> tuple[float | None, ...]:
    """Of keys and of values, everything counted, of a prompt of ``tokens``; None where unknown."""
    return tuple(growth.tensor_bits(tensor, shape, tokens) for tensor in TENSORS)
