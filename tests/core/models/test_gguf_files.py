"""GGUF files as models: what they compute is what the model they were written from computes."""

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvq_core.models import LoadedModel, load
from kvq_core.settings import settings
from tests.support import llama_answers
from tests.support.gguf_files import CONFIGS, logits, rounded, source, write
from tests.support.gguf_keys import BOS, EOS, EOT, TOKENS, sentencepiece

IDS = [(7 * i * i + i) % len(TOKENS) for i in range(60)]
POSITIONS, HEAD_DIM, BASE = 400, 16, 10000.0


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})
    return tmp_path / "home"


def converted(loaded: LoadedModel) -> torch.nn.Module:
    """The folder a file was converted into, as transformers reads it."""
    folder = settings().home / "models" / loaded.id.replace(":", "-")
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.few(sample=2)
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_are_those_of_the_model_it_was_written_from(tmp_path, architecture: str, kind: str) -> None:
    model = source(architecture)
    file = write(tmp_path / "m.gguf", model, gguf.GGMLQuantizationType[kind])
    expected = logits(rounded(model) if kind == "Q8_0" else model, IDS)
    assert torch.equal(logits(converted(load(str(file))), IDS), expected)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_model_knows_whether_its_files_hold_keys_in_another_order(tmp_path, architecture: str) -> None:
    model = source(architecture)
    loaded = load(str(write(tmp_path / "m.gguf", model)))
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    held = next(tensor.data for tensor in reader.tensors if tensor.name == "blk.0.attn_k.weight")
    here = loaded.model.base_model.layers[0].self_attn.k_proj.weight.numpy()
    assert loaded.ref.interleaved == (not np.array_equal(held, here))


@pytest.mark.few(sample=3)
@pytest.mark.parametrize("changes", [{"tie_word_embeddings": True}, {"head_dim": 32}, {"num_key_value_heads": 4}])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_heads_and_embeddings_of_other_shapes(tmp_path, architecture: str, changes: dict) -> None:
    """32 is not hidden_size / heads: such files have the key attention.key_length."""
    model = source(architecture, **changes)
    loaded = load(str(write(tmp_path / "m.gguf", model)))
    assert torch.equal(logits(converted(loaded), IDS), logits(model, IDS))
    assert loaded.shape.head_dim == changes.get("head_dim", HEAD_DIM)


def plain(pair: int) -> float:
    return BASE ** (-2 * pair / HEAD_DIM)


def llama3_factor(pair: int, factor: float, original: int) -> float:
    """As llama.cpp's converter computes it, with the factors 1 and 4 of all published Llama 3 models."""
    wave = 2 * math.pi / plain(pair)
    if wave < original / 4:
        return 1.0
    if wave > original / 1:
        return factor
    smooth = (original / wave - 1) / (4 - 1)
    return 1 / ((1 - smooth) / factor + smooth)


def yarn(pair: int, factor: float, original: int, fast: float = 32.0, slow: float = 1.0) -> float:
    """ggml's rope_yarn with ext_factor 1."""

    def dim(rotations: float) -> float:
        return HEAD_DIM * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = max(0, math.floor(dim(fast))), min(HEAD_DIM - 1, math.ceil(dim(slow)))
    ramp = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
    return plain(pair) / factor * (1 - ramp) + plain(pair) * ramp


def frequencies(factors: list[float]) -> dict[str, np.ndarray]:
    return {"rope_freqs.weight": np.array(factors, np.float32)}


PAIRS = range(HEAD_DIM // 2)
LLAMA3 = [llama3_factor(pair, 8.0, 8192) for pair in PAIRS]
OTHER = [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 16.0, 20.0]
YARN = {"a__rope__scaling__type": "yarn", "a__rope__scaling__factor": 4.0}
SCALINGS = {
    "none": ({"a__rope__scaling__type": "none"}, None, [plain(i) for i in PAIRS], 1.0),
    "linear": (
        {"a__rope__scaling__type": "linear", "a__rope__scaling__factor": 4.0},
        None,
        [plain(i) / 4 for i in PAIRS],
        1.0,
    ),
    "linear by its factor alone": ({"a__rope__scaling__factor": 2.0}, None, [plain(i) / 2 for i in PAIRS], 1.0),
    "linear of old files": ({"a__rope__scale_linear": 8.0}, None, [plain(i) / 8 for i in PAIRS], 1.0),
    "yarn": (
        {**YARN, "a__rope__scaling__original_context_length": 128, "a__rope__scaling__finetuned": True},
        None,
        [yarn(i, 4.0, 128) for i in PAIRS],
        1 + 0.1 * math.log(4),
    ),
    "yarn of the model's own context": (
        {**YARN, "a__rope__scaling__original_context_length": 0},
        None,
        [yarn(i, 4.0, 512) for i in PAIRS],
        1 + 0.1 * math.log(4),
    ),
    "yarn with all its keys": (
        {
            **YARN,
            "a__rope__scaling__original_context_length": 256,
            "a__rope__scaling__attn_factor": 0.75,
            "a__rope__scaling__yarn_beta_fast": 24.0,
            "a__rope__scaling__yarn_beta_slow": 2.0,
            "a__rope__scaling__yarn_ext_factor": 1.0,
        },
        None,
        [yarn(i, 4.0, 256, 24.0, 2.0) for i in PAIRS],
        0.75 * (1 + 0.1 * math.log(4)),
    ),
    "llama 3": ({}, frequencies(LLAMA3), [plain(i) / LLAMA3[i] for i in PAIRS], 1.0),
    "one factor a pair": ({}, frequencies(OTHER), [plain(i) / OTHER[i] for i in PAIRS], 1.0),
    "factors of 1": ({}, frequencies([1.0] * len(PAIRS)), [plain(i) for i in PAIRS], 1.0),
}


@pytest.mark.few(sample=4)
@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_rope_is_scaled_as_the_file_says(tmp_path, architecture: str, name: str) -> None:
    """Against angles computed here, in float64."""
    keys, tensors, inverse, attention = SCALINGS[name]
    loaded = load(str(write(tmp_path / "m.gguf", source(architecture), tensors=tensors, **keys)))
    like, positions = torch.zeros(1), torch.arange(POSITIONS)[None]
    cos, sin = loaded.model.base_model.rotary_emb(like, positions)
    angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float64), torch.tensor(inverse, dtype=torch.float64))
    for table, expected in ((cos, angles.cos()), (sin, angles.sin())):
        assert torch.allclose(table[0].double(), attention * expected.repeat(1, 2), rtol=0, atol=2e-4)


IN_BOTH = [name for name in SCALINGS if name != "yarn with all its keys"]  # llama.cpp passes over YaRN's betas
OF_QWEN = [name for name in IN_BOTH if SCALINGS[name][1] is None]  # and takes factors by pair of Llama's files alone


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "name"), [*(("llama", n) for n in IN_BOTH), *(("qwen2", n) for n in OF_QWEN)])
def test_llama_cpp_scales_rope_alike(tmp_path, architecture: str, name: str) -> None:
    """Of the same file, its two orders of channels both."""
    pytest.importorskip("xllamacpp")
    keys, tensors, *_ = SCALINGS[name]
    file = write(tmp_path / "m.gguf", source(architecture, vocab_size=len(TOKENS)), tensors=tensors, **keys)
    own = logits(converted(load(str(file))), IDS)
    assert llama_answers.apart(file, IDS, own, range(40, 60)) < 1e-4


def test_llama_3_is_called_by_its_name(tmp_path) -> None:
    loaded = load(str(write(tmp_path / "m.gguf", source("llama"), tensors=frequencies(LLAMA3))))
    told = loaded.model.config.rope_parameters
    assert told["rope_type"] == "llama3" and told["factor"] == 8.0
    assert set(loaded.rotations) == {"rope"}


def test_scaled_logits_are_those_of_transformers_with_that_scaling(tmp_path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": BASE}
    model = source("llama", rope_parameters=rope)
    keys = {"a__rope__scaling__type": "linear", "a__rope__scaling__factor": 4.0}
    assert torch.equal(logits(converted(load(str(write(tmp_path / "m.gguf", model, **keys)))), IDS), logits(model, IDS))


def test_tokens_and_template_are_the_files(tmp_path) -> None:
    loaded = load(str(write(tmp_path / "m.gguf", source("llama"))))
    ids = loaded.encode("def 12<|end|>")
    assert [TOKENS[i] for i in ids] == ["def", "Ġ", "12", "<|end|>"]
    assert loaded.tokenizer.decode(ids) == "def 12<|end|>" and loaded.eos_ids == {EOS}
    assert loaded.tokenizer.decode(loaded.render("1", None, True)) == "user: 1\n"


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ({}, None),
        ({"tokenizer__ggml__add_bos_token": True}, BOS),
        ({"tokenizer__ggml__pre": "llama-bpe", "tokenizer__ggml__add_bos_token": None}, BOS),
        ({"tokenizer__ggml__pre": "llama-bpe", "tokenizer__ggml__add_bos_token": False}, None),
    ],
)
def test_a_text_begins_as_the_file_says(tmp_path, keys: dict, first: int | None) -> None:
    loaded = load(str(write(tmp_path / "m.gguf", source("llama"), **keys)))
    assert loaded.render("def", None, False) == [*([] if first is None else [first]), TOKENS.index("def")]
    again = AutoTokenizer.from_pretrained(settings().home / "models" / loaded.id.replace(":", "-"))
    assert again("def")["input_ids"] == loaded.render("def", None, False)


@pytest.mark.few(sample=2)
@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a  123 b\n", ["a", "Ġ", "Ġ123", "Ġb", "Ċ"]),
        ("smollm", "a  123 b\n", ["a", "ĠĠ", "1", "2", "3", "Ġb", "Ċ"]),
        ("qwen2", "a  123 b\n", ["a", "Ġ", "Ġ", "1", "2", "3", "Ġb", "Ċ"]),
        ("deepseek-r1-qwen", "a  123 b\n", ["a", "Ġ", "Ġ", "1", "2", "3", "Ġb", "Ċ"]),
        ("llama-bpe", "a  1234 b\n", ["a", "Ġ", "Ġ", "123", "4", "Ġb", "Ċ"]),
        ("default", "a+=1234 b\n", ["a", "+=", "123", "4", "Ġb", "Ċ"]),
    ],
)
def test_text_is_cut_as_the_file_says(tmp_path, pre: str, text: str, pieces: list[str]) -> None:
    loaded = load(str(write(tmp_path / "m.gguf", source("llama"), tokenizer__ggml__pre=pre)))
    cut = loaded.tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [piece for piece, _ in cut] == pieces


@pytest.mark.slow
def test_llama_3_takes_words_of_its_vocabulary_whole(tmp_path) -> None:
    """Its merges do not lead to every word; tiktoken does not ask them."""
    keys = {"tokenizer__ggml__merges": ["d e"]}
    whole, merged = (
        load(str(write(tmp_path / f"{i}.gguf", source("llama"), tokenizer__ggml__pre=pre, **keys))).encode("def")
        for i, pre in enumerate(("llama-bpe", "qwen2"))
    )
    assert whole == [TOKENS.index("def")] and merged == [TOKENS.index("de"), TOKENS.index("f")]


def test_every_token_that_ends_a_turn_ends_an_answer(tmp_path) -> None:
    keys = {"tokenizer__ggml__eot_token_id": EOT, "tokenizer__ggml__fim_pre_token_id": BOS}
    assert load(str(write(tmp_path / "m.gguf", source("llama"), **keys))).eos_ids == {EOS, EOT}


def test_a_vocabulary_with_scores(tmp_path) -> None:
    """Of Llama 2 and its kind: a text begins with <s> where the file says nothing, and bytes stand in for pieces."""
    keys = sentencepiece()
    model = source("llama", vocab_size=len(keys["tokenizer__ggml__tokens"]))
    loaded = load(str(write(tmp_path / "m.gguf", model, **keys)))
    tokens = keys["tokenizer__ggml__tokens"]
    assert [tokens[i] for i in loaded.render("def é", None, False)] == ["<s>", "▁def", "▁", "<0xC3>", "<0xA9>"]
    assert loaded.eos_ids == {2} and loaded.tokenizer.decode(loaded.encode("def mané")) == "def mané"
