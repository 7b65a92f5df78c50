"""The numbers of a transformers model: its shape, its RoPE tables, and the bias of its key projections, which is a
constant of the keys before RoPE, known without a prompt."""

import sys
from typing import Any, Literal

import torch
from torch import Tensor

from kvq_core.methods import ModelShape
from kvq_core.models.rope import Rope
from kvq_core.models.support import attention_modules, window_of

# transformers rotates them by halves and llama.cpp by neighbours: its converter permutes rows of their query and key
# projections (conversion/*.py, LlamaModel.permute)
_INTERLEAVED = frozenset(
    "arcee granite granitemoe granitemoehybrid granitemoeshared llama ministral3 mistral mixtral olmo smollm3".split()
)
_NORMS = ("k_norm", "k_layernorm", "key_layernorm", "qk_norm")  # of the keys, between projection and RoPE


def rope_of(model: Any, tokens: int) -> Rope:
    """RoPE tables of a transformers model for positions 0 .. tokens-1, applied by the model's own function."""
    apply = sys.modules[type(attention_modules(model)[0]).__module__].apply_rotary_pos_emb
    weight = model.get_input_embeddings().weight
    like = torch.zeros(1, dtype=weight.dtype, device=weight.device)
    cos, sin = model.base_model.rotary_emb(like, torch.arange(tokens, device=weight.device)[None])
    return Rope.of(cos[0].float(), sin[0].float(), shape_of(model).head_dim, apply)


def shape_of(model: Any) -> ModelShape:
    """The shape of a transformers model, as its configuration and its attention modules have it."""
    config = model.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    context = min(filter(None, (config.max_position_embeddings, window_of(config))))
    scaling = tuple(float(getattr(m, "scaling", None) or head_dim**-0.5) for m in attention_modules(model))
    kind = key_bias_kind(model)
    return ModelShape(config.num_hidden_layers, heads, kv_heads, head_dim, context, scaling, key_bias=kind)


def interleaved_in_gguf(model: Any) -> bool:
    """Whether GGUF files of a transformers model hold the channels of queries and keys that RoPE pairs side by side."""
    return model.config.model_type in _INTERLEAVED


def key_bias_kind(model: Any) -> Literal["none", "bias", "normed"]:
    """Whether the key projections of a model have a bias, and whether a norm or a bound follows it."""
    modules = attention_modules(model)
    if any(_bias(module) is None for module in modules):
        return "none"
    bounded = getattr(model.config, "clip_qkv", None) is not None
    normed = any(getattr(module, name, None) is not None for module in modules for name in _NORMS)
    return "normed" if bounded or normed else "bias"


def key_bias_of(model: Any) -> Tensor:
    """(layers, kv_heads, head_dim) float32, on the CPU."""
    modules = attention_modules(model)
    biases = [bias.detach().float().cpu() for module in modules if (bias := _bias(module)) is not None]
    return torch.stack([bias.view(-1, _head_dim(module)) for bias, module in zip(biases, modules, strict=True)])


def _bias(module: Any) -> Tensor | None:
    """The key projection's bias (kv_heads * head_dim); of a fused projection the keys' part of it."""
    if hasattr(module, "k_proj"):
        return getattr(module.k_proj, "bias", None)
    whole = getattr(module.qkv_proj, "bias", None)
    if whole is None:
        return None
    config, dim = module.config, _head_dim(module)
    queries = config.num_attention_heads * dim
    return whole[queries : queries + (config.num_key_value_heads or config.num_attention_heads) * dim]


def _head_dim(module: Any) -> int:
    return int(module.head_dim)
