"""The packed cache as a library: for ``model.generate(past_key_values=...)``."""

from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from kvq_kernels import Path
from torch import Tensor

from kvq_core.errors import MethodError, ModelError
from kvq_core.methods import Method, ModelRef, Window, make
from kvq_core.models.loaded import LoadedModel
from kvq_core.models.probe import TOKENS, probe
from kvq_core.models.rope import Rotation
from kvq_core.models.shape import key_bias_of, rope_of, scoring_of, shape_of
from kvq_core.models.support import check_config, check_model
from kvq_core.packed.dense import DenseLayer
from kvq_core.packed.layer import PackedLayer, PackingPlan
from kvq_core.packed.reader_layers import ReadingLayer, with_readers
from kvq_core.packed.rope_tables import RopeTables
from kvq_core.packed.transforms import TransformOptions
from kvq_core.spec import Assignment, Lane

UNTOUCHED = Window(step=None)

if TYPE_CHECKING:
    from kvq_core.models.packed_cache import TicketCache


def packed_cache(model: Any, method: Method, path: Path = "auto", sliding: bool = False) -> "TicketCache":
    """An empty packed cache for one call of ``model.generate``, a transformers model with RoPE. Layers that attend to a
    window are held in float16, or packed as well where ``sliding`` is True.

    A model of ``kvq_core.models.load`` may be given itself, which methods with learned data ask for. Switches the model
    for good to the attention ``kvq_packed``, which behaves as ``sdpa`` with every other cache; comparisons do not feel
    it. Rows of a batch may be padded on the left. ``path``: "auto" runs Triton on GPUs and plain torch elsewhere.
    Raises ModelError or MethodError where the two do not go together.
    """
    from kvq_core.models.packed_cache import PACKED, TicketCache, register_packed

    inner, ref = (model.model, model.ref) if isinstance(model, LoadedModel) else (model, None)
    check_config(inner.config)
    check_model(inner)
    shape = shape_of(inner)
    if shape.stateful or len(shape.keyed) < shape.layers:
        raise ModelError(
            f"Layers of {inner.config.model_type} models do not all keep keys and values, and nothing else, which is "
            "what a packed cache of transformers does here; measure a lane, which runs them as they are."
        )
    rotations = model.rotations if isinstance(model, LoadedModel) and method.key_space == "pre" else None
    chosen = shape.keyed if sliding else shape.full
    layers = packed_layers(method, inner, method.windows(), path, ref=ref, layers=chosen, rotations=rotations)
    register_packed()
    inner.set_attn_implementation(PACKED)
    return TicketCache(list(layers), scoring_of(inner))


def packed_layers(
    method: Method,
    model: Any,
    windows: tuple[Window, Window],
    path: Path,
    ref: ModelRef | None = None,
    layers: Collection[int] | None = None,
    rotations: tuple[Rotation, ...] | None = None,
) -> list[PackedLayer | DenseLayer]:
    """Empty layers for a transformers model: packed ones, and in float16 those that the method keeps and, where
    ``layers`` are named, all others.
    ``rotations``: how its layers rotate their keys, looked at here where it is not given and matters.

    Raises MethodError where the method has no packed execution on the model.
    """
    shape = shape_of(model)
    asked = shape.full if layers is None else layers
    reasons = (method.why_not(own) for own in shape.by_heads(asked))
    reason = next(filter(None, reasons), None) or method.keeps_all(shape.layers)
    if reason is None and not method.quantizes:
        reason = "it quantizes nothing"
    if reason is None and not asked:
        reason = "every layer of this model attends to a window of tokens; set sliding = True"
    if reason is not None:
        raise MethodError(f"{method.title} has no packed execution here: {reason}.")
    kept = method.kept_layers(shape.layers)
    chosen = tuple(layer for layer in asked if layer not in kept)
    plan = PackingPlan(method, windows, path, None, ref, 0, shape.scaling, len(chosen))
    return _layers(model, dict.fromkeys(chosen, plan), {}, 0, rotations)


def lane_layers(
    lane: Lane, model: Any, path: Path, room: int, ref: ModelRef, rotations: tuple[Rotation, ...]
) -> list[PackedLayer | DenseLayer | ReadingLayer]:
    """Empty layers as ``packed_layers`` makes them, by the rules of a lane: one plan for each method and its layers.

    Raises MethodError where the lane, or a method of it, has no packed execution on the model.
    """
    shape = shape_of(model)
    assigned = lane.plan(shape)
    chosen = {layer: choice for choice, layers in lane.selections(shape.keyed, shape.windowed) for layer in layers}
    if not assigned and not chosen:
        raise MethodError(f"{lane.title} has no packed execution here: it quantizes nothing.")
    plans: dict[Hashable, PackingPlan] = {}
    keys, values = dict[int, PackingPlan](), dict[int, PackingPlan]()
    for each in assigned:
        _check(lane, each)
        own = {a.tensor: a.window for a in assigned if a.fit == each.fit}
        windows = own.get("keys", UNTOUCHED), own.get("values", UNTOUCHED)
        asked = TransformOptions.of(each.transforms)
        plan = PackingPlan(each.method, windows, path, None, ref, room, shape.scaling, len(each.layers), asked)
        plans.setdefault(each.fit, plan)
    for each in assigned:
        (keys if each.tensor == "keys" else values).update(dict.fromkeys(each.layers, plans[each.fit]))
    if left := set(chosen) - {*keys, *values}:  # stored in fp16, but read only in part
        untouched = PackingPlan(make("fp16"), (UNTOUCHED, UNTOUCHED), path, None, ref, room, shape.scaling)
        keys.update(dict.fromkeys(left, untouched))
    made = _layers(model, keys, values, room, rotations)
    choosing = [
        replace(layer, selection=chosen.get(layer.index)) if isinstance(layer, PackedLayer) else layer for layer in made
    ]
    return with_readers(choosing, shape)


def _check(lane: Lane, each: Assignment) -> None:
    """Raises MethodError where packed execution cannot store what a rule asks for."""
    if each.rule.tokens != "all":
        raise MethodError(
            f"{lane.title}: packed execution stores all tokens of a layer by one rule; leave tokens of "
            f"{each.rule.named()} out."
        )
    if each.transforms.center == "slow" or each.transforms.fold != "none":
        raise MethodError(
            f"{lane.title}: packed execution holds neither center = slow nor fold = keys; mend the model's file "
            "instead (python -m kvq_core mend), or leave them out."
        )
    named = TransformOptions.of(each.transforms).named
    if named is not None and each.method.spans_layers:
        raise MethodError(
            f"{lane.title}: packed execution decides {each.method.title} over the keys of all layers as they are; "
            f"leave {named} out, or give what is decided as knobs."
        )


def _layers(
    model: Any,
    keys: dict[int, PackingPlan],
    values: dict[int, PackingPlan],
    room: int,
    rotations: tuple[Rotation, ...] | None,
) -> list[PackedLayer | DenseLayer]:
    """Layers by the plans of their keys and of their values, in float16 where a layer is in neither."""
    plans = {id(plan): plan for plan in (*keys.values(), *values.values())}
    pre = [index for index in {*keys, *values} for plan in (keys.get(index), values.get(index)) if _asks_rope(plan)]
    found = (rotations or probe(model, rope_of(model, TOKENS))) if pre else ()
    rope = rope_of(model, TOKENS)
    tables = {index: (found[index], rope.number_of(index)) for index in pre}
    turns = {own: RopeTables(model, max(1024, room), own[0], index) for index, own in tables.items()}
    biased = any(plan.asked.center == "bias" for plan in plans.values())
    bias = key_bias_of(model) if biased else None
    made = {
        (of, index): _on_layer(plan, turns[tables[index]], None if bias is None else bias[index])
        if _asks_rope(plan) and index in tables
        else plan
        for of, plan in plans.items()
        for index in {*keys, *values}
    }

    def layer(index: int) -> PackedLayer | DenseLayer:
        of_keys, of_values = (made.get((id(by.get(index)), index)) for by in (keys, values))
        first = of_keys or of_values
        if first is None:
            return DenseLayer(torch.float16, room, window=kinds[index].window)
        return PackedLayer(first, index, None if of_values is first else of_values)

    kinds = shape_of(model).kinds
    return [layer(index) for index in range(len(kinds))]


def _asks_rope(plan: PackingPlan | None) -> bool:
    """Whether a plan's method stores keys before RoPE, or less a constant."""
    return plan is not None and (plan.method.key_space == "pre" or plan.asked.center != "none")


def _on_layer(plan: PackingPlan, turns: RopeTables, bias: Tensor | None) -> PackingPlan:
    """A plan as it is for a layer of that RoPE and bias of the keys."""
    asked = plan.asked if plan.asked.center == "none" else plan.asked.on(turns, bias)
    return replace(plan, turns=turns if plan.method.key_space == "pre" else None, asked=asked)
