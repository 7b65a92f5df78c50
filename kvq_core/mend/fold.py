"""An edit as factors of the rows of a model's parameters: the same for a model in memory and for every file of it.

Scales go where nothing of the function changes: rows of the query and key projections and their biases, or, where a
norm follows the projections (QK-norm), that norm's gains. Layers whose queries or keys are made in another way are
refused by name.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvq_core.errors import ModelError
from kvq_core.mend.edit import Edit
from kvq_core.models import LoadedModel
from kvq_core.models.survey import AttentionCall, survey

_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))
_FUSED = "qkv_proj"  # rows of queries, of keys, of values, in that order
_OTHERS = ("qk_norm", "query_key_value", "Wqkv", "c_attn", "W_pack", "q_a_proj", "kv_a_proj_with_mqa")


@dataclass(frozen=True)
class Layer:
    """What of a layer makes its queries and keys: names of parameters; ``offset``: what a norm's gain is more than its
    weight; ``shared``: one gain for all heads."""

    prefix: str
    call: AttentionCall
    fused: bool
    norms: tuple[str, str] | None = None
    offset: float = 0.0
    shared: bool = False


def mendable_layers(model: LoadedModel) -> dict[int, Layer]:
    """Layers whose heads are those that lanes quantize. Raises ModelError where an edit of one would change the model,
    or that is not known."""
    calls = survey(model.model)
    shape = model.shape
    if shape.stateful:
        raise _refused(model, "it has layers that keep a state")
    if any(kind.reads is not None for kind in shape.kinds):
        raise _refused(model, "some of its layers read the keys of others")
    if getattr(model.model.config, "clip_qkv", None) is not None:
        raise _refused(model, "its queries and keys are clipped behind their projections")
    modules = Counter(call.module for call in calls.values())
    if any(count > 1 for count in modules.values()):
        raise _refused(model, "some of its layers share their projections")
    return {layer: _layer(model, layer, calls[layer]) for layer in shape.alike}


def row_factors(model: LoadedModel, edit: Edit) -> dict[str, Tensor]:
    """By the parameter's name, what its rows are multiplied with (rows,); of a norm's, its gains. Only those that
    change. Raises ModelError as ``mendable_layers`` does."""
    found: dict[str, Tensor] = {}
    for layer, own in mendable_layers(model).items():
        keep, scale = edit.keep[layer].double(), edit.scale[layer].double()  # so that s times 1 / s is 1
        groups = own.call.query_heads // own.call.kv_heads
        queries, keys = scale.repeat_interleave(groups, 0).flatten(), (1 / scale).flatten()
        bias = keep.flatten() * (1 if own.norms else keys)
        if own.norms is not None:
            each = (queries[: scale.shape[1]], keys[: scale.shape[1]]) if own.shared else (queries, keys)
            found |= dict(zip(own.norms, each, strict=True))
            queries, keys = torch.ones_like(queries), torch.ones_like(keys)
        found |= _projections(model, own, queries, keys, bias)
    parameters = dict(model.model.named_parameters())
    return {name: factor for name, factor in found.items() if name in parameters and bool((factor != 1).any())}


def _projections(model: LoadedModel, own: Layer, queries: Tensor, keys: Tensor, bias: Tensor) -> dict[str, Tensor]:
    if not own.fused:
        q, k = f"{own.prefix}.q_proj", f"{own.prefix}.k_proj"
        return {f"{q}.weight": queries, f"{q}.bias": queries, f"{k}.weight": keys, f"{k}.bias": bias}
    values = torch.ones(own.call.kv_heads * own.call.value_dim, dtype=queries.dtype)
    name = f"{own.prefix}.{_FUSED}"
    return {f"{name}.weight": torch.cat([queries, keys, values]), f"{name}.bias": torch.cat([queries, bias, values])}


def _layer(model: LoadedModel, layer: int, call: AttentionCall) -> Layer:
    module = model.model.get_submodule(call.module)
    if found := next((name for name in _OTHERS if getattr(module, name, None) is not None), None):
        raise _refused(model, f"its layers have {found}, whose rows are in an order that is not known")
    fused = isinstance(getattr(module, _FUSED, None), nn.Linear)
    if not fused and not all(isinstance(getattr(module, f"{x}_proj", None), nn.Linear) for x in "qkv"):
        raise _refused(model, "its queries, keys and values have no projections of their own")
    width = {
        "q": call.query_heads * call.key_dim,
        "k": call.kv_heads * call.key_dim,
        "v": call.kv_heads * call.value_dim,
    }
    rows = [module.qkv_proj.out_features] if fused else [getattr(module, f"{x}_proj").out_features for x in "qkv"]
    if rows != ([sum(width.values())] if fused else [*width.values()]):
        raise _refused(model, "its projections hold more than queries, keys and values")
    norms = [(q, k) for q, k in _NORMS if getattr(module, q, None) is not None or getattr(module, k, None) is not None]
    if not norms:
        return Layer(call.module, call, fused)
    weights = [getattr(getattr(module, name, None), "weight", None) for name in norms[0]]
    sizes = [0 if weight is None else weight.numel() for weight in weights]
    shared = sizes == [call.key_dim] * 2
    if not shared and sizes != [width["q"], width["k"]]:
        raise _refused(model, "the norms of its queries and keys have no gains of the channels' number")
    if any(getattr(getattr(module, name), "bias", None) is not None for name in norms[0]):
        raise _refused(model, "the norms of its queries and keys have a bias")
    named = tuple(f"{call.module}.{name}.weight" for name in norms[0])
    return Layer(call.module, call, fused, (named[0], named[1]), _offset(getattr(module, norms[0][1])), shared)


@torch.no_grad()
def _offset(norm: Any) -> float:
    """What a norm multiplies with beside its weight, by asking: some add one to it."""
    weight = norm.weight
    signs = torch.ones_like(weight)
    signs[..., ::2] = -1  # of mean 0 and rms 1
    gain = norm(signs).float() * signs.float()
    return float(round((gain - weight.float()).mean().item()))


def _refused(model: LoadedModel, reason: str) -> ModelError:
    return ModelError(f"{model.title} cannot be mended: {reason}.")
