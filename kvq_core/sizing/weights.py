"""Bytes of a model's weights: of its files where they are there, else of the weights its configuration asks for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvq_core.frozen import Frozen
from kvq_core.shape import LayerKind, ModelShape
from kvq_core.sizing.layers import families, text_config

OF_FILES = "of its files"
FILES = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
Config = Mapping[str, Any]


class Weights(Frozen):
    """``nbytes``, None where they are not known, and how they are."""

    nbytes: int | None
    how: str


def weights_of(folder: Path, config: Config, shape: ModelShape, known: int | None = None) -> Weights:
    """Of a folder with a configuration, with weights or without. ``known``: bytes of the files that they came from,
    where the folder holds them converted."""
    if known is not None:
        return Weights(nbytes=known, how=OF_FILES)
    for pattern in FILES:
        if files := sorted(folder.glob(pattern)):
            return Weights(nbytes=sum(file.stat().st_size for file in files), how=OF_FILES)
    return count_weights(config, shape)


def weights_in_memory(known: int | None, numel: int) -> Weights:
    """Of a model that can be run: as the files hold them that it came from, or all ``numel`` of them in 16 bits."""
    if known:
        return Weights(nbytes=known, how=OF_FILES)
    return Weights(nbytes=2 * numel, how=f"{numel / 1e9:.3g}B weights in 16 bits")


def count_weights(config: Config, shape: ModelShape) -> Weights:
    """From a configuration alone: matrices, without norms and biases."""
    try:
        dense, experts = parameters(text_config(config), shape.kinds)
    except (KeyError, TypeError, ValueError) as error:
        return Weights(nbytes=None, how=f"not known from this configuration ({error})")
    dense_bits, expert_bits, how = _bits(config, shape)
    nbytes = round((dense * dense_bits + experts * expert_bits) / 8)
    said = f"about {(dense + experts) / 1e9:.3g}B weights {how}"
    if any(config.get(name) for name in ("vision_config", "audio_config")):
        said += ", of the language model alone"
    return Weights(nbytes=nbytes, how=said)


def _bits(config: Config, shape: ModelShape) -> tuple[float, float, str]:
    """Of a weight, of an expert's weight, and in words."""
    given, plain = config.get("quantization_config") or {}, 8.0 * shape.dtype_bytes
    if (named := families()["quantized"].get(str(given.get("quant_method")))) is not None:
        return named.get("other", plain), named["experts"], named["how"].format(dtype=shape.dtype)
    if isinstance(given.get("bits"), int):  # GPTQ, AWQ: a scale and a zero-point for a group
        width = given["bits"] + 32 / (given.get("group_size") or 128)
        return width, width, f"at {given['bits']} bits"
    return plain, plain, f"in {shape.dtype}"


def parameters(config: Config, layers: tuple[LayerKind, ...]) -> tuple[int, int]:
    """Weights of matrices outside of experts, and in experts. Raises KeyError for a field that is missing."""
    hidden, vocabulary = int(config["hidden_size"]), int(config["vocab_size"])
    dense, experts = vocabulary * hidden * (1 if _tied(config) else 2), 0
    if config.get("num_kv_shared_layers"):
        raise ValueError("its last layers share keys and values")
    if (family := config.get("model_type")) in families()["feed_forward"]["uncounted"]:
        raise ValueError(f"the weights of {family} are not counted")
    for number, layer in enumerate(layers):
        dense += _attention(config, layer, hidden) + _mixer(config, layer, hidden)
        own, of_experts = _feed_forward(config, number, hidden)
        dense, experts = dense + own, experts + of_experts
    return dense, experts


def _tied(config: Config) -> bool:
    tied = config.get("tie_word_embeddings")
    return bool(tied) if tied is not None else str(config.get("model_type", "")).startswith("gemma")


def _attention(config: Config, layer: LayerKind, hidden: int) -> int:
    heads = int(config["num_attention_heads"])
    if layer.kind == "latent":
        nope, value = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
        query, rank = heads * (nope + layer.key_dim), int(config.get("q_lora_rank") or 0)
        asked = hidden * rank + rank * query if rank else hidden * query
        if layer.index_dim:
            index = int(config["index_n_heads"])
            asked += rank * index * layer.index_dim + hidden * (layer.index_dim + index)
        stored = hidden * (layer.key_dim + layer.value_dim) + layer.value_dim * heads * (nope + value)
        return asked + stored + heads * value * hidden
    if layer.kind == "none":
        return 0
    gate = 2 if str(config.get("model_type", "")).startswith(("qwen3_next", "qwen3_5")) else 1
    asked = hidden * heads * layer.key_dim * gate
    return asked + hidden * layer.kv_heads * (layer.key_dim + layer.value_dim) + heads * layer.value_dim * hidden


def _mixer(config: Config, layer: LayerKind, hidden: int) -> int:
    """Of a layer with a state."""
    if not layer.conv:
        return 0
    if config.get("linear_key_head_dim"):
        heads, value = config["linear_num_value_heads"], config["linear_value_head_dim"]
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        return hidden * (2 * keys + 2 * heads * value + 2 * heads) + heads * value * hidden + layer.conv
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads")
    size = config.get("mamba_d_state") or config.get("ssm_state_size")
    if not heads or not size:
        raise ValueError("layers with a state of a kind whose weights are not counted")
    inner, channels = layer.recurrent // size, layer.conv // layer.conv_width
    return hidden * (inner + channels + heads) + inner * hidden + layer.conv


def _feed_forward(config: Config, number: int, hidden: int) -> tuple[int, int]:
    """Of one layer: outside of experts, and in experts."""
    if config.get("layers_block_type") or config.get("hybrid_override_pattern"):
        raise ValueError("layers of one block each, whose weights are not counted")
    experts = next((int(config[n]) for n in _EXPERTS if config.get(n)), 0)
    wide = int(config.get("intermediate_size") or 0)
    if isinstance(config.get("mlp_layer_types"), list):
        sparse = config["mlp_layer_types"][number] == "sparse"
    else:
        first, step = int(config.get("first_k_dense_replace") or 0), int(config.get("decoder_sparse_step") or 1)
        sparse = number >= first and (number + 1) % step == 0
    if config.get("model_type") == "llama4_text" or config.get("enable_moe_block"):
        raise ValueError("experts in some layers, whose weights are not counted")
    common = int(config.get("shared_intermediate_size") or 0)  # Granite's, beside experts or in their place
    if not experts or not sparse:
        plain = config.get("model_type") in families()["feed_forward"]["without_gate"]
        return (2 if plain else 3) * hidden * (common or wide), 0
    narrow = int(config.get("moe_intermediate_size") or wide)
    shared = common or int(config.get("shared_expert_intermediate_size") or 0)
    shared += int(config.get("n_shared_experts") or 0) * narrow
    gate = hidden if config.get("shared_expert_intermediate_size") else 0
    return 3 * hidden * shared + hidden * experts + gate, 3 * experts * hidden * narrow


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
