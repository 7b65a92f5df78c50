"""What fits: against figures that engines and others published, each with its source, and against another tool."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvq_core.errors import ModelError
from kvq_core.inspection.fits import fit_of_folder
from kvq_core.models import load
from kvq_core.models.parameters import parameters_of
from kvq_core.packed.measurement import MeasureRequest, measure
from kvq_core.presets.formats import formats
from kvq_core.shape import ModelShape
from kvq_core.sizing.count import CacheBytes, cache_bytes
from kvq_core.sizing.fit import Fit, FitRequest, Reserve, fit, memory_of
from kvq_core.sizing.layers import shape_of
from kvq_core.sizing.reserve import Stack, allowance, page_tokens
from kvq_core.sizing.weights import Weights, count_weights
from kvq_core.spec import Lane

GIB = 2**30


def gpt_oss(layers: int = 24) -> dict[str, Any]:
    return {
        "model_type": "gpt_oss",
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "vocab_size": 201_088,
        "sliding_window": 128,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4"},
    }


GEMMA_3_270M = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 18,
    "hidden_size": 640,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "max_position_embeddings": 32_768,
    "dtype": "bfloat16",
}
NEMOTRON_NANO_9B = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "num_hidden_layers": 56,
    "hidden_size": 4480,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129_280,
    "max_position_embeddings": 163_840,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}


def found(config: dict[str, Any], context: int, batch: int = 1, memory: int | None = None, **more: Any) -> Fit:
    shape = shape_of(config)
    asked = FitRequest(memory=memory, context=context, batch=batch, **more)
    return fit("a model", shape, count_weights(config, shape, parameters_of), asked, formats())


def by_engine(found: Fit, engine: str) -> dict[str, Reserve]:
    """The formats of an engine by their names."""
    return {each.name: row for each in found.formats for row in each.engines if row.engine == engine}


def reserved(
    config: dict[str, Any], engine: str, context: int, batch: int = 1, format: str = "fp16", **more: Any
) -> int | None:
    return by_engine(found(config, context, batch, **more), engine)[format].reserved


def test_tensors_of_sliding_layers_are_windows() -> None:
    """gpt-oss-20b, 8,192 tokens, 32 sequences, bf16: https://github.com/alvarobartt/hf-mem/pull/70"""
    tensors = found(gpt_oss(), 8192, 32).formats[0].tensors
    assert tensors is not None and round(tensors / GIB, 2) == 6.09


def test_vllm_pages_beside_states_are_as_long_as_they_say() -> None:
    """NVIDIA-Nemotron-Nano-9B-v2, 672 tokens: https://github.com/vllm-project/vllm/issues/24280"""
    state, attention = (
        next(layer for layer in shape_of(NEMOTRON_NANO_9B).kinds if getattr(layer, name))
        for name in ("conv", "kv_heads")
    )
    incoming = state.conv // state.conv_width * (state.conv_width - 1)
    assert page_tokens(2 * (incoming + state.recurrent), 2 * attention.elements) == 672
    kinds = Stack(shape_of(NEMOTRON_NANO_9B).kinds)
    assert sorted(kinds.values()) == [4, 25, 27], "4 layers attend, 27 have states, 25 neither"
    page = 672 * 2 * attention.elements
    # groups of 4 layers: 27 layers with states fill 7 of them
    assert reserved(NEMOTRON_NANO_9B, "vLLM", 8192, 2) == 2 * (4 * 13 + 28) * page


def test_a_latent_is_counted_once_and_in_the_formats_engines_have() -> None:
    """DeepSeek-V3: (512 + 64) channels x 61 layers x 2 bytes = 70.272 KB a token, arXiv 2505.09343, table 1."""
    assert reserved(DEEPSEEK_V3, "vLLM", 16_000) == 16_000 * 70_272
    assert reserved(DEEPSEEK_V3, "vLLM", 16_000, format="nvfp4") is None
    assert (nbytes := found(DEEPSEEK_V3, 1000).weights.nbytes) is not None
    assert nbytes / 1e9 == pytest.approx(671, rel=0.01), "671B weights, a byte each: arXiv 2412.19437"


def plain(layers: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    """Of a model whose layers all attend to all tokens."""
    return {
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "num_attention_heads": 8 * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": 8 * kv_heads * head_dim,
        "max_position_embeddings": 2**24,
        "torch_dtype": "bfloat16",
    }


def test_sglang_takes_what_its_log_says() -> None:
    """Qwen3-235B-A22B on 4 GPUs, so one of its 4 KV heads on each: 367,404 tokens, 8.23 GB of keys and as many of
    values, https://github.com/vllm-project/vllm/issues/21348"""
    taken = reserved(plain(94, 1, 128), "SGLang", 367_404)
    assert taken is not None and round(taken / 2 / GIB, 2) == 8.23


def test_tensorrt_llm_takes_blocks_of_32_tokens() -> None:
    """116,617 blocks of 32 tokens, 3,731,744 in all, take 78.30 GiB: of 22 layers with 4 KV heads of 64, TinyLlama's,
    https://github.com/triton-inference-server/tutorials/pull/150"""
    taken = reserved(plain(22, 4, 64), "TensorRT-LLM", 3_731_744 - 31)
    assert taken is not None and 116_617 * 32 == 3_731_744 and round(taken / GIB, 2) == 78.3


@pytest.mark.parametrize(("bits", "tokens"), [(6, 1000), (8, 256)])
def test_exllamav3_takes_whole_pages_of_codes_and_scales(bits: int, tokens: int) -> None:
    """Pages of 256 tokens, for 32 channels ``bits`` words of 32 bits and a scale of 16, of keys and of values:
    ``storage_size`` of exllamav3/cache/quant.py at 32da457, PAGE_SIZE of constants.py at 543c4b2"""
    layers, channels, pages = 16, 8 * 128, -(-tokens // 256)
    each = pages * 256 * (channels // 32) * (4 * bits + 2)
    assert reserved(plain(layers, 8, 128), "ExLlamaV3", tokens, format=f"exl3 {bits}") == 2 * layers * each


def test_weights_of_gpt_oss() -> None:
    """Checkpoint of 12.8 GiB, arXiv 2508.10925, table 1."""
    assert (nbytes := found(gpt_oss(), 1000).weights.nbytes) is not None and nbytes / GIB == pytest.approx(
        12.8, abs=0.05
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "which",
    [
        pytest.param("smollm", marks=pytest.mark.real_model),
        pytest.param("second_model", marks=pytest.mark.second_model),
    ],
)
def test_tensors_are_those_of_packed_caches(which: str, request: pytest.FixtureRequest) -> None:
    """Of both models, through the packed caches that ``generate`` reads."""
    given = request.getfixturevalue(which)
    model = load(given) if isinstance(given, str) else given
    shape = shape_of(model.model.config.to_dict())
    ids = model.encode("A cache holds keys and values. " * 9)[:40]
    for name in ("q4_0", "fp8"):
        held = measure(model, Lane(label=name, method=name), ids, MeasureRequest(tokens=40, new_tokens=3)).cache_bytes
        found = cache_bytes(Lane(method=name), shape, 40, 42)
        assert isinstance(found, CacheBytes) and found.tensors == held


def test_the_longest_context_just_fits() -> None:
    shape, weights = shape_of(gpt_oss()), Weights(nbytes=10**10, how="")
    row = by_engine(fit("", shape, weights, FitRequest(context=1000, batch=4), formats()), "vLLM")["fp8"]
    longest, left = row.contexts[16], allowance().left(16 * 10**9) - 10**10

    def taken(context: int) -> int:
        own = by_engine(fit("", shape, weights, FitRequest(context=context, batch=4), formats()), "vLLM")["fp8"]
        assert own.reserved is not None
        return own.reserved

    assert longest is not None and taken(longest) <= left < taken(longest + 1)


def test_fits_says_whether_weights_cache_and_allowance_do() -> None:
    own = by_engine(found(gpt_oss(), 8192, 32, memory_of("24GB")), "vLLM")
    assert own["fp16"].fits is False and own["fp8"].fits is True
    assert {row.fits for row in by_engine(found(gpt_oss(), 8192, 32, memory_of("12GB")), "vLLM").values()} == {False}


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    config = {**NEMOTRON_NANO_9B, "model_type": "unheard of", "torch_dtype": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = fit_of_folder(tmp_path, FitRequest(memory=10**11, context=200_000))
    assert told.weights.nbytes is None and "bytes of the weights" in told.unknown
    assert any("dtype" in each for each in told.unknown)
    assert {row.fits for each in told.formats for row in each.engines} == {None}
    assert "more than the model's own context" in told.warnings[0]
    assert by_engine(told, "SGLang")["fp16"].reserved is None, "how it holds states was not read"


def test_a_configuration_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="no object"):
        fit_of_folder(tmp_path, FitRequest())


def test_shapes_without_a_dtype_are_taken_for_bfloat16() -> None:
    assert ModelShape.of_layers((), 0, 0).dtype_bytes == 2
