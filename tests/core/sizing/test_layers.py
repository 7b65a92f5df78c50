"""What configurations say of their layers against the caches that transformers makes for them, tensor by tensor."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvq_core.errors import ModelError
from kvq_core.shape import LayerKind
from kvq_core.sizing.layers import shape_of, text_config

TOKENS = 20
TINY = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "pad_token_id": 0,
}
MLA = {
    "kv_lora_rank": 32,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
# as a config.json says it: most leave the kinds of their layers to the family
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "mistral": {"sliding_window": 8},
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8, "num_hidden_layers": 6},
    "gemma3n_text": {
        "sliding_window": 8,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "intermediate_size": [64] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        "sliding_window": 8,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "global_head_dim": 32,
    },
    "gpt_oss": {"sliding_window": 8, **EXPERTS},
    "llama4_text": {"attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 32},
    "deepseek_v3": MLA,
    "deepseek_v32": {**MLA, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8},
    "qwen3_next": {
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "granitemoehybrid": {
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "mamba_n_groups": 1,
        "shared_intermediate_size": 16,
        **MAMBA,
        **EXPERTS,
    },
    "bamba": {"attn_layer_indices": [2], **MAMBA},
    "falcon_h1": {"mamba_d_ssm": 64, **MAMBA, "mamba_d_head": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4, "num_experts": 2},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
    },
}


def given(family: str) -> dict[str, Any]:
    return {**TINY, **FAMILIES[family], "model_type": family}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_a_configuration_are_those_of_its_cache(family: str) -> None:
    """A sliding layer of transformers' growing cache leaves out the token that comes in next."""
    told = given(family)
    fields = {name: value for name, value in told.items() if name != "model_type"}
    if family == "nemotron_h":
        del fields["num_hidden_layers"]  # told by the list of its layers
    config = CONFIG_MAPPING[family](**fields)
    model, cache = AutoModelForCausalLM.from_config(config).eval(), DynamicCache(config=config)
    with torch.no_grad():
        model(input_ids=torch.arange(TOKENS)[None], past_key_values=cache, use_cache=True)
    layers = shape_of(told).kinds
    assert [held(layer) for layer in cache.layers] == [expected(layer) for layer in layers]
    assert layers == shape_of(config.to_dict()).kinds, "a resolved configuration says the same"


def expected(layer: LayerKind) -> tuple[int, int, int]:
    tokens = layer.tokens(TOKENS) - (layer.window is not None and layer.window < TOKENS)
    return layer.elements * tokens, layer.conv, layer.recurrent


def held(layer: Any) -> tuple[int, int, int]:
    """Elements of the tensors that a cache's layer holds: of tokens, and of its two states."""
    tokens = sum(
        t.numel() for name in ("keys", "values", "indexer_keys") if (t := getattr(layer, name, None)) is not None
    )
    states = [getattr(layer, f"{name}_states", {}).values() for name in ("conv", "recurrent")]
    conv, recurrent = (sum(t.numel() for t in state if t is not None) for state in states)
    return tokens, conv, recurrent


def test_windows_are_those_of_a_static_cache() -> None:
    config = CONFIG_MAPPING["gpt_oss"](**{k: v for k, v in given("gpt_oss").items() if k != "model_type"})
    cache = StaticCache(config=config, max_cache_len=TOKENS)
    layers = shape_of(given("gpt_oss")).kinds
    assert [layer.max_cache_len for layer in cache.layers] == [layer.tokens(TOKENS) for layer in layers]


def test_the_language_model_of_one_that_sees_is_what_counts() -> None:
    inner = given("gemma3_text")
    assert text_config({"model_type": "gemma3", "text_config": inner, "torch_dtype": "bfloat16"}) == {
        **inner,
        "torch_dtype": "bfloat16",
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["full_attention", "telepathy"] * 2}, "telepathy"),
        ({"num_attention_heads": None, "hidden_size": None}, "n_head"),
        ({"layer_types": ["linear_attention"] * 4}, "state of layers without attention of qwen3"),
    ],
)
def test_what_a_configuration_does_not_say_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        shape_of({**given("qwen3"), **change})


PLAIN = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 10}


@pytest.mark.parametrize(
    ("given", "heads"),
    [
        ({"model_type": "llama"}, [8, 8]),
        ({"model_type": "falcon", "multi_query": True, "num_kv_heads": 8}, [1, 1]),  # as falcon-7b's
        ({"model_type": "falcon", "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 2}, [2, 2]),
        ({"model_type": "unheard of", "num_key_value_heads": 2}, [2, 2]),
        ({"model_type": "chatglm", "multi_query_group_num": 2}, [2, 2]),
        ({"model_type": "openelm", "num_kv_heads": [2, 4]}, [2, 4]),
        ({"model_type": "deci", "num_key_value_heads_per_layer": [1, 2]}, [1, 2]),
        (
            {
                "model_type": "nemotron-nas",
                "num_key_value_heads": None,
                "block_configs": [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}],
            },
            [2, 0],
        ),
    ],
)
def test_kv_heads_are_read_by_each_of_their_names_and_by_layer(given: dict, heads: list[int]) -> None:
    assert [kind.kv_heads for kind in shape_of({**PLAIN, **given}).kinds] == heads


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"model_type": "unheard of"}, "its family is not known"),
        ({"model_type": "llama", "attn_kv_heads": 2}, "attn_kv_heads is not known here"),
    ],
)
def test_a_family_that_is_not_known_is_not_taken_as_the_plain_one(given: dict, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        shape_of({**PLAIN, **given})
