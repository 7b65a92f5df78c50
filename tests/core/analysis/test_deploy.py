"""How engines are told a lane of rules, and which rule one cannot have."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, QuantizedCache

from kvq_core.analysis.deploy import whole_lane
from kvq_core.engines import engines
from kvq_core.methods import LayerKind, make, methods
from kvq_core.presets import bundle_lanes
from kvq_core.record.fields import LaneRecord, RuleRecord
from kvq_core.spec import parse_lane


def lane_of(*rules: dict[str, Any]) -> LaneRecord:
    """As a finished run records it."""
    data: dict[str, Any] = {"label": "L", "rules": list(rules)} if len(rules) > 1 else {"label": "L", **rules[0]}
    lane = parse_lane(data)
    own = [
        RuleRecord(
            title=rule.build().title,
            summary=rule.build().summary(),
            **{**rule.model_dump(), "knobs": rule.build().model_dump(mode="json")},
        )
        for rule in lane.every_rule
    ]
    several = {"method": None, "knobs": None} if len(own) > 1 else {}
    first = {**own[0].model_dump(exclude={"tokens"}), "rules": own if several else [], "label": "L", "status": "done"}
    return LaneRecord(**{**first, **several})


FULL = LayerKind(kind="full", kv_heads=2, key_dim=64, value_dim=64)
SLIDING = LayerKind(kind="sliding", window=32, kv_heads=2, key_dim=64, value_dim=64)


def told(
    *rules: dict[str, Any], layers: tuple[LayerKind, ...] = (FULL,) * 6
) -> tuple[dict[str, str], dict[str, tuple[int, str]]]:
    ways, refusals = whole_lane(lane_of(*rules), layers)
    return {way.tool: way.how for way in ways}, {no.engine: (no.rule, no.reason) for no in refusals}


def keys(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "tensors": "keys", **more}


def values(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "tensors": "values", **more}


def test_keys_by_one_type_and_values_by_another_are_two_flags_of_llama_cpp() -> None:
    ways, refusals = told(keys("q8_0"), values("q4_0"))
    assert ways == {"llama.cpp": "llama-server -m M.gguf -fa on -ctk q8_0 -ctv q4_0"} and refusals == {}
    ways, _ = told(keys("q8_0"))
    assert ways == {"llama.cpp": "llama-server -m M.gguf -fa on -ctk q8_0 -ctv f16"}
    ways, _ = told(values("q4_0", knobs={"rotate": False}), keys("q6_0"))
    assert ways == {"ik_llama.cpp": "ik_llama.cpp/build/bin/llama-server -m M.gguf -fa on -ctk q6_0 -ctv q4_0"}


def test_exllama_takes_a_width_for_each_and_has_no_unquantized_side() -> None:
    assert told(keys("exl3", knobs={"bits": 6}), values("exl3", knobs={"bits": 5}))[0] == {"ExLlamaV3": "-cq 6,5"}
    assert told(keys("exl3"))[1] == {"ExLlamaV3": (1, "values cannot stay unquantized there")}


def test_vllm_leaves_out_layers_and_no_other_engine_does() -> None:
    ways, refusals = told({"method": "fp8", "layers": [1, 2, 3, 4]})
    assert ways == {"vLLM": "vllm serve M --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0 5"}
    assert refusals == dict.fromkeys(("SGLang", "TensorRT-LLM"), (1, "all layers have one format there"))


def first(*rules: dict[str, Any]) -> dict[str, str | None]:
    ways, _ = whole_lane(lane_of(*rules), (FULL,) * 6)
    return {way.tool: way.since for way in ways}


def test_a_lane_is_there_from_the_release_on_that_has_all_it_asks_for() -> None:
    assert first({"method": "fp8"})["vLLM"] == "0.4.3"
    assert first({"method": "fp8", "layers": [1, 2, 3, 4]}) == {"vLLM": "0.19.0"}  # which leaves layers out
    assert first(keys("fp16"), values("q8_0"))["llama.cpp"] == first({"method": "q8_0"})["llama.cpp"]
    assert first(keys("q4_0"), values("bf16")) == {"llama.cpp": None}


def test_layers_with_windows_are_stored_as_the_engine_stores_them() -> None:
    """Where a lane leaves them alone, vLLM is told so, and other engines do not have the lane."""
    some = (FULL, SLIDING, SLIDING)
    ways, refusals = told({"method": "fp8"}, layers=some)
    assert ways == {"vLLM": "vllm serve M --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window"}
    assert refusals.keys() == {"SGLang", "TensorRT-LLM"} and "sliding = true" in refusals["SGLang"][1]
    assert "sliding = true" in told({"method": "q8_0"}, layers=some)[1]["llama.cpp"][1]
    ways, _ = told({"method": "q8_0", "sliding": True}, layers=some)
    assert ways == {"llama.cpp": "llama-server -m M.gguf -fa on -ctk q8_0 -ctv q8_0"}
    assert told({"method": "fp16"}, layers=some)[0]["llama.cpp"].endswith("-ctk f16 -ctv f16")
    assert told({"method": "fp8", "sliding": True}, layers=some)[0]["vLLM"] == "vllm serve M --kv-cache-dtype fp8"
    assert "keep all tokens" in told({"method": "quanto", "sliding": True}, layers=some)[1]["transformers"][1]
    state = FULL.model_copy(update={"recurrent": 64})
    assert "keep all tokens" in told({"method": "quanto"}, layers=(FULL, state))[1]["transformers"][1]


@pytest.mark.parametrize(
    ("rules", "engine", "number", "word"),
    [
        ([keys("fp8"), values("nvfp4")], "vLLM", 2, "one format"),
        ([keys("q8_0"), values("kivi")], "llama.cpp", 2, "no such format"),
        ([keys("kivi"), values("q8_0")], "llama.cpp", 1, "no such format"),
        ([{"method": "q8_0", "layers": [0, 1]}, {"method": "q4_0"}], "llama.cpp", 1, "layers"),
        ([{"method": "fp8", "recent_tokens": 64}], "vLLM", 1, "no tokens stay"),
        ([keys("fp8")], "SGLang", 1, "keys and values have one format"),
        ([{"method": "fp8", "rotate": "hadamard"}], "vLLM", 1, "rotation"),
        ([{"method": "int8_per_token_head", "center": "mean"}], "vLLM", 1, "centred"),
        ([{"method": "q8_0", "tokens": "first:4"}, {"method": "q4_0"}], "llama.cpp", 1, "all tokens"),
    ],
)
def test_what_an_engine_cannot_have_is_a_rule_and_a_reason(
    rules: list[dict[str, Any]], engine: str, number: int, word: str
) -> None:
    ways, refusals = told(*rules)
    assert engine not in ways and refusals[engine][0] == number and word in refusals[engine][1]


def test_methods_that_no_engine_knows_are_none_of_its_lanes() -> None:
    assert told(keys("kivi"), values("squat")) == ({}, {})


@pytest.mark.parametrize("name", methods())
def test_what_engines_call_a_format_is_what_its_flags_say(name: str) -> None:
    method = make(name)
    assert method.cache_types.keys() <= engines().keys()
    for way in method.elsewhere():
        known = method.cache_types.keys() - {"transformers"}  # whose words are code
        if way.tool in known and not method.cache_types[way.tool].startswith("f16"):
            assert way.how.replace(",", " ").split()[-1] == method.cache_types[way.tool] or "-ctk" in way.how
            assert method.cache_types[way.tool] in way.how


@pytest.mark.parametrize("given", bundle_lanes("deploy-transformers"), ids=lambda given: given["label"])
def test_transformers_makes_the_cache_that_its_command_says(given: dict[str, Any]) -> None:
    pytest.importorskip({"quanto": "optimum.quanto", "hqq": "hqq"}[given["method"]])
    asked: dict[str, Any] = {}
    model = SimpleNamespace(generate=lambda **how: asked.update(how))
    exec(told(given)[0]["transformers"], {"model": model, "inputs": {}})
    assert asked.pop("cache_implementation") == "quantized"
    cache = QuantizedCache(config=LlamaConfig(num_hidden_layers=2), **asked["cache_config"])
    layer, method = cache.layers[0], make(given["method"], **given["knobs"])
    assert method.name in type(layer).__name__.lower() and layer.nbits == method.bits
    assert layer.axis_key == layer.axis_value == method.axis and layer.q_group_size == method.group_size
    assert layer.residual_length == method.residual_length


def test_llama_cpp_knows_the_types_it_is_told() -> None:
    """The real engine's own list."""
    kinds = pytest.importorskip("xllamacpp").ggml_type
    types = {word for name in methods() for engine, word in make(name).cache_types.items() if engine == "llama.cpp"}
    assert types == {"f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"}
    for name in types:
        assert hasattr(kinds, f"GGML_TYPE_{name.upper()}")
