"""GGUF files that cannot be a model: one line each, before anything heavy, and nothing half-written stays."""

import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from kvq_core.cli.main import main
from kvq_core.errors import ModelError
from kvq_core.models import load
from tests.core.models.test_model_identity import written
from tests.support.gguf_files import source, write
from tests.support.gguf_keys import TOKENS

FREQUENCIES = {"rope_freqs.weight": np.full(8, 2.0, np.float32)}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})
    return tmp_path / "home"


def refusal(id: str, home: Path) -> str:
    """The one line of what ``load`` refuses; no model and no part of one is left of it."""
    with pytest.raises(ModelError) as caught:
        load(id)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert not (home / "models").exists() or not list((home / "models").iterdir())
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"a__attention__sliding_window": 128}, "'llama.attention.sliding_window' = 128 is not known here"),
        ({"a__attention__scale": 0.5}, "'llama.attention.scale' = 0.5 is not known here"),
        ({"a__logit_scale": 8.0}, "'llama.logit_scale'"),
        ({"a__expert_count": 8}, "'llama.expert_count' = 8"),
        ({"a__rope__scaling__type": "longrope"}, "rope.scaling.type = 'longrope' is not known here; known are none"),
        ({"a__rope__scaling__type": "yarn", "a__rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor"),
        (
            {"a__rope__scaling__type": "yarn", "a__rope__scaling__yarn_attn_factor": 0.5},
            "yarn_attn_factor other than 1",
        ),
        ({"a__rope__scaling__alpha": 2.0}, "'llama.rope.scaling.alpha'"),
        ({"a__rope__scaling__type": "dynamic"}, "rope.scaling.type = 'dynamic' is not known here"),
        ({"a__rope__scaling__type": "su"}, "rope.scaling.type = 'su' is not known here"),
        ({"a__rope__scaling__yarn_log_multiplier": 0.1}, "'llama.rope.scaling.yarn_log_multiplier'"),
        ({"a__rope__scaling__attn_factor": 1.2}, "rope.scaling.attn_factor = 1.2 is known with yarn alone"),
        ({"a__rope__dimension_sections": [4, 2, 2, 0]}, "'llama.rope.dimension_sections' = [4, 2, 2, 0]"),
        ({"a__rope__scaling__factor": -4.0}, "must be above 0"),
        ({"a__rope__scaling__factor": math.inf}, "llama.rope.scaling.factor = inf is not a number"),
        ({"a__rope__freq_base": "high"}, "llama.rope.freq_base = 'high' is not a number"),
        ({"a__rope__dimension_count": 8, "a__attention__key_length": 16}, "rope.dimension_count is 8"),
        ({"a__attention__value_length": 8, "a__attention__key_length": 16}, "attention.value_length is 8"),
        ({"a__attention__head_count_kv": [2, 1]}, "attention.head_count_kv = [2, 1] is not one number above 0"),
        ({"a__attention__head_count_kv": 3}, "4 query heads cannot share 3 KV heads"),
        ({"a__context_length": None}, "llama.context_length is missing"),
        ({"a__attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"a__block_count": 2**31 - 1}, "tensors for 2147483647 layers"),
        ({"a__block_count": 3}, "it lacks model.layers.2"),
        ({"a__embedding_length": 128}, "has the shape"),
        ({"a__feed_forward_length": 2**30}, "asks for larger tensors"),
        ({"general__type": "adapter"}, "general.type is 'adapter'"),
        ({"general__architecture": "deci"}, "its architecture is 'deci'; read are llama, qwen2, qwen3, gemma"),
        ({"general__architecture": "nonesuch"}, "its architecture is 'nonesuch'"),
        ({"split__count": 3}, "is one of 3 parts"),
        ({"tokenizer__ggml__pre": "deepseek-coder"}, "tokenizer.ggml.pre = 'deepseek-coder' is not known here"),
        ({"tokenizer__ggml__model": "bert"}, "its tokenizer is 'bert'"),
        ({"tokenizer__ggml__model": None}, "its tokenizer is nothing"),
        ({"tokenizer__ggml__merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer__ggml__merges": ["a b", "ab"]}, "tokenizer.ggml.merges holds 'ab', which is no pair of tokens"),
        ({"tokenizer__ggml__merges": ["a b c"]}, "tokenizer.ggml.merges holds 'a b c', which is no pair"),
        ({"a__attention__layer_norm_rms_epsilon": -1.0}, "layer_norm_rms_epsilon = -1 is below 0"),
        ({"tokenizer__ggml__normalizer": "nfkc"}, "'tokenizer.ggml.normalizer' = 'nfkc' is not known here"),
        ({"tokenizer__ggml__eos_token_id": 9999}, "tokenizer.ggml.eos_token_id = 9999 is no token"),
        ({"tokenizer__ggml__tokens": [*TOKENS, "a1", "a2", "a3"]}, "more than the embedding has rows"),
        ({"general__alignment": 0}, "general.alignment is 0"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path, home: Path, keys: dict[str, Any], said: str) -> None:
    assert said in refusal(str(write(tmp_path / "m.gguf", source("llama"), **keys)), home)


def test_a_part_is_known_by_its_name_as_well(tmp_path, home: Path) -> None:
    assert "is one of several parts of a model" in refusal(
        str(write(tmp_path / "m-00001-of-00003.gguf", source("llama"))), home
    )
    assert load(str(write(tmp_path / "m-00001-of-00001.gguf", source("llama")))).id.startswith("gguf:")


def test_keys_that_change_nothing_are_passed_over(tmp_path) -> None:
    keys = {
        "a__expert_count": 0,
        "a__rope__scaling__finetuned": True,
        "a__rope__dimension_count": 16,
        "general__license": "apache-2.0",
        "quantize__imatrix__file": "x.dat",
        "someone__note": "quantized at night",
        "tokenizer__ggml__fim_pre_token_id": 3,
        "tokenizer__ggml__add_space_prefix": False,
        "tokenizer__chat_template__tool_use": "{{ messages }}",
    }
    assert load(str(write(tmp_path / "m.gguf", source("llama"), **keys))).shape.layers == 2


class Tensors(NamedTuple):
    changes: dict[str, np.ndarray]
    said: str


def normal(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    "case",
    [
        Tensors({"blk.0.attn_k.weight": normal(48, 64)}, "tensor 'blk.0.attn_k.weight' has the shape [48, 64]"),
        Tensors({"blk.0.attn_k.bias": normal(32)}, "llama has no tensor 'blk.0.attn_k.bias'"),
        Tensors({"rope_factors_long.weight": normal(8)}, "its RoPE (longrope) changes with the length of the text"),
        Tensors({"rope_freqs.weight": normal(5) * 2}, "does not hold 8 factors above 0"),
        Tensors({"rope_freqs.weight": normal(8) * -2}, "does not hold 8 factors above 0"),
        Tensors({"blk.1.ffn_up.weight": normal(96, 64) * np.nan}, "'blk.1.ffn_up.weight' holds NaN or infinity"),
        Tensors({"token_embd.weight": normal(200, 64)}, "more than the embedding has rows"),
    ],
)
def test_tensors_that_are_not_the_architectures_are_refused(tmp_path, home: Path, case: Tensors) -> None:
    assert case.said in refusal(str(write(tmp_path / "m.gguf", source("llama"), tensors=case.changes)), home)


def test_two_scalings_at_once_are_refused(tmp_path, home: Path) -> None:
    keys = {"a__rope__scaling__type": "linear", "a__rope__scaling__factor": 2.0}
    file = write(tmp_path / "m.gguf", source("llama"), tensors=FREQUENCIES, **keys)
    assert "both rope.scaling.type = linear and the tensor rope_freqs.weight" in refusal(str(file), home)


def cut(part: float) -> Callable[[bytes], bytes]:
    return lambda raw: raw[: int(len(raw) * part)]


def swapped(raw: bytes) -> bytes:
    return raw[:4] + (3).to_bytes(4, "big") + raw[8:]


def longer(raw: bytes) -> bytes:
    """The header's first tensor twice as wide as what lies there."""
    at = raw.index(b"token_embd.weight") + len(b"token_embd.weight") + 4
    return raw[:at] + (128).to_bytes(8, "little") + raw[at + 8 :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut(0.9), "it is cut off within tensor"),
        (cut(0.003), "it ends before its header does"),
        (lambda raw: raw[:7], "it ends before its header does"),
        (lambda raw: b"", "is not a whole GGUF file"),
        (lambda raw: pickle.dumps({"weights": [1.0, 2.0]}), "it does not begin with the letters GGUF"),
        (swapped, "its version is 50331648"),
        (lambda raw: raw[:8] + b"\xff" * 8 + raw[16:], "is not a whole GGUF file"),
        (lambda raw: raw[:24] + b"\xff" * 8 + raw[32:], "it ends before its header does"),
        (lambda raw: raw[:8] + (10**6).to_bytes(8, "little") + raw[16:], "1,000,000 tensors, and at most 100,000"),
        (longer, "does not lie where the one before it ends"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, home: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    file = write(tmp_path / "m.gguf", source("llama"))
    file.write_bytes(damage(file.read_bytes()))
    assert said in refusal(str(file), home)


def test_a_header_holds_so_much_and_no_more(tmp_path, home: Path, monkeypatch) -> None:
    """Bounds that are many times what any file holds, made small."""
    file = str(write(tmp_path / "m.gguf", source("llama")))
    for name, said in (("_VALUES", "its arrays hold more than 5"), ("_TEXT", "at most 5 are"), ("_DIMENSIONS", "has")):
        with monkeypatch.context() as small:
            small.setattr(f"kvq_core.models.gguf.header.{name}", 5 if name != "_DIMENSIONS" else 1)
            assert said in refusal(file, home)


@pytest.mark.slow
def test_no_cut_and_no_changed_byte_of_a_header_is_more_than_one_line(tmp_path, home: Path) -> None:
    """Random damage either changes nothing the model needs or is refused in one line."""
    file = write(tmp_path / "m.gguf", source("llama", num_hidden_layers=1))
    raw, random = file.read_bytes(), np.random.default_rng(5)
    for trial in range(60):
        changed = bytearray(raw)
        changed[int(random.integers(4, 6000))] ^= int(random.integers(1, 256))
        file.write_bytes(changed if trial % 2 else changed[: int(random.integers(0, 6000))])
        try:
            load(str(file))
        except ModelError as error:
            assert "\n" not in str(error)


def test_types_that_cannot_be_dequantized_are_named(tmp_path, home: Path) -> None:
    file = write(tmp_path / "m.gguf", source("llama"), tensors={"blk.0.attn_norm.weight": np.ones(64, np.float64)})
    assert "tensors of type F64, which cannot be dequantized here" in refusal(str(file), home)


def test_a_disk_too_small_is_known_before_anything_is_written(tmp_path, home: Path, monkeypatch) -> None:
    file = write(tmp_path / "m.gguf", source("llama"))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    said = refusal(str(file), home)
    assert "GB of the disk are free" in said and "KVQ_HOME" in said


def test_a_memory_too_small_is_known_before_anything_is_written(tmp_path, home: Path, monkeypatch) -> None:
    file = write(tmp_path / "m.gguf", source("llama"))
    monkeypatch.setattr("kvq_core.models.gguf.conversion.free_bytes", lambda: 1000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "GB of memory are free. Pick a smaller model" in refusal(str(file), home)


def test_a_disk_that_fills_meanwhile_leaves_nothing(tmp_path, home: Path, monkeypatch) -> None:
    def no_room(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvq_core.models.gguf.weights._pieces", no_room)
    assert "No space left on device" in refusal(str(write(tmp_path / "m.gguf", source("llama"))), home)


def test_a_conversion_that_is_given_up_leaves_nothing(tmp_path, home: Path) -> None:
    from kvq_core.models import prepare

    steps = prepare(str(write(tmp_path / "m.gguf", source("llama"))))
    now = next(steps)
    assert now.done == 0 < now.total and list((home / "models").iterdir())
    steps.close()
    assert not list((home / "models").iterdir())


def test_files_that_are_not_there_and_folders_named_so(tmp_path, home: Path) -> None:
    assert "not a model directory or .gguf file" in refusal(str(tmp_path / "none.gguf"), home)
    (tmp_path / "folder.gguf").mkdir()
    assert "not a model directory or .gguf file" in refusal(str(tmp_path / "folder.gguf"), home)


def test_a_directory_without_tokenizer_is_one_line(tmp_path, home: Path, capsys) -> None:
    folder = written(tmp_path / "model")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "has no tokenizer; put its tokenizer.json" in refusal(str(folder), home)
    assert main(["inspect", str(folder)]) == 2, "what fits is told of models that are not run, not of half a directory"
    told = capsys.readouterr()
    assert not told.out and "has no tokenizer" in told.err and len(told.err.strip().splitlines()) == 1


def test_public_instances_read_no_file(tmp_path, home: Path, monkeypatch) -> None:
    file = str(write(tmp_path / "m.gguf", source("llama")))
    monkeypatch.setenv("KVQ_MODELS", file)
    assert "not a model directory or .gguf file this instance may read" in refusal(file, home)
    monkeypatch.setenv("KVQ_MODELS", "some/model")
    assert "is not offered on this instance" in refusal(file, home)
