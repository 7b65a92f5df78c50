"""Tiny GGUF files, written as llama.cpp's converter writes them: tensors under its names, a byte-level vocabulary."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from tests.support import gguf_delta, gguf_gemma4
from tests.support.gguf_keys import BOS, EOS, TOKENS, dotted, header, inner_type, named, value_type, vocabulary

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
_WINDOW = {"sliding_window": 24, "num_hidden_layers": 4}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {  # architectures with keys of their own: what is unlike SIZES
    "gemma": {},
    "gemma2": {**_WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0},
    "gemma3_text": {
        "sliding_window": 24,
        "num_hidden_layers": 7,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "gemma4_text": gguf_gemma4.SIZES,
    "phi3": {"sliding_window": 24, "head_dim": None},
    "starcoder2": {"sliding_window": None, "head_dim": None},
    "granite": {
        "attention_multiplier": 0.4,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "head_dim": None},
    "smollm3": {"num_hidden_layers": 5},
    "olmo2": {},
    "stablelm": {"use_qkv_bias": True, "head_dim": None},
    "nemotron": {},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 48, "head_dim": None},
    "qwen3_moe": {**_EXPERTS, "norm_topk_prob": True},
    "gpt_oss": {
        **_WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": _YARN,
    },
    "minimax_m2": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    "qwen3_5_text": gguf_delta.SIZES,
    "qwen3_5_moe_text": {**gguf_delta.SIZES, **_EXPERTS, "shared_expert_intermediate_size": 48},
}
SIZES = {
    "vocab_size": len(TOKENS) + 2,  # two rows of the embedding that no token has
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


def source(architecture: str, **changes: Any) -> Any:
    """A transformers model with random weights and biases: what a file is written from."""
    torch.manual_seed(3)
    sizes = {"tie_word_embeddings": "gemma" in architecture, **SIZES, **FAMILIES.get(architecture, {}), **changes}
    if architecture == "gemma4_text":
        sizes["vocab_size_per_layer_input"] = sizes["vocab_size"]
    sizes = {name: value for name, value in sizes.items() if name != "head_dim" or value is not None}
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": None}
    config = AutoConfig.for_model(architecture, **ids, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    for name, buffer in model.named_buffers():
        if name.endswith(("layer_scalar", "e_score_correction_bias")):
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model


def write(
    path: Path,
    model: Any,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tensors: dict[str, np.ndarray] | None = None,
    **values: Any,
) -> Path:
    """A file of the model. ``values`` are keys of the header with ``__`` for every dot, ``a__`` for the architecture's;
    None leaves a key out. ``tensors`` are written beside the model's, or in place of those."""
    config, name = model.config, named(model.config)
    writer = gguf.GGUFWriter(path, name)
    for key, value in {**header(config), **vocabulary(), **dotted(values, name)}.items():
        if value is not None:
            writer.add_key_value(key, value, value_type(value), inner_type(value))
    held = {**_tensors(model), **(tensors or {})}
    for tensor, data in held.items():
        if data.ndim > 1 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rounded(model: Any) -> Any:
    """The model with matrices as Q8_0 holds them: blocks of 32 whole numbers with one half-precision scale."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                blocks = parameter.reshape(-1, 32)
                scale = blocks.abs().amax(1, keepdim=True) / 127
                codes = blocks * (1 / scale)
                codes = torch.sign(codes) * (codes.abs() + 0.5).floor()  # ggml rounds away from zero
                parameter.copy_((codes * scale.half().float()).reshape(parameter.shape))
    return model


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def _tensors(model: Any) -> dict[str, np.ndarray]:
    config, names = model.config, gguf.get_tensor_name_map(_architecture(model), model.config.num_hidden_layers)
    kind, found = config.model_type, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data, stem = tensor.numpy(), name.rpartition(".")[0]
        if kind.startswith("qwen3_5") and (told := gguf_delta.tensor(name, data, config)) is not None:
            found |= {told[0]: told[1]}
            continue
        if ".mlp.experts." in name:
            found |= _experts(name, data, interleaved=kind == "gpt_oss")
            continue
        if name.endswith("e_score_correction_bias"):
            found[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = data
            continue
        if name.endswith(("sinks", "layer_scalar")):
            found[f"{names.get_name(name)}.weight"] = data
            continue
        data = data[0] if name.endswith("shared_expert_gate.weight") else data
        if kind in ("llama", "granite", "smollm3") and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            halves = data.reshape(
                heads, 2, data.shape[0] // heads // 2, -1
            )  # convert_hf_to_gguf.py, LlamaModel.permute
            data = halves.swapaxes(1, 2).reshape(data.shape)
        if (("gemma" in kind and kind != "gemma4_text") or kind == "nemotron") and name.endswith("norm.weight"):
            data = data + 1
        data = data.squeeze(1) if name.endswith("conv.conv.weight") else data
        found[f"{names.get_name(stem)}.{name.rpartition('.')[2]}"] = np.ascontiguousarray(data)
    return found | ({"rope_freqs.weight": gguf_gemma4.factors(config)} if kind == "gemma4_text" else {})


def _experts(name: str, data: np.ndarray, interleaved: bool) -> dict[str, np.ndarray]:
    """All experts' tensors of a layer: gate and up are apart there, and matrices have a row for each output."""
    block, end = f"blk.{name.split('.')[2]}", "bias" if name.endswith("_bias") else "weight"
    rows = data.swapaxes(1, 2) if interleaved and end == "weight" else data
    if "down_proj" in name:
        parts = {"down": rows}
    elif interleaved:
        parts = {"gate": rows[:, ::2], "up": rows[:, 1::2]}
    else:
        parts = dict(zip(("gate", "up"), np.split(rows, 2, 1), strict=True))
    return {f"{block}.ffn_{part}_exps.{end}": np.ascontiguousarray(x) for part, x in parts.items()}


def _architecture(model: Any) -> gguf.MODEL_ARCH:
    kind = named(model.config)
    return next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
