"""Weights that configurations ask for, against published numbers and what transformers builds."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvq_core.errors import ModelError
from kvq_core.models import parameters
from kvq_core.models.parameters import parameters_of
from kvq_core.shape import ModelShape
from kvq_core.sizing.weights import Parameters, count_weights

SHAPE = ModelShape(1, 1, 1, 64, 0)


def given(family: str, layers: int, hidden: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return {"model_type": family, **sizes, "num_key_value_heads": kv_heads, **more}


UNTIED = {"tie_word_embeddings": False}
GEMMA = given("gemma3_text", 18, 640, 4, 1, head_dim=256, intermediate_size=2048, vocab_size=262_144)
PUBLISHED = {  # billions, of the model cards
    "StarCoder2-7B": (given("starcoder2", 32, 4608, 36, 4, intermediate_size=18432, vocab_size=49_152), 7.17),
    "Llama-3.1-70B": (given("llama", 80, 8192, 64, 8, intermediate_size=28672, vocab_size=128_256, **UNTIED), 70.6),
    "Qwen2.5-7B": (given("qwen2", 28, 3584, 28, 4, intermediate_size=18944, vocab_size=152_064, **UNTIED), 7.62),
    "Gemma-3-270M": (GEMMA, 0.268),
    "Mixtral-8x7B": (
        given("mixtral", 32, 4096, 32, 8, intermediate_size=14336, vocab_size=32_000, num_local_experts=8, **UNTIED),
        46.7,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_weights_that_are_counted(name: str) -> None:
    config, billions = PUBLISHED[name]
    found = parameters_of(
        {**config, "quantization_config": {"quant_method": "gptq"}, "auto_map": {"AutoConfig": "x.Y"}}
    )
    assert sum(found) / 1e9 == pytest.approx(billions, rel=0.005)
    assert (found.experts > 0) == name.startswith("Mixtral")


@pytest.mark.parametrize("family", ["falcon", "phi", "bloom", "jamba", "gemma3n_text", "qwen3_next"])
def test_what_a_configuration_says_resolved_is_the_model_of_it(family: str) -> None:
    config = CONFIG_MAPPING[family]()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameters_of(config.to_dict())) == sum(weight.numel() for weight in model.parameters())


def test_the_language_model_counts_alone_whoever_wraps_it() -> None:
    for whole in ({"model_type": "gemma3", "text_config": GEMMA}, {"model_type": "unheard of", "llm_config": GEMMA}):
        assert parameters_of(whole) == parameters_of(GEMMA)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "unheard of", "hidden_size": 64}, "does not know the family 'unheard of'"),
        ({"auto_map": {"AutoModelForCausalLM": "their.Model"}}, "does not know the family 'None'"),
        (given("llama", 2, 64, 0, 0), "cannot build it: ZeroDivisionError"),
    ],
)
def test_others_are_not_known(config: dict[str, Any], why: str) -> None:
    told = count_weights(config, SHAPE, parameters_of)
    assert told.nbytes is None and why in told.how


def test_what_takes_too_long_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "SECONDS", 0.5)
    with pytest.raises(ModelError, match=r"more than 0\.5 s"):
        parameters_of(given("llama", 10**6, 64, 2, 2))


@pytest.mark.parametrize(
    ("said", "nbytes"),
    [
        ({}, 2 * 300),
        ({"quant_method": "mxfp4"}, 2 * 100 + 4.25 / 8 * 200),
        ({"quant_method": "fp8"}, 300),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, 4.5 / 8 * 300),
    ],
)
def test_quantized_checkpoints_keep_their_bits(said: dict[str, Any], nbytes: float) -> None:
    found = count_weights({"quantization_config": said}, SHAPE, lambda config: Parameters(100, 200))
    assert found.nbytes == round(nbytes)
