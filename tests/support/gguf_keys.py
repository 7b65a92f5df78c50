"""Keys of a GGUF file's header as llama.cpp's converter writes them, from a configuration of transformers."""

from typing import Any

import gguf
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.support import gguf_delta, gguf_gemma4

_NAMES = {  # of architectures, in files
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "minimax_m2": "minimax-m2",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
MERGES = ["d e", "de f", "1 2"]
BYTES = list(bytes_to_unicode().values())
TOKENS = [*BYTES, "de", "def", "12", "<|start|>", "<|end|>", "<|turn|>"]
BOS, EOS, EOT = (TOKENS.index(f"<|{name}|>") for name in ("start", "end", "turn"))
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def sentencepiece() -> dict[str, Any]:
    """Keys of a vocabulary with scores, as Llama 2 has it: pieces that spell a blank as ▁, and every byte."""
    pieces = ["▁", *"defman", "de", "▁de", "▁def"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(pieces)]
    special = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds = [*special, *[gguf.TokenType.BYTE] * 256, *[gguf.TokenType.NORMAL] * (len(tokens) - 259)]
    return {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__pre": "default",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__scores": [-float(i) for i in range(len(tokens))],
        "tokenizer__ggml__token_type": [int(kind) for kind in kinds],
        "tokenizer__ggml__merges": None,
        "tokenizer__ggml__bos_token_id": 1,
        "tokenizer__ggml__eos_token_id": 2,
        "tokenizer__ggml__add_bos_token": None,
    }


def header(config: Any) -> dict[str, Any]:
    name, heads = named(config), config.num_attention_heads
    if name == "gemma4":
        return {"general.file_type": 0, **{f"{name}.{key}": value for key, value in gguf_gemma4.keys(config).items()}}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    told = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.freq_base": float(_rope(config)["rope_theta"]),
    }
    if head_dim != config.hidden_size // heads:
        told |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    told |= _epsilon(config) | _own(config)
    return {"general.file_type": 0, **{f"{name}.{key}": value for key, value in told.items() if value is not None}}


def _rope(config: Any) -> dict[str, Any]:
    told = config.rope_parameters
    return told.get("full_attention", told)


def _epsilon(config: Any) -> dict[str, float]:
    fields = ("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps")
    epsilon = next(getattr(config, field) for field in fields if getattr(config, field, None) is not None)
    plain = config.model_type in ("starcoder2", "stablelm", "nemotron")
    return {f"attention.layer_norm{'' if plain else '_rms'}_epsilon": float(epsilon)}


def _own(config: Any) -> dict[str, Any]:
    """Keys that are an architecture's own, as conversion/*.py of llama.cpp write them."""
    kind, rope = config.model_type, _rope(config)
    own: dict[str, Any] = {}
    if kind in ("gemma2", "gemma3_text", "gpt_oss", "phi3"):
        own["attention.sliding_window"] = config.sliding_window
    if kind == "gemma2":
        own["attn_logit_softcapping"] = config.attn_logit_softcapping
        own["final_logit_softcapping"] = config.final_logit_softcapping
    if kind == "granite":
        own["attention.scale"], own["logit_scale"] = config.attention_multiplier, config.logits_scaling
        own["embedding_scale"], own["residual_scale"] = config.embedding_multiplier, config.residual_multiplier
    if kind == "lfm2":
        held = [config.num_key_value_heads if of == "full_attention" else 0 for of in config.layer_types]
        own["attention.head_count_kv"], own["shortconv.l_cache"] = held, config.conv_L_cache
    if kind == "stablelm":
        own["use_parallel_residual"] = config.use_parallel_residual
    if kind.startswith("qwen3_5"):
        own |= gguf_delta.keys(config)
    if "moe" in kind or kind in ("gpt_oss", "minimax_m2"):
        count = "num_experts" if "moe" in kind else "num_local_experts"
        own["expert_count"], own["expert_used_count"] = getattr(config, count), config.num_experts_per_tok
        own["expert_feed_forward_length"] = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    if kind == "minimax_m2":
        own["expert_gating_func"] = 2
    if hasattr(config, "shared_expert_intermediate_size"):
        own["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if "partial_rotary_factor" in rope:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        own["rope.dimension_count"] = int(head_dim * rope["partial_rotary_factor"])
    if rope.get("factor"):
        own["rope.scaling.type"], own["rope.scaling.factor"] = rope["rope_type"], rope["factor"]
    if rope["rope_type"] == "yarn":
        own["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return own


def vocabulary() -> dict[str, Any]:
    kinds = [gguf.TokenType.CONTROL if token.startswith("<|") else gguf.TokenType.NORMAL for token in TOKENS]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def dotted(values: dict[str, Any], architecture: str) -> dict[str, Any]:
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return {f"{architecture}.{k[2:]}" if k.startswith("a.") else k: value for k, value in dotted.items()}


def value_type(value: Any) -> gguf.GGUFValueType:
    if isinstance(value, list):
        return gguf.GGUFValueType.ARRAY
    kinds = {
        bool: gguf.GGUFValueType.BOOL,
        int: gguf.GGUFValueType.UINT32,
        float: gguf.GGUFValueType.FLOAT32,
        str: gguf.GGUFValueType.STRING,
    }
    return kinds[type(value)]


def inner_type(value: Any) -> gguf.GGUFValueType | None:
    """Of a list; llama.cpp reads whole numbers in lists as signed ones alone."""
    if not isinstance(value, list):
        return None
    return gguf.GGUFValueType.INT32 if type(value[0]) is int else value_type(value[0])


def named(config: Any) -> str:
    """What files call an architecture."""
    kind = str(config.model_type)
    return _NAMES.get(kind, kind.removesuffix("_text"))
