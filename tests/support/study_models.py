"""A tiny random model in a folder, with a tokenizer, and studies on it: what a study's workers can load by its path."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast

WORDS = [f"w{number}" for number in range(90)] + ["{", "}", '"', "7"]
CONFIG = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
}
LANES = [
    {"method": "per_token", "label": "four", "knobs": {"bits": 4}},
    {"method": "per_token", "label": "two", "knobs": {"bits": 2}},
]


def write_model(place: Path, seed: int = 7, config: PreTrainedConfig | None = None) -> Path:
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config or LlamaConfig(**CONFIG)).save_pretrained(place)
    words = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(place)
    return place


def prompt(number: int, words: int = 40) -> str:
    return " ".join(WORDS[(7 * at * at + 11 * number + at * (1 + number // 90)) % 90] for at in range(words))


def study_data(model: Path, prompts: int = 6, **changes: object) -> dict:
    """A study as a file has it."""
    rows = [{"id": f"p{at}", "prompt": prompt(at), "group": "even" if at % 2 == 0 else "odd"} for at in range(prompts)]
    plain = {"chat": False, "ignore_eos": True, "max_new_tokens": 6, "lanes": LANES}
    return {"models": [str(model)], "prompts": {"rows": rows}, **plain, **changes}


def write_study(place: Path, data: dict) -> Path:
    place.write_text(json.dumps(data))
    return place
