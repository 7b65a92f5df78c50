"""What files of Qwen3.5 hold otherwise than transformers, as llama.cpp's converter writes them (conversion/qwen.py)."""

from typing import Any

import gguf
import numpy as np

SIZES = {
    "num_hidden_layers": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}


def keys(config: Any) -> dict[str, Any]:
    """Those of the header that are the architecture's own."""
    rope = config.rope_parameters
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "full_attention_interval": 2,
        "rope.dimension_sections": [*rope["mrope_section"], 0],
    }


def tensor(name: str, data: np.ndarray, config: Any) -> tuple[str, np.ndarray] | None:
    """A tensor of Qwen3.5 that has another name, order or sign in files, as conversion/qwen.py of llama.cpp writes it:
    the first value head of each key head, then the second of each."""
    heads, size = config.linear_num_key_heads, config.linear_value_head_dim
    fixed = 2 * heads * config.linear_key_head_dim

    def tiled(rows: np.ndarray, each: int) -> np.ndarray:
        apart = rows.reshape(heads, -1, each, *rows.shape[1:])
        return np.ascontiguousarray(apart.swapaxes(0, 1).reshape(rows.shape))

    def behind(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[:fixed], tiled(rows[fixed:], size)])

    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN35, config.num_hidden_layers)
        return f"{names.get_name(name.removesuffix('.weight'))}.weight", data + 1
    _, found, part = name.partition(".linear_attn.")
    made = {
        "A_log": lambda: ("ssm_a", -np.exp(tiled(data, 1))),
        "dt_bias": lambda: ("ssm_dt.bias", tiled(data, 1)),
        "in_proj_a.weight": lambda: ("ssm_alpha.weight", tiled(data, 1)),
        "in_proj_b.weight": lambda: ("ssm_beta.weight", tiled(data, 1)),
        "in_proj_z.weight": lambda: ("attn_gate.weight", tiled(data, size)),
        "in_proj_qkv.weight": lambda: ("attn_qkv.weight", behind(data)),
        "conv1d.weight": lambda: ("ssm_conv1d.weight", behind(data.squeeze(1))),
        "out_proj.weight": lambda: ("ssm_out.weight", np.ascontiguousarray(tiled(data.T, size).T)),
    }.get(part)
    if not found or made is None:
        return None
    end, held = made()
    return f"blk.{name.split('.')[2]}.{end}", held
