"""GGUF files of Gemma 4: heads of two sizes, layers that read an earlier one's keys, an embedding for each layer.

Those with experts are not read. Source: llama.cpp, src/models/gemma4.cpp and conversion/gemma.py (Gemma4Model).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvq_core.errors import excerpt
from kvq_core.models.gguf.family import Family, Fields, Key, block_of
from kvq_core.models.gguf.header import TensorEntry

_SIZES = {  # keys of one number -> transformers' field
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.sliding_window": "sliding_window",
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
}
_SAME = {  # what llama.cpp's graph takes for the same number
    "attention.value_length": "attention.key_length",
    "attention.value_length_swa": "attention.key_length_swa",
    "rope.dimension_count": "attention.key_length",
    "rope.dimension_count_swa": "attention.key_length_swa",
}
_KEYS = (
    *(*_SIZES, *_SAME),
    "feed_forward_length",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window_pattern",
    "attention.shared_kv_layers",
    "embedding_length_per_layer_input",
    "rope.freq_base",
    "rope.freq_base_swa",
    "final_logit_softcapping",
    "vocab_size",
)
_STILL = 1e20  # factors above it turn nothing: the converter writes 1e30
_OF_KEYS = (".attn_k.weight", ".attn_v.weight", ".attn_k_norm.weight")


def gemma4_family() -> Family:
    return Family("gemma4_text", _KEYS, whole=_configured, unused=_unused)


def _configured(key: Key, entries: Mapping[str, TensorEntry], factors: np.ndarray | None) -> Fields:
    """All fields of the configuration. Raises ValueError for a key that is missing, or says what is not read."""
    sizes = {field: _number(key, name) for name, field in _SIZES.items()}
    for name, other in _SAME.items():
        if key(name, key(other, None)) != key(other, None):
            raise ValueError(f"{name} = {excerpt(key(name, None))} is not {other}, {key(other, None)}")
    layers, sliding = sizes["num_hidden_layers"], key("attention.sliding_window_pattern", None)
    if not isinstance(sliding, list) or len(sliding) != layers or bool(sliding[-1]):
        raise ValueError(f"attention.sliding_window_pattern does not say of {layers} layers which have windows")
    shared = int(key("attention.shared_kv_layers", 0))
    if not 0 <= shared < layers:
        raise ValueError(f"attention.shared_kv_layers = {shared} of {layers} layers")
    width, double = _widths(key("feed_forward_length", None), layers, layers - shared)
    windowed, full = _kv_heads(key("attention.head_count_kv", None), sliding)
    first = next(layer for layer, own in enumerate(sliding) if not own)
    alike = f"blk.{first}.attn_v.weight" not in entries
    if windowed != full and not alike:
        raise ValueError(f"{full} KV heads in layers of full attention beside {windowed} in others")
    per_layer = entries.get("per_layer_token_embd.weight")
    return {
        **sizes,
        "layer_types": [f"{'sliding' if own else 'full'}_attention" for own in sliding],
        "num_kv_shared_layers": shared,
        "intermediate_size": width,
        "use_double_wide_mlp": double,
        "num_key_value_heads": windowed,
        "num_global_key_value_heads": full if alike else None,
        "attention_k_eq_v": alike,
        "hidden_size_per_layer_input": int(key("embedding_length_per_layer_input", 0)),
        "vocab_size_per_layer_input": per_layer.shape[0] if per_layer else entries["token_embd.weight"].shape[0],
        "rms_norm_eps": float(key("attention.layer_norm_rms_epsilon", 0.0)),
        "final_logit_softcapping": float(key("final_logit_softcapping", 0.0)) or None,
        "rope_parameters": _rope(key, sizes["global_head_dim"], factors),
    }


def _number(key: Key, name: str) -> int:
    if not isinstance(found := key(name, None), int) or found < 1:
        raise ValueError(f"{name} = {excerpt(found)} is not one number above 0")
    return found


def _widths(told: Any, layers: int, own: int) -> tuple[int, bool]:
    """Of the layers that hold keys, and whether it is twice that of the others."""
    each = told if isinstance(told, list) else [told] * layers
    width = each[0] if each else None
    if isinstance(width, int) and width > 0 and len(each) == layers:
        for double in (False, True):
            if each == [width] * own + [width * (1 + double)] * (layers - own):
                return width, double
    raise ValueError(f"feed_forward_length = {excerpt(told)} is not known here")


def _kv_heads(told: Any, sliding: Sequence[Any]) -> tuple[int, int]:
    """Of layers with windows, and of the others."""
    each = told if isinstance(told, list) else [told] * len(sliding)
    kinds = {bool(kind): {heads for heads, own in zip(each, sliding, strict=False) if own == kind} for kind in (1, 0)}
    kinds[True] = kinds[True] or kinds[False]
    if len(each) != len(sliding) or any(len(heads) != 1 for heads in kinds.values()):
        raise ValueError(f"attention.head_count_kv = {excerpt(told)} is not known here")
    windowed, full = (kinds[kind].pop() for kind in (True, False))
    if not all(isinstance(heads, int) and heads > 0 for heads in (windowed, full)):
        raise ValueError(f"attention.head_count_kv = {excerpt(told)} is not known here")
    return windowed, full


def _rope(key: Key, head_dim: int, factors: np.ndarray | None) -> Fields:
    """The first pairs of channels turn as usual, and those behind them not at all."""
    turned = 0 if factors is None else int((factors == 1).sum())
    if factors is None or factors.shape != (head_dim // 2,) or not (factors[turned:] > _STILL).all() or not turned:
        raise ValueError(f"the tensor rope_freqs.weight does not say which of {head_dim // 2} pairs are turned")
    local, base = float(key("rope.freq_base_swa", 10000.0)), float(key("rope.freq_base", 10000.0))
    if not (local > 0 and base > 0 and np.isfinite(local * base)):
        raise ValueError(f"rope.freq_base = {base:g} and rope.freq_base_swa = {local:g} must be above 0")
    return {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": base,
            "partial_rotary_factor": turned / len(factors),
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def _unused(name: str, config: Any) -> bool:
    """Whether a tensor makes keys and values of a layer that reads those of another."""
    layer = block_of(name)
    return (
        layer is not None
        and layer >= config.num_hidden_layers - config.num_kv_shared_layers
        and name.endswith(_OF_KEYS)
    )
