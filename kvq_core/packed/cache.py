"""The packed cache as a library: for ``model.generate(past_key_values=...)``."""

from typing import TYPE_CHECKING, Any

from kvq_kernels import Path

from kvq_core.errors import MethodError, ModelError
from kvq_core.methods import Method, ModelShape, Window
from kvq_core.models.load import shape_of
from kvq_core.models.support import check_config, check_model, window_of
from kvq_core.packed.layer import PackedLayer

if TYPE_CHECKING:
    from kvq_core.models.packed_cache import TicketCache


def packed_cache(model: Any, method: Method, path: Path = "auto") -> "TicketCache":
    """An empty packed cache for one call of ``model.generate``, a transformers model with RoPE and full attention.

    Switches the model to the attention ``kvq_packed``, which behaves as ``sdpa`` with every other cache. All rows of a
    batch must be equally long. ``path``: "auto" runs Triton on GPUs and plain torch elsewhere. Raises ModelError or
    MethodError where the two do not go together.
    """
    from kvq_core.models.packed_cache import PACKED, TicketCache, register_packed

    check_config(model.config)
    check_model(model)
    if window_of(model.config) is not None:
        raise ModelError(f"{model.config.model_type} attends through a sliding window, which a packed cache has not.")
    layers = packed_layers(method, shape_of(model.config), method.windows(), path)
    register_packed()
    model.set_attn_implementation(PACKED)
    return TicketCache(list(layers))


def packed_layers(
    method: Method, shape: ModelShape, windows: tuple[Window, Window], path: Path, room: int = 0
) -> list[PackedLayer]:
    """Empty layers of a model. Raises MethodError where the method has no packed execution on it."""
    reason = method.why_not(shape)
    if reason is None and not method.quantizes:
        reason = "it quantizes nothing"
    if reason is None and method.key_space == "pre":
        reason = "it stores keys before RoPE, and the fused attention reads keys after it"
    if reason is None and windows[0].sink != windows[1].sink:
        reason = "keys and values keep different numbers of sink tokens"
    if reason is not None:
        raise MethodError(f"{method.title} has no packed execution here: {reason}.")
    return [PackedLayer(method, windows, path, room) for _ in range(shape.layers)]
