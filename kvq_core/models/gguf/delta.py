"""GGUF files of Qwen3.5: three layers of gated delta nets for each one of attention.

llama.cpp lays the value heads of a key head apart from one another (tiled), transformers beside one another (grouped).
Source: llama.cpp, src/models/qwen35.cpp and conversion/qwen.py (_LinearAttentionVReorderBase).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvq_core.models.gguf.family import Family, FamilyFacts, Fields, block_of

_STATE = ("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size")
_KEYS = (*_STATE, "full_attention_interval", "rope.dimension_sections", "nextn_predict_layers")
_EACH = (".ssm_dt.bias", ".ssm_alpha.weight", ".ssm_beta.weight")  # one row for each value head
_BEHIND = (".attn_qkv.weight", ".ssm_conv1d.weight")  # rows of queries and keys, then those of values


def delta_family(
    model_type: str,
    keys: tuple[str, ...] = (),
    *,
    fields: Callable[[FamilyFacts], Fields] = lambda facts: {},
    **own: Any,
) -> Family:
    """The architecture of that name in transformers, with keys and fields of its own beside those of them all."""
    return Family(
        model_type,
        (*_KEYS, *keys),
        fields=lambda facts: _fields(facts) | fields(facts),
        partial=True,
        lists=("rope.dimension_sections",),
        names={".ssm_dt.bias": ".linear_attn.dt_bias"},
        undo=_undo,
        drafts="nextn_predict_layers",
        unused=lambda name, config: (block_of(name) or 0) >= config.num_hidden_layers,
        **own,
    )


def _fields(facts: FamilyFacts) -> Fields:
    """Raises ValueError for a key that is missing, and for heads that do not share."""
    kernel, state, key_heads, value_heads, inner = (_size(facts, key) for key in _STATE)
    every, sections = _size(facts, "full_attention_interval", 4), facts.key("rope.dimension_sections", [])
    if value_heads % key_heads or inner % value_heads:
        raise ValueError(f"{value_heads} value heads of {inner} channels in all cannot share {key_heads} key heads")
    axes = [int(size) for size in (sections if isinstance(sections, list) else [sections]) if size]  # a text has one
    return {
        "layer_types": ["linear_attention" if (i + 1) % every else "full_attention" for i in range(facts.layers)],
        "linear_conv_kernel_dim": kernel,
        "linear_key_head_dim": state,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": inner // value_heads,
        "rope_parameters": {
            "partial_rotary_factor": 1.0,  # else transformers takes a quarter
            **facts.rope,
            "mrope_section": axes,
            "mrope_interleaved": True,
        },
    }


def _size(facts: FamilyFacts, key: str, default: int = 0) -> int:
    if not isinstance(found := facts.key(key, default), int) or found < 1:
        raise ValueError(f"{key} = {found} is not one number above 0")
    return found


def _undo(name: str, held: np.ndarray, config: Any) -> np.ndarray:
    """A tensor as transformers has it."""
    size, keys = config.linear_value_head_dim, 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if name.endswith(".ssm_a"):
        return np.log(-_grouped(held, 1, config))
    if name.endswith(_EACH):
        return _grouped(held, 1, config)
    if name.endswith(_BEHIND):
        return np.concatenate([held[:keys], _grouped(held[keys:], size, config)])
    if name.endswith(".attn_gate.weight"):
        return _grouped(held, size, config)
    if name.endswith(".ssm_out.weight"):
        return _grouped(held.T, size, config).T
    return held - 1 if name.endswith("norm.weight") and not name.endswith(".ssm_norm.weight") else held


def _grouped(held: np.ndarray, size: int, config: Any) -> np.ndarray:
    """Rows, ``size`` of each value head, of which those that share a key head come to lie beside one another."""
    heads, shared = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    return held.reshape(shared, heads, size, *held.shape[1:]).swapaxes(0, 1).reshape(held.shape)
