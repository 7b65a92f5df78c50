"""Tiny random models of the supported architectures, built from configs: no network, no weights on disk."""

from functools import cache
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from kvq_core.models import LoadedModel, wrap

VOCABULARY = 96
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
}
CONFIGS = {
    "llama": (LlamaConfig, {}),
    "llama-mha": (LlamaConfig, {"num_key_value_heads": 4}),
    "qwen2": (Qwen2Config, {}),  # bias on q, k and v
    "qwen3": (Qwen3Config, {}),  # RMS norm on q and k
    "mistral": (MistralConfig, {"sliding_window": None}),
}
SCALED = {  # their scores are not divided by sqrt(head_dim)
    "granite": (GraniteConfig, {"attention_multiplier": 0.6}),
    "gemma2": (
        Gemma2Config,
        {"query_pre_attn_scalar": 4, "attn_logit_softcapping": None, "layer_types": ["full_attention"] * 3},
    ),
}


@cache
def tiny(name: str, dtype: torch.dtype = torch.float32, tokenizer: Any = None, layers: int = 3) -> LoadedModel:
    """A model of that architecture with random weights; biases are random too, so that a lost one shows."""
    config, changes = {**CONFIGS, **SCALED}[name]
    torch.manual_seed(7)
    changes = {**changes, "num_hidden_layers": layers}
    if tokenizer is not None:
        changes["vocab_size"] = len(tokenizer)
    model = AutoModelForCausalLM.from_config(config(**{**_COMMON, **changes}), dtype=dtype)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    return wrap(model, tokenizer, id=f"tiny-{name}")


def generate(model: LoadedModel, ids: list[int], new: int, ignore_eos: bool = True) -> list[int]:
    """Plain transformers generate with an all-ones mask: the tokens after the prompt."""
    held, eos = model.model.config._attn_implementation, model.model.generation_config.eos_token_id
    model.model.set_attn_implementation("sdpa" if model.model._supports_sdpa else "eager")
    if ignore_eos:
        model.model.generation_config.eos_token_id = None
    try:
        prompt = torch.tensor([ids])
        out = model.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new)
        return out[0, len(ids) :].tolist()
    finally:
        model.model.generation_config.eos_token_id = eos
        model.model.set_attn_implementation(held)


def prompt_ids(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()
