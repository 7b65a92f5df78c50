"""What files of Gemma 4 hold, as llama.cpp's converter writes them (conversion/gemma.py, Gemma4Model)."""

from typing import Any

import numpy as np

_ROPE = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 100000.0, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
SIZES = {  # as E2B and E4B: the last layers read others' keys, are twice as wide, and each has an embedding of its own
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "sliding_window": 24,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 16,
    "final_logit_softcapping": 9.0,
    "rope_parameters": _ROPE,
}
LARGE = {  # as 31B: keys of full attention are values too
    **SIZES,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}


def keys(config: Any) -> dict[str, Any]:
    """The header, without the architecture's name before each key."""
    layers, sliding = config.num_hidden_layers, [of == "sliding_attention" for of in config.layer_types]
    windowed, full = config.per_layer_config[0], config.per_layer_config[sliding.index(False)]
    heads = [windowed.num_key_value_heads if own else full.num_key_value_heads for own in sliding]
    own = layers - config.num_kv_shared_layers
    widths = [config.intermediate_size * (1 if i < own or not config.use_double_wide_mlp else 2) for i in range(layers)]
    rope = config.rope_parameters
    return {
        "context_length": config.max_position_embeddings,
        "block_count": layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": widths if config.use_double_wide_mlp else config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": heads if config.attention_k_eq_v else windowed.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": full.head_dim,
        "attention.value_length": full.head_dim,
        "attention.key_length_swa": windowed.head_dim,
        "attention.value_length_swa": windowed.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": sliding,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "rope.dimension_count": full.head_dim,
        "rope.dimension_count_swa": windowed.head_dim,
        "final_logit_softcapping": config.final_logit_softcapping,
    }


def factors(config: Any) -> np.ndarray:
    """Of the pairs of channels of full attention: those at the end turn by next to nothing."""
    pairs = config.per_layer_config[config.layer_types.index("full_attention")].head_dim // 2
    turned = int(pairs * config.rope_parameters["full_attention"]["partial_rotary_factor"])
    return np.array([1.0] * turned + [1e30] * (pairs - turned), np.float32)
