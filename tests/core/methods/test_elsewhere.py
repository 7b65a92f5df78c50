"""What is said about using a method outside this project: code is run as far as the packages installed let it."""

import importlib.util
from itertools import product
from typing import ClassVar

import pytest
import torch
from pydantic import ValidationError

from kvq_core.engines import UNRELEASED, engines, latest
from kvq_core.methods import make, methods
from kvq_core.methods.deployments import with_center
from kvq_core.methods.kivi import Kivi
from tests.support.quanto import compile_nothing
from tests.support.tiny_models import prompt_ids, tiny

PROGRAMS = (
    "ik_llama.cpp/build/bin/llama-server",
    "llama-server",
    "vllm serve",
    "python -m sglang.launch_server",
    "trtllm-serve",
)
BACKENDS = {"optimum-quanto": "optimum", "hqq": "hqq"}  # as they are installed, and as they are imported
WIDTHS = (1, 2, 3, 4, 8)
FIRST_UNKNOWN = {("bf16", "llama.cpp")}  # no source was found that says it
UNRELEASED_WAYS = {("kvarn", "vLLM"), ("oscar", "SGLang")}
# what torch or ggml runs on will do, a CPU too; and what no source was found for
ANY_HARDWARE = ("transformers", "llama.cpp")
HARDWARE_UNKNOWN = {("kvarn", "vLLM")}
KNOBS = {  # beside the defaults, what says something else of its engines
    "fp8": [{"format": "e5m2"}],
    "nvfp4": [{"four_over_six": True}],
    "turboquant": [{"preset": preset} for preset in ("k8v4", "k3v4_nc", "3bit_nc")],
    "exl3": [{"compander": 0.65}],
    "q6_0": [{"rotate": True}],
}


def ways():
    """All that any method says at any width, each once: (method, bits, way)."""
    found = {}
    for (name, method), bits in product(methods().items(), WIDTHS):
        try:
            told = method(**({"bits": bits} if "bits" in method.model_fields else {})).elsewhere()
        except ValidationError:  # a width the method has not
            continue
        found |= {(way.tool, way.how): pytest.param(way, id=f"{name}-{bits}-{way.tool}") for way in told}
    return list(found.values())


def deployed():
    """(format, way) of all that engines ship, of the knobs that change what is said too, and of fp16."""
    names = [name for name, cls in methods().items() if ".formats." in cls.__module__ or name == "fp16"]
    made = [make(name, **knobs) for name in names for knobs in ({}, *KNOBS.get(name, ()))]
    return [(method.name, way) for method in made for way in method.elsewhere()]


def is_code(way):
    return "import " in way.how


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model as a person has it on disk."""
    folder = tmp_path_factory.mktemp("model")
    held = tiny("llama").model.config._attn_implementation
    tiny("llama").model.set_attn_implementation("sdpa")
    tiny("llama").model.save_pretrained(folder)
    tiny("llama").model.set_attn_implementation(held)
    return str(folder)


@pytest.mark.few(sample=4)
@pytest.mark.parametrize("way", [way for way in ways() if is_code(way.values[0])])
def test_code_runs_or_lacks_nothing_but_a_package_that_it_names(way, saved, monkeypatch):
    from transformers import AutoModelForCausalLM

    if importlib.util.find_spec(BACKENDS["optimum-quanto"]):
        compile_nothing(monkeypatch)
    ids = torch.tensor([prompt_ids(71)])  # odd: some packings need whole bytes
    names = {
        "name": saved,
        "model": AutoModelForCausalLM.from_pretrained(saved),
        "inputs": {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 40},
    }
    code = compile(way.how, way.tool, "exec")
    lacking = [
        package
        for package, module in BACKENDS.items()
        if f"pip install {package}" in way.how and importlib.util.find_spec(module) is None
    ]
    if not lacking:
        exec(code, names)  # noqa: S102
        return
    with pytest.raises(ImportError, match=f"pip install {lacking[0]}"):  # names and arguments were right until then
        exec(code, names)  # noqa: S102


@pytest.mark.parametrize("way", [way for way in ways() if not is_code(way.values[0])])
def test_the_rest_is_flags_a_servers_call_or_an_address(way):
    """Of servers and research code, which cannot run here."""
    told = way.how.removeprefix("LLAMA_ATTN_ROT_DISABLE=1 ")
    address = len(told.split()) == 1 and told.startswith("https://github.com/")
    assert told.startswith(("-", *(f"{program} " for program in PROGRAMS))) or address


@pytest.mark.parametrize("bits", [1, 3])
def test_widths_that_fail_in_hqq_are_not_offered(bits):
    for name in ("kivi", "per_token"):
        assert all(way.tool != "transformers" for way in make(name, bits=bits).elsewhere())


def test_what_is_said_depends_on_the_settings():
    assert any("q8_0" in way.how for way in make("per_token", bits=8).elsewhere())
    assert not any(way.tool == "llama.cpp" for way in make("per_token", bits=2).elsewhere())
    assert not make("svdq").elsewhere()
    assert "q_group_size=16, residual_length=48" in make("kivi", group_size=16, residual_length=48).elsewhere()[0].how


def test_no_method_inherits_what_is_said_of_another():
    class Other(Kivi):
        name: ClassVar[str] = "other"

    class Told(Kivi):
        elsewhere = Kivi.elsewhere

    assert Kivi().elsewhere() and Other().elsewhere() == () and Told().elsewhere() == Kivi().elsewhere()


def test_no_way_centres_keys_but_a_fork_of_llama_cpp():
    plain = make("per_token", bits=4).elsewhere()
    assert with_center(plain, "none") == plain
    before = with_center(plain, "mean")
    assert [way.how for way in before] == [way.how for way in plain]
    assert all((way.differs or "").startswith("Keys are stored as they are, not centred.") for way in before)
    *_, fork = after = with_center(plain, "mean_after_rope")
    assert len(after) == len(plain) + 1 and "fork" in fork.tool
    assert "--cache-type-k q4_0" in fork.how and fork.how.endswith("--kv-mean-center center.gguf")
    assert "over texts read beforehand" in fork.differs and "Symmetric blocks" in fork.differs


@pytest.mark.parametrize("method", ["innerq", "fp16", "per_token"])
def test_the_fork_takes_4_bit_keys_alone(method):
    eight = make(method, **({"bits": 8} if method == "per_token" else {})).elsewhere()
    assert len(with_center(eight, "mean_after_rope")) == len(eight)


def test_every_deployed_format_tells_its_first_release_or_is_known_not_to():
    found = {(name, way.tool) for name, way in deployed()}
    assert {key for key in found if key[1] not in engines()} == set()
    assert {(name, way.tool) for name, way in deployed() if way.since is None} == FIRST_UNKNOWN
    assert {(name, way.tool) for name, way in deployed() if way.since == UNRELEASED} == UNRELEASED_WAYS
    assert all(any(map(str.isdigit, way.since)) for _, way in deployed() if way.since not in (None, UNRELEASED))


def test_every_deployed_format_tells_its_hardware_where_not_all_will_do():
    silent = {(name, way.tool) for name, way in deployed() if way.needs is None}
    assert {key for key in silent if key[1] not in ANY_HARDWARE} == HARDWARE_UNKNOWN


def test_a_first_release_in_words():
    told = {(name, way.tool): way.first for name, way in deployed()}
    assert told["int8_per_token_head", "vLLM"] == "since 0.20.0"
    assert told["kvarn", "vLLM"] == "in no release" and told["bf16", "llama.cpp"] == "first version not known"


def test_several_formats_are_there_from_the_latest_first_release_on():
    assert latest(["0.4.3", "0.20.0"]) == "0.20.0"
    assert latest(["2024-05-19 (PR 7372)", "2023-12-07 (PR 4309)"]) == "2024-05-19 (PR 7372)"
    assert latest(["0.4.3", UNRELEASED]) == UNRELEASED
    assert latest(["0.4.3", None]) is None and latest([]) is None
