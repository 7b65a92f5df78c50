"""The packed cache as a library: for ``model.generate(past_key_values=...)``."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from kvq_kernels import Path

from kvq_core.errors import MethodError, ModelError
from kvq_core.methods import Method, ModelRef, Window
from kvq_core.models.load import LoadedModel, shape_of
from kvq_core.models.support import check_config, check_model, window_of
from kvq_core.packed.dense import DenseLayer
from kvq_core.packed.layer import PackedLayer, Plan
from kvq_core.packed.turns import Turns

if TYPE_CHECKING:
    from kvq_core.models.packed_cache import TicketCache


def packed_cache(model: Any, method: Method, path: Path = "auto") -> "TicketCache":
    """An empty packed cache for one call of ``model.generate``, a transformers model with RoPE and full attention.

    A model of ``kvq_core.models.load`` may be given itself, which methods with learned data ask for. Switches the model
    for good to the attention ``kvq_packed``, which behaves as ``sdpa`` with every other cache; comparisons do not feel
    it. All rows of a batch must be equally long. ``path``: "auto" runs Triton on GPUs and plain torch elsewhere. Raises
    ModelError or MethodError where the two do not go together.
    """
    from kvq_core.models.packed_cache import PACKED, TicketCache, register_packed

    inner, ref = (model.model, model.ref) if isinstance(model, LoadedModel) else (model, None)
    check_config(inner.config)
    check_model(inner)
    if window_of(inner.config) is not None:
        raise ModelError(f"{inner.config.model_type} attends through a sliding window, which a packed cache has not.")
    layers = packed_layers(method, inner, method.windows(), path, ref=ref)
    register_packed()
    inner.set_attn_implementation(PACKED)
    return TicketCache(list(layers))


def packed_layers(
    method: Method, model: Any, windows: tuple[Window, Window], path: Path, room: int = 0, ref: ModelRef | None = None,
    layers: Collection[int] | None = None,
) -> list[PackedLayer | DenseLayer]:  # fmt: skip
    """Empty layers for a transformers model: packed ones, and where ``layers`` are named the others in float16.

    Raises MethodError where the method has no packed execution on the model.
    """
    shape = shape_of(model)
    reason = method.why_not(shape)
    if reason is None and not method.quantizes:
        reason = "it quantizes nothing"
    if reason is not None:
        raise MethodError(f"{method.title} has no packed execution here: {reason}.")
    turns = Turns(model, max(1024, room)) if method.key_space == "pre" else None
    plan = Plan(method, windows, path, turns, ref, room, shape.scaling)
    chosen = range(shape.layers) if layers is None else layers
    return [
        PackedLayer(plan, index, len(chosen)) if index in chosen else DenseLayer(torch.float16, room)
        for index in range(shape.layers)
    ]
