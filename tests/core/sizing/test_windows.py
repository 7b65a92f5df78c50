"""What engines give layers with a window: by their own sources, their logs, and against another tool."""

from typing import Any

import pytest
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

from tests.core.sizing.test_fit import GEMMA_3_270M, GIB, by_engine, found, gpt_oss, plain, reserved

MIB = 2**20
# 50 sliding layers and 10 that read all, every sixth
GEMMA_4_31B = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 60,
    "hidden_size": 5376,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 4,
    "sliding_window": 1024,
    "max_position_embeddings": 262_144,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("more", "batched", "gb"),
    [
        ({}, 2048, 7.28),
        ({"memory": 24 * 10**9}, 2048, 7.28),
        ({"memory": 80 * 10**9}, 8192, 9.69),
        ({"batched_tokens": 8192}, 8192, 9.69),
        ({"memory": 180 * 10**9}, 16_384, 12.89),
        ({"memory": 180 * 10**9, "batched_tokens": 2048}, 2048, 7.28),
    ],
)
def test_vllm_gives_sliding_layers_a_window_and_the_tokens_in_flight(
    more: dict[str, int], batched: int, gb: float
) -> None:
    """gpt-oss-20b, 32,768 tokens, 8 sequences, by 0.33.0's source: ceil(min(window - 1 + in flight, tokens) / 16) + 1
    pages of a sliding layer, v1/kv_cache_interface.py:918-943, two batches in flight, config/vllm.py:588-609, of a size
    that hangs on the card, engine/arg_utils.py:2946-3039."""
    row = by_engine(found(gpt_oss(), 32_768, 8, **more), "vLLM")["fp16"]
    assert row.batched_tokens == batched and row.reserved is not None
    pages = 32_768 // 16 + -(-min(127 + 2 * batched, 32_768) // 16) + 1
    assert row.reserved == 8 * pages * 12 * 16 * 2 * 8 * 64 * 2 and row.reserved / 1e9 == pytest.approx(gb, rel=0.04)


def test_vllm_holds_as_many_tokens_as_its_log_says() -> None:
    """gpt-oss-120b, "GPU KV cache size" beside "Available KV cache memory" in the log of a release that gave sliding
    layers all tokens, as many in flight still do: https://github.com/alvarobartt/hf-mem/issues/60"""
    taken = reserved(gpt_oss(36), "vLLM", 78_384, batched_tokens=78_384)
    assert taken is not None and taken / GIB == pytest.approx(5.38, abs=0.005)


def test_vllm_groups_layers_whose_pages_are_of_one_size() -> None:
    """Gemma 4 31B: 50 sliding layers are five groups of ten, whose page of 16 tokens is as large as one of 32 tokens of
    the ten that read all; v1/core/kv_cache_planning.py:346-545"""
    page, flight = 10 * 16 * 16 * 256 * 2 * 2, 2 * 2048
    pages = 32_768 // 32 + 5 * (-(-(1023 + flight) // 16) + 1)
    assert reserved(GEMMA_4_31B, "vLLM", 32_768) == page * pages


@pytest.mark.parametrize(("slots", "mib"), [(3, 27.0), (4, 18.0)])
def test_llama_cpp_pads_each_slot(slots: int, mib: float) -> None:
    """gemma-3-270m, 1,024 tokens shared by slots: https://github.com/unslothai/unsloth/pull/7530"""
    assert reserved(GEMMA_3_270M, "llama.cpp", -(-1024 // slots), slots) == mib * MIB


def test_llama_cpp_gives_sliding_layers_a_window_and_a_batch() -> None:
    """15 of 18 layers: 512 + 512 cells of 4,096, https://github.com/qualcomm/GenieX/pull/1346 for the rule."""
    assert reserved(GEMMA_3_270M, "llama.cpp", 4096) == (3 * 4096 + 15 * 1024) * 1024
    assert reserved(GEMMA_3_270M, "ik_llama.cpp", 4096) == 18 * 4096 * 1024


def mistral(family: str = "mistral", layers: int = 32, **more: Any) -> dict[str, Any]:
    return {**plain(layers, 8, 128), "model_type": family, "sliding_window": 4096, **more}


def test_llama_cpp_windows_what_its_code_windows() -> None:
    """Mistral, whose architecture reads no window there: 32 x 8 x 128 x 2 x 2 bytes a token, issues 3371 and 3377."""
    for format, gb in (("fp16", 4.29), ("q8_0", 2.28)):
        taken = reserved(mistral(), "llama.cpp", 32_768, format=format)
        assert taken is not None and taken / 1e9 == pytest.approx(gb, rel=0.01)
    assert reserved(mistral(), "ik_llama.cpp", 32_768) == 32 * 32_768 * 4096
    assert reserved(mistral(), "vLLM", 32_768) == 32 * (-(-(4095 + 4096) // 16) + 1) * 16 * 4096
    listed = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    assert reserved(mistral("exaone4", 4, **listed), "llama.cpp", 32_768) == 4 * 32_768 * 4096
    wide = mistral("exaone4", 64, layer_types=listed["layer_types"] * 16)
    assert reserved(wide, "llama.cpp", 32_768) == (16 * 32_768 + 48 * (4096 + 512)) * 4096
    assert reserved(mistral("afmoe", 4, **listed), "llama.cpp", 32_768) is None, "not among those that were read"
    chunked = {"attention_chunk_size": 8192, "layer_types": ["chunked_attention"] * 3 + ["full_attention"]}
    assert reserved(mistral("llama4_text", 4, **chunked), "vLLM", 32_768) == 4 * 32_768 * 4096


@pytest.mark.parametrize("config", [gpt_oss(), GEMMA_3_270M, {**gpt_oss(), "layer_types": ["full_attention"] * 24}])
@pytest.mark.parametrize(("context", "batch"), [(1024, 1), (8192, 32)])
def test_hf_mem_reserves_the_same(config: dict[str, Any], context: int, batch: int) -> None:
    """Its arithmetic, called on a local config: https://github.com/alvarobartt/hf-mem. It gives sliding layers all
    tokens, so as many are in flight here; a window that begins within a page takes one page more."""
    pattern = 6 if config is GEMMA_3_270M else 2
    told = config if "layer_types" in config else {**config, "sliding_window_pattern": pattern}
    theirs = compute_safetensors_kv_cache_size(told, "BF16", context, batch)
    own = reserved(config, "vLLM", context, batch, batched_tokens=context)
    assert own is not None and theirs <= own <= theirs * (1 + 16 / context)
