"""Flags as people paste them: from shells, containers' files, environments and code."""

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape, make
from kvq_core.recommend.engine_flags import lane_of_flags
from tests.support.campaigns import inputs
from tests.support.damage import damaged

SHAPE = ModelShape(30, 9, 3, 64, 2048)


def named(text: str) -> str:
    lane = lane_of_flags(text, SHAPE.kinds)
    assert lane.why_not(SHAPE) is None
    return ", ".join(rule.named() for rule in lane.every_rule)


@pytest.mark.parametrize(
    ("command", "titled"),
    [
        ("-ctk q8_0 -ctv q4_0", "K q8_0, V q4_0"),
        ("llama-server -m M.gguf -fa on --cache-type-k=q8_0", "K q8_0"),
        ("vllm serve M --kv-cache-dtype fp8", "fp8"),
        ("--kv-cache-dtype fp8_e4m3", "fp8"),
        ("trtllm-serve M --kv_cache_dtype nvfp4", "nvfp4"),
        ("-cq 8,4", "K exl3 8, V exl3 4"),
        ("llama-server -m m.gguf -c 8192 -ngl 99 -fa on -ctk q8_0 -ctv q8_0", "q8_0"),
        ("llama-server -ctk q8_0 -ctv q8_0 -ctkd q4_0 --cache-type-v-draft q4_0 -t 4 -cb", "q8_0"),
        ("-ctk q4_0 -ctv q4_0 -ctk q8_0 -ctv q8_0", "q8_0"),
        ("LLAMA_ATTN_ROT_DISABLE=1 llama-server -ctk q4_0 -ctv q4_0", "q4_0 unrotated"),
        ("-ctk q6_0 -ctv q6_0", "q6_0"),
        ("-ctk q8_0 -ctv f16 -ctk-first f16,2", "layers 2-29 K q8_0 unrotated"),
        ("--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0 29", "layers 1-28 fp8"),
        ("-ctk f16 -ctv f16", "fp16"),
        ('model.generate(**inputs, cache_implementation="quantized", cache_config={"nbits": 2})', "quanto 2"),
        ("cache_config={'backend': 'hqq', 'nbits': 8, 'axis_key': 1, 'axis_value': 1}", "hqq 8"),
    ],
)
def test_flags_as_people_paste_them_are_a_lane(command: str, titled: str) -> None:
    assert named(command) == titled


@pytest.mark.parametrize(
    ("command", "known", "said"),
    [
        ("hello", True, "holds no flags of a KV cache"),
        ("-ctk", True, "-ctk is given no value that can be read"),
        ("-ctk -ctv", True, "-ctk is given no value that can be read"),
        ("-ctk q9_9", True, "llama.cpp has no format 'q9_9'"),
        ("--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0", False, "not known before it is loaded"),
        ("-ctk q8_0 -ctk-first f16,31", True, "at most 30"),
        ("--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 30", True, "Layer 30 is left out there"),
        ("--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers -1", True, "is given no value that can be read"),
        ("-cq 4 -cca 2", True, "compander"),
        ("-cq 4 -cca half", True, "-cca 'half' is not allowed"),
        ("-ctk q8_0 -ctk-last f16,x", True, "give TYPE,LAYERS"),
        ('cache_config={"backend": "fp8"}', True, "transformers has no format"),
        ("cache_config={backend}", True, "cannot be read"),
    ],
)
def test_what_is_no_flag_of_a_cache_is_refused_in_one_line(command: str, known: bool, said: str) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        lane_of_flags(command, SHAPE.kinds if known else None)
    assert "\n" not in str(refused.value)


FORMS = {
    "continued without indent": "vllm serve M \\\n--kv-cache-dtype fp8",
    "continued within": "vllm serve M --kv-cache-dtype \\\n  fp8 \\\n  --port 8000",
    "of PowerShell": "vllm serve M `\n--kv-cache-dtype fp8",
    "of cmd": "vllm serve M ^\r\n--kv-cache-dtype fp8",
    "a list of YAML": "args:\n  - --model\n  - M\n  - --kv-cache-dtype\n  - fp8\n  - --port",
    "quoted in YAML": 'command:\n- "--kv-cache-dtype"\n- "fp8"',
    "in a line of YAML": "args: [--model, M, --kv-cache-dtype, fp8, --port, '8000']",
    "with = in YAML": "  - --kv-cache-dtype=fp8",
    "a list of JSON": '["vllm", "serve", "--kv-cache-dtype", "fp8", "--port", "8000"]',
    "a list in one more text": '"args": "[\\"--kv-cache-dtype\\", \\"fp8\\"]"',
    "of compose": "image: vllm/vllm-openai\n    command: --model M --kv-cache-dtype fp8",
    "of docker run": "docker run --gpus all -p 8000:8000 vllm/vllm-openai --model M --kv-cache-dtype fp8",
    "of a vLLM config": "model: M\nkv-cache-dtype: fp8\n",
    "of Python": 'LLM(model="M", kv_cache_dtype="fp8")',
    "of a dict": "{'kv_cache_dtype': 'fp8'}",
    "with a comment": "vllm serve M --kv-cache-dtype fp8  # don't take fp8_e5m2: --kv-cache-dtype fp8_e5m2",
    "behind a comment": "# it's for --kv-cache-dtype nvfp4\nvllm serve M --kv-cache-dtype fp8",
    "a hash in a text": "vllm serve M --chat-template 'a # b' --kv-cache-dtype fp8",
    "with an open quote": "here's mine: vllm serve M --kv-cache-dtype fp8",
    "a draft's beside": "--kv-cache-dtype fp8 --speculative-draft-kv-cache-dtype bf16",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_flag_is_found_however_it_is_written(form: str) -> None:
    assert named(FORMS[form]) == "fp8"


ENVIRONMENTS = {
    "OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve": "q8_0",
    'Environment="OLLAMA_KV_CACHE_TYPE=Q4_0"': "q4_0",
    "$env:OLLAMA_KV_CACHE_TYPE = 'q8_0'": "q8_0",
    "docker run -e OLLAMA_FLASH_ATTENTION=1 -e OLLAMA_KV_CACHE_TYPE=q8_0 ollama/ollama": "q8_0",
    "environment:\n  - OLLAMA_KV_CACHE_TYPE=f16": "fp16",
    "LLAMA_ARG_CACHE_TYPE_K=q8_0 LLAMA_ARG_CACHE_TYPE_V=q4_0 llama-server": "K q8_0, V q4_0",
    "environment:\n  LLAMA_ARG_CACHE_TYPE_K: q8_0\n  LLAMA_ARG_CACHE_TYPE_V: q8_0\n": "q8_0",
    "LLAMA_ARG_CACHE_TYPE_K=q8_0 llama-server -ctk q4_0 -ctv q4_0": "q4_0",
    "LLAMA_ATTN_ROT_DISABLE: 1\nLLAMA_ARG_CACHE_TYPE_K: q4_0": "K q4_0 unrotated",
    "cache-type-k = q8_0\ncache-type-v = q8_0": "q8_0",
}


@pytest.mark.parametrize("text", ENVIRONMENTS)
def test_environments_say_a_cache_as_flags_do(text: str) -> None:
    assert named(text) == ENVIRONMENTS[text]


WORDS = {
    "python -m sglang.launch_server --model-path M --kv-cache-dtype fp4_e2m1": "mxfp4",
    "python -m sglang.launch_server --model-path M --kv-cache-dtype bfloat16": "bf16",
    "vllm serve M --kv-cache-dtype fp8_e4m3": "fp8",
    "vllm serve M --kv-cache-dtype-skip-layers 0 29 --kv-cache-dtype fp8": "layers 1-28 fp8",
    "- --kv-cache-dtype-skip-layers\n- '0'\n- '29'\n- --kv-cache-dtype\n- fp8": "layers 1-28 fp8",
    "vllm serve M --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window": "fp8",
    "lmdeploy serve api_server M --quant-policy 16": "fp8",
    "TurbomindEngineConfig(quant_policy=17)": "fp8 e5m2",
    "pytorch lmdeploy --quant-policy 0": "fp16",
}


@pytest.mark.parametrize("text", WORDS)
def test_words_that_engines_had_or_have_as_well_are_known(text: str) -> None:
    assert named(text) == WORDS[text]


CODE = [
    ({"bits": 4}, 'QuantizedCache(backend="quanto", config=model.config, nbits=4, axis_key=0, axis_value=0)'),
    ({"bits": 2}, 'cache_config={"backend": "hqq", "nbits": 2}'),
    ({"group_size": 32}, "cache_config = dict(backend='HQQ', q_group_size=32, compute_dtype=torch.float16)"),
    ({"residual_length": 64}, 'generate(cache_implementation="quantized", cache_config={"residual_length": 64})'),
    ({}, 'model.generate(**inputs, cache_implementation="quantized")'),
    ({"axis": 1}, 'HQQQuantizedCache(QuantizedCacheConfig(axis_key=1, axis_value=1, device=torch.device("cuda")))'),
]


@pytest.mark.parametrize(("knobs", "code"), CODE)
def test_code_of_transformers_is_the_method_with_its_knobs(knobs: dict, code: str) -> None:
    [rule] = lane_of_flags(code, None).every_rule
    backend = "hqq" if "hqq" in code.lower() else "quanto"
    assert make(rule.method, **rule.knobs) == make(backend, **knobs)


@pytest.mark.parametrize("method", [make("quanto"), make("quanto", bits=2, group_size=32), make("hqq", bits=8, axis=1)])
def test_code_that_is_printed_is_read_back(method) -> None:
    [way] = [way for way in method.elsewhere() if way.tool == "transformers"]
    [rule] = lane_of_flags(way.how, SHAPE.kinds).every_rule
    assert make(rule.method, **rule.knobs) == method


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "python -m sglang.launch_server --kv-cache-dtype int4",
            r"SGLang has no format 'int4' here; known: .*mx_block16",
        ),
        ("python -m sglang.launch_server --kv-cache-dtype fp8", "SGLang has no format 'fp8' here"),
        ("OLLAMA_KV_CACHE_TYPE=q5_0", "Ollama has no format 'q5_0' here; known: f16, q8_0, q4_0"),
        ("mlx_lm.generate --model M --kv-bits 8", "mlx-lm's --kv-bits 8.* per_token with bits = 8, group_size = 64"),
        ("mlx_lm.server --kv-bits 4 --kv-group-size 32", "per_token with bits = 4, group_size = 32"),
        ("lmdeploy serve api_server M --quant-policy 8", "LMDeploy has no format '8' here.* per_token with bits = 8"),
        ("lmdeploy --quant-policy 42", "LMDeploy has no format '42' here; known: 0, 16, 17"),
        ('QuantizedCache(backend="fp8", config=c)', "transformers has no format 'fp8' here; known: hqq, quanto"),
        ("cache_config={'axis_key': 0, 'axis_value': 1}", "axis_key and axis_value differ: 0 and 1"),
        ("cache_config={'backend': 'quanto', 'nbits': 8}", "bits"),
        ("-ctk $TYPE -ctv ${TYPE}", "-ctk is given no value that can be read"),
        ("#OLLAMA_KV_CACHE_TYPE=q8_0", "holds no flags of a KV cache"),
    ],
)
def test_what_has_no_format_here_is_refused_by_its_engine(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        lane_of_flags(text, SHAPE.kinds)
    assert "\n" not in str(refused.value)


PASTED = [*FORMS.values(), *ENVIRONMENTS, *WORDS, *(code for _, code in CODE)]


@inputs(20)
@given(st.sampled_from(PASTED) | st.text(max_size=80), st.sampled_from(PASTED), st.integers(0, 2**32))
def test_any_text_is_a_lane_or_refused_in_one_line(first: str, second: str, seed: int) -> None:
    bad = damaged(f"{first} {second}".encode(errors="replace"), random.Random(seed)).decode(errors="replace")
    with contextlib.suppress(SpecError):
        assert lane_of_flags(bad, SHAPE.kinds).every_rule
