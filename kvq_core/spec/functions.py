"""A function as a lane, for Python."""

from kvq_core.methods.function import Function, declare
from kvq_core.spec.lane import Lane


def from_function(
    function: Function,
    bits: float | tuple[float, float],
    name: str | None = None,
    tokens: int = 1,
    together: bool = False,
) -> Lane:
    """A lane that stores what a function ``(keys, values) -> (keys, values)`` gives, its bits declared, not counted.

    The function gets float32 tensors (layers, kv_heads, tokens, head_dim), keys after RoPE, and gives two of the same
    shape: what attention reads. ``layers`` are those of the lane that one device holds. It is called for the prompt's
    tokens at once, then for every ``tokens`` that are generated; fewer wait in fp16. Keys and values are stored apart:
    it may be given the keys twice, or the values twice, and one of the two it gives is left. ``together``: it gets keys
    and values of the prompt at once, and what is generated stays in fp16.

    ``bits`` of an element, metadata included, or (keys, values): sizes are computed from them, and marked wherever they
    are shown. ``name``: of the method and of the lane, the function's where none is given; a number is put behind one
    that is another function's. The same function is the same lane.

    Raises SpecError for arguments that cannot be. A function that raises, gives another shape or no numbers fails its
    lane when it runs.
    """
    cls = declare(function, bits, name, tokens, together)
    return Lane(label=cls.name, method=cls.name)
