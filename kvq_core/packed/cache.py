"""The packed cache as a library: for ``model.generate(past_key_values=...)``."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from kvq_kernels import Path

from kvq_core.errors import MethodError, ModelError
from kvq_core.methods import Method, ModelRef, Window
from kvq_core.models.loader import LoadedModel
from kvq_core.models.probe import TOKENS, probe
from kvq_core.models.rope import Rotation
from kvq_core.models.shape import rope_of, shape_of
from kvq_core.models.support import check_config, check_model, window_of
from kvq_core.packed.dense import DenseLayer
from kvq_core.packed.layer import PackedLayer, Plan
from kvq_core.packed.rope_tables import Turns

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
    rotations = model.rotations if isinstance(model, LoadedModel) and method.key_space == "pre" else None
    layers = packed_layers(method, inner, method.windows(), path, ref=ref, rotations=rotations)
    register_packed()
    inner.set_attn_implementation(PACKED)
    return TicketCache(list(layers))


def packed_layers(
    method: Method,
    model: Any,
    windows: tuple[Window, Window],
    path: Path,
    room: int = 0,
    ref: ModelRef | None = None,
    layers: Collection[int] | None = None,
    rotations: tuple[Rotation, ...] | None = None,
) -> list[PackedLayer | DenseLayer]:
    """Empty layers for a transformers model: packed ones, and where ``layers`` are named the others in float16.
    ``rotations``: how its layers rotate their keys, looked at here where it is not given and matters.

    Raises MethodError where the method has no packed execution on the model.
    """
    shape = shape_of(model)
    reason = method.why_not(shape)
    if reason is None and not method.quantizes:
        reason = "it quantizes nothing"
    if reason is not None:
        raise MethodError(f"{method.title} has no packed execution here: {reason}.")
    chosen = range(shape.layers) if layers is None else layers
    plan = Plan(method, windows, path, None, ref, room, shape.scaling)
    if method.key_space == "post":
        plans = [plan] * shape.layers
    else:
        found = rotations or probe(model, rope_of(model, TOKENS))
        turns = {kind: Turns(model, max(1024, room), kind) for kind in {found[index] for index in chosen}}
        plans = [replace(plan, turns=turns.get(kind)) for kind in found]
    return [
        PackedLayer(plans[index], index, len(chosen)) if index in chosen else DenseLayer(torch.float16, room)
        for index in range(shape.layers)
    ]
