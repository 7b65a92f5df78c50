"""Every kind of model that transformers builds, tiny and with random weights: the engine against the model's own eager
attention, and every method. Writes benchmarks/architectures.json, of which docs/models.md is made.

    python benchmarks/architectures.py [KIND ...]

A kind's reference is read in chunks, decoded, forked and dropped again: its logits are compared with one eager pass
over the same tokens. These models show how a kind is wired, and nothing of how well it stands quantization.
"""

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kvq_core.engine.prefill as prefills
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.errors import ModelError
from kvq_core.models import LoadedModel, wrap
from kvq_core.shape import LayerKind
from kvq_core.spec import Lane

RESULTS = Path(__file__).with_suffix(".json")
VOCABULARY, PROMPT, CHUNK = 96, 53, 16
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
}
_WINDOW = {"sliding_window": 24}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_chunk_size": 8}
_WIDE = {"hidden_size": 128}  # of kinds whose head_dim is hidden_size / heads
_PLAIN = (
    "apertus arcee aria_text bitnet cohere ernie4_5 flex_olmo gemma glm glm4 gpt2 granite granitemoe granitemoeshared "
    "hunyuan_v1_dense hunyuan_v1_moe hyperclovax internlm3 iquestcoder jais2 lfm3 llama minimax_m2 minimax_m3_vl_text "
    "ministral3 mixtral nanochat olmo olmo2 phimoe qwen2 qwen3 seed_oss"
)
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2}
# three layers that hold no keys and values: two read layer 1, one reads layer 2
_SHARING = {
    **_WINDOW,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 3,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
}
CONFIGS: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in _PLAIN.split()},
    **dict.fromkeys("afmoe cohere2 cohere2_moe cwm exaone4 gemma2 granite_swa granitemoe_swa mistral".split(), _WINDOW),
    **dict.fromkeys("olmo3 phi3 starcoder2 vaultgemma".split(), _WINDOW),
    **dict.fromkeys("hy_v3 qwen2_moe qwen3_moe".split(), _EXPERTS),
    **dict.fromkeys("dots1 glm4_moe solar_open".split(), _ROUTED),
    **dict.fromkeys("axk1 deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 youtu".split(), {**_LATENT, **_ROUTED}),
    **dict.fromkeys("helium nemotron olmoe phi stablelm".split(), _WIDE),
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "diffllama": {},
    "doge": {},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    "exaone_moe": {**_EXPERTS, **_WINDOW},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128},
    "gemma3_text": {**_WINDOW, **_ALTERNATING},
    "gemma3n_text": {
        **_SHARING,
        "altup_num_inputs": 2,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.5, *[0.0] * 5],
    },
    "gemma4_text": {**_SHARING, "global_head_dim": 64, "use_double_wide_mlp": True},
    "gemma4_unified_text": {**_WINDOW, **_ALTERNATING, "global_head_dim": 64, "num_kv_shared_layers": 2},
    "gpt_neox": {**_WIDE, "num_key_value_heads": 4},
    "gpt_oss": {**_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": ["mamba", "attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "kolibri1": {**_EXPERTS, **_WINDOW},
    "laguna": {**_EXPERTS, **_WINDOW, **_ALTERNATING, "num_attention_heads_per_layer": [4, 6, 4, 6]},
    "lfm2": {"full_attn_idxs": [1, 3]},
    "llama4_text": {"attention_chunk_size": 24, "num_local_experts": 4, "intermediate_size_mlp": 64},
    "lfm2_moe": {**_EXPERTS, "layer_types": ["conv", "full_attention"] * 2},
    "mellum": {**_EXPERTS, **_WINDOW, **_ALTERNATING},
    "mimo_v2_flash": {**_ROUTED, **_WINDOW, "v_head_dim": 16},
    "minimax": {**_EXPERTS, "layer_types": ["linear_attention", "full_attention"] * 2},
    "ministral": _WINDOW,
    "opt": {**_WIDE, "num_key_value_heads": 4},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "mlp", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 8,
    },
    "olmo_hybrid": _DELTA,
    "persimmon": {**_WIDE, "num_key_value_heads": 4},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3_next": {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 32},
    "recurrent_gemma": {},
    "smollm3": {"no_rope_layer_interval": 2},
}
# one kind of each mechanism: soft-cap beside windows, RoPE by layer type, sinks, chunks, heads of two shapes, fused
# projections, dropped arguments, partial rotary, no RoPE, delta net, Mamba-2, attention beside a state, convolution,
# a state that takes whole prompts, query heads by layer, values of other channels, layers that read another's keys and
# values, and what is refused
SAMPLE = (
    "gemma2 gemma3_text gemma3n_text gpt_oss llama4_text gemma4_text gpt_neox stablelm phi smollm3 mistral qwen3_next "
    "bamba falcon_h1 lfm2 jamba laguna mimo_v2_flash deepseek_v3"
).split()


def sized(kind: str, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """The configuration of that kind, for a vocabulary."""
    told = {**_COMMON, **CONFIGS[kind]}
    return told | dict.fromkeys({"vocab_size", "vocab_size_per_layer_input"} & told.keys(), vocabulary)


@cache
def tiny_of(kind: str, tokenizer: Any = None) -> LoadedModel:
    """A model of that kind with random weights. Raises ModelError where the engine does not take it."""
    torch.manual_seed(7)
    told = sized(kind) if tokenizer is None else sized(kind, len(tokenizer))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **told)).float()
    return wrap(model, tokenizer, id=f"tiny-{kind}")


def ids_of(count: int, seed: int = 1) -> list[int]:
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def eager(model: LoadedModel, ids: list[int]) -> Tensor:
    """Logits (vocabulary,) after the last token, by transformers alone."""
    held = model.model.config._attn_implementation
    model.model.set_attn_implementation("eager")
    try:
        return model.model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
    finally:
        model.model.set_attn_implementation(held)


def wired(model: LoadedModel) -> tuple[float, float]:
    """The largest differences of the engine's logits from eager ones: the reference's, and those of rows whose caches
    are fp16, over a prompt in chunks, decoding, a fork and a drop of rows; relative to the logits' spread."""
    ids, more = ids_of(PROMPT), ids_of(9, seed=2)
    prefill = _prefilled(model, ids)
    rope = model.rope(len(ids) + len(more))
    lane = Lane(method="fp16")
    caches = [LaneCache.of_prompt(lane, prefill.groups, rope, model.ref) for _ in range(2)]
    rows = Rows(prefill.groups, caches, rope, len(ids), len(ids) + len(more))
    states = None if prefill.states is None else prefill.states.of_rows([0, 0, 0])
    texts = [list(ids) for _ in range(3)]
    expected = eager(model, ids)
    found = [(prefill.logits - expected).abs().max().item()]
    others, scale = [0.0], expected.std().item()
    for step, token in enumerate(more):
        if step == 3:
            rows.fork(1, {})
            texts.append(list(texts[1]))
            states = None if states is None else states.of_rows([0, 1, 2, 1])
        if step == 6:
            rows.keep([0, 3])
            texts = [texts[0], texts[3]]
            states = None if states is None else states.of_rows([0, 3])
        fed = [token] * len(texts)
        if step >= 3:
            fed[-1] = 3 + (token + step) % (VOCABULARY - 3)  # the forked row goes its own way
        for text, each in zip(texts, fed, strict=True):
            text.append(each)
        logits = model.forward(torch.tensor(fed)[:, None], rows.tokens, rows, states=states)[:, -1]
        rows.advance(1)
        if step % 3 < 2:  # looked at before the rows change, and at the end
            continue
        apart = [(own - eager(model, text)).abs().max().item() for own, text in zip(logits, texts, strict=True)]
        found.append(apart[0])
        others.append(max(apart[1:]))
    return max(found) / scale, max(others) / scale


def _prefilled(model: LoadedModel, ids: list[int]) -> SharedPrefill:
    """The prompt in chunks of CHUNK."""
    held, prefills.CHUNK = prefills.CHUNK, CHUNK
    try:
        prefill = SharedPrefill(model, ids)
        list(prefill.run())
        return prefill
    finally:
        prefills.CHUNK = held


def _named(held: LayerKind) -> str:
    if held.kv_heads:
        return held.kind
    if held.reads is not None:
        return "reading"
    return "state" if held.conv or held.recurrent else "none"


def looked_at(kind: str) -> dict[str, Any]:
    """What benchmarks/architectures.json says of a kind."""
    try:
        model = tiny_of(kind)
    except ModelError as error:
        return {"refused": str(error).partition(": ")[2].partition(". Use a model")[0]}
    reference, others = wired(model)
    shape = model.shape
    return {
        "layers": [_named(held) for held in shape.kinds],
        "states": shape.stateful,
        "chunks": shape.in_chunks,
        "softcap": any(how is not None and how.softcap is not None for how in model.scoring),
        "sinks": any(how is not None and how.sinks is not None for how in model.scoring),
        "rotations": list(model.rotations),
        "heads": sorted({(held.key_dim, held.value_dim) for held in shape.kinds if held.kv_heads}),
        "reference": float(f"{reference:.1e}"),
        "fp16": float(f"{others:.1e}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=sorted(CONFIGS), metavar="KIND")
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for kind in parser.parse_args().kinds:
        known[kind] = looked_at(kind)
        print(kind, known[kind].get("refused") or known[kind]["reference"], flush=True)
        RESULTS.write_text(json.dumps({kind: known[kind] for kind in sorted(known)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
