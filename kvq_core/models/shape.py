"""The numbers of a transformers model: its shape, its RoPE tables, and the bias of its key projections, which is a
constant of the keys before RoPE, known without a prompt."""

import inspect
import sys
from typing import Any, Literal

import torch
from torch import Tensor

from kvq_core.methods import ModelShape
from kvq_core.models.body import rotary_of
from kvq_core.models.kinds import kinds_of
from kvq_core.models.rope import Apply, LayeredRope, Rope
from kvq_core.models.scoring import Scoring
from kvq_core.models.survey import AttentionCall, attention_modules, survey
from kvq_core.shape import LayerKind

# transformers rotates them by halves and llama.cpp by neighbours: its converter permutes rows of their query and key
# projections (conversion/*.py, LlamaModel.permute)
_INTERLEAVED = frozenset(
    "arcee granite granitemoe granitemoehybrid granitemoeshared llama ministral3 mistral mixtral olmo smollm3".split()
)
NORMS = ("k_norm", "k_layernorm", "key_layernorm", "qk_norm")  # of the keys, between projection and RoPE


def rope_of(model: Any, tokens: int) -> Rope:
    """RoPE tables of a transformers model for positions 0 .. tokens-1, by layer, applied by the model's own function;
    tables that turn nothing where it has none that are cosines and sines."""
    kinds, rotary = kinds_of(model), rotary_of(model)
    types = list(getattr(model.config, "layer_types", None) or [])
    typed = rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters
    tables: dict[tuple[str | None, int], Rope] = {}
    each = []
    for layer, kind in enumerate(kinds):
        key = types[layer] if typed else None, kind.key_dim or _first_keyed(kinds).key_dim
        if key not in tables:
            known = typed and kind.kind == "none"  # such layers have no tables, and nobody asks for them
            tables[key] = _still(model, tokens, key[1]) if known else _tables(model, rotary, tokens, *key)
        each.append(tables[key])
    return LayeredRope.by(each)


def _tables(model: Any, rotary: Any, tokens: int, layer_type: str | None, head_dim: int) -> Rope:
    apply = _apply_of(model)
    if rotary is None or apply is None:
        return _still(model, tokens, head_dim)
    weight = model.get_input_embeddings().weight
    like = torch.zeros(1, dtype=weight.dtype, device=weight.device)
    asked = {} if layer_type is None else {"layer_type": layer_type}
    cos, sin = rotary(like, position_ids=torch.arange(tokens, device=weight.device)[None], **asked)
    return Rope.of(cos[0].float(), sin[0].float(), head_dim, apply)


def _still(model: Any, tokens: int, head_dim: int) -> Rope:
    """Tables that turn nothing."""
    device = model.get_input_embeddings().weight.device
    return Rope.of(torch.ones(tokens, head_dim, device=device), torch.zeros(tokens, head_dim, device=device), head_dim)


def _apply_of(model: Any) -> Apply | None:
    """How a model applies its tables, to a query and a key; None where it has no function of the usual name."""
    first = next(iter(attention_modules(model).values()))
    apply = getattr(sys.modules[type(first).__module__], "apply_rotary_pos_emb", None)
    if apply is None or "k" in inspect.signature(apply).parameters:
        return apply
    return lambda q, k, cos, sin: (apply(q, cos, sin), apply(k, cos, sin))


def shape_of(model: Any) -> ModelShape:
    """The shape of a transformers model: its layers' kinds, and the heads of those that its lanes quantize.

    Raises ModelError where its configuration does not say what its layers are, or not what they do.
    """
    kinds, calls = kinds_of(model), survey(model)
    main = next((layer for layer, kind in enumerate(kinds) if kind.kind == "full"), next(iter(calls)))
    head_dim = kinds[main].key_dim
    scaling = tuple(calls[layer].scaling if layer in calls else head_dim**-0.5 for layer in range(len(kinds)))
    return ModelShape(
        len(kinds),
        calls[main].query_heads,
        kinds[main].kv_heads,
        head_dim,
        model.config.max_position_embeddings,
        scaling,
        key_bias=key_bias_kind(model),
        kinds=kinds,
    )


def scoring_of(model: Any) -> tuple[Scoring | None, ...]:
    """What each layer makes of q·k; None of layers that do not attend."""
    kinds, calls = kinds_of(model), survey(model)
    return tuple(
        _scoring(model, kind if kind.reads is None else kinds[kind.reads], calls[layer], kind.reads)
        if layer in calls
        else None
        for layer, kind in enumerate(kinds)
    )


def _scoring(model: Any, kind: LayerKind, call: AttentionCall, reads: int | None) -> Scoring:
    """Of a layer that attends to what one of this kind holds."""
    sinks = None if call.sinks is None else getattr(model.get_submodule(call.module), call.sinks).detach()
    window, chunk = (kind.window if kind.kind == name else None for name in ("sliding", "chunked"))
    return Scoring(call.scaling, call.softcap, window, chunk, sinks, reads)


def _first_keyed(kinds: tuple[LayerKind, ...]) -> LayerKind:
    return next(kind for kind in kinds if kind.kv_heads)


def interleaved_in_gguf(model: Any) -> bool:
    """Whether GGUF files of a transformers model hold the channels of queries and keys that RoPE pairs side by side."""
    return model.config.model_type in _INTERLEAVED


def key_bias_kind(model: Any) -> Literal["none", "bias", "normed"]:
    """Whether the key projections of a model have a bias, and whether a norm or a bound follows it."""
    kinds = kinds_of(model)
    modules = [module for layer, module in attention_modules(model).items() if kinds[layer].reads is None]
    if any(_bias(module) is None for module in modules):
        return "none"
    bounded = getattr(model.config, "clip_qkv", None) is not None
    normed = any(getattr(module, name, None) is not None for module in modules for name in NORMS)
    return "normed" if bounded or normed else "bias"


def key_bias_of(model: Any) -> Tensor:
    """(layers, kv_heads, head_dim) float32, on the CPU; zeros for layers whose heads are of another shape."""
    shape, modules = shape_of(model), attention_modules(model)
    found = torch.zeros(shape.layers, shape.kv_heads, shape.head_dim)
    for layer in shape.alike:
        bias = _bias(modules[layer])
        assert bias is not None, "a model without biases is not asked for them"
        found[layer] = bias.detach().float().cpu().view(shape.kv_heads, shape.head_dim)
    return found


def _bias(module: Any) -> Tensor | None:
    """The key projection's bias (kv_heads * head_dim); of a fused projection the keys' part of it."""
    if hasattr(module, "k_proj"):
        return getattr(module.k_proj, "bias", None)
    whole = getattr(getattr(module, "qkv_proj", None), "bias", None)  # of another name, in another order: not known
    if whole is None:
        return None
    config, dim = module.config, int(module.head_dim)
    queries = config.num_attention_heads * dim
    return whole[queries : queries + (config.num_key_value_heads or config.num_attention_heads) * dim]
