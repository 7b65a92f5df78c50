"""GGUF files of architectures that say more than Llama's: windows, soft-caps, scalings, states, tokens of their own."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvq_core.errors import ModelError
from kvq_core.models import LoadedModel, load
from kvq_core.models.gguf.families import FAMILIES as READ
from kvq_core.models.gguf.header import read_header
from kvq_core.models.gguf.vocabulary import _KNOWN, tokenizer
from kvq_core.settings import settings
from kvq_core.spec import Lane
from tests.support import gguf_gemma4, llama_answers
from tests.support.engine_runs import run_engine
from tests.support.gguf_files import CONFIGS, FAMILIES, logits, source, write
from tests.support.gguf_keys import BYTES, TOKENS, sentencepiece

IDS = [(7 * i * i + i) % len(TOKENS) for i in range(60)]
# of a spread of 1: norms to whose weights one is added and taken away again; llama.cpp's GELU from a table in fp16;
# delta nets, whose chunks round otherwise
EXACT, TABLE, DELTA = 5e-5, 1e-2, 5e-4
GELU = ("gemma", "gemma2", "gemma3_text", "gemma4_text", "starcoder2")
TEXT = "def 1234 12  a+=b's B'S\n\n  def\n x_def f12 AbC defdef abc é 東京 🙂 ./\n+ += ...\n\t\tdef    12345"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})
    return tmp_path / "home"


def converted(loaded: LoadedModel) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(settings().home / "models" / loaded.id.replace(":", "-")).eval()


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.std())


@pytest.mark.slow
@pytest.mark.few(sample=3)
@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_are_those_of_the_model_it_was_written_from(tmp_path, kind: str) -> None:
    """Over more tokens than a window has, and in the engine."""
    model = source(kind)
    loaded = load(str(write(tmp_path / "m.gguf", model)))
    expected = logits(model, IDS)
    assert apart(logits(converted(loaded), IDS), expected) < EXACT
    outcome = run_engine(loaded, IDS[:50], [Lane(label="x", method="fp16")], 1, follow=IDS[50:52])
    assert apart(outcome.logits()[0], expected[50 : 50 + len(outcome.logits()[0])]) < EXACT
    windowed = kind in ("gemma2", "gemma3_text", "gemma4_text", "phi3", "gpt_oss")
    assert bool(loaded.shape.windowed) == windowed and bool(loaded.shape.stateful) == (
        kind == "lfm2" or "qwen3_5" in kind
    )


def test_the_document_names_every_architecture_that_is_read() -> None:
    told = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    told = told[told.index("GGUF files are read") : told.index("of others by")]
    assert set(re.findall(r"`([\w-]+)`", told)) == set(READ)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*CONFIGS, *FAMILIES])
def test_llama_cpp_computes_the_same_of_the_file(tmp_path, kind: str) -> None:
    pytest.importorskip("xllamacpp")
    model = source(kind, vocab_size=len(TOKENS))
    ends = range(20, 24) if kind == "phi3" else range(40, 60)  # llama.cpp leaves Phi-3's window out
    found = llama_answers.apart(write(tmp_path / "m.gguf", model), IDS, logits(model, IDS), ends)
    assert found < (TABLE if kind in GELU else DELTA if "qwen3_5" in kind else EXACT)


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize(
    ("kind", "keys", "fields"),
    [
        ("gemma2", {"a__attention__sliding_window": None}, {"sliding_window": 4096}),
        ("gemma2", {"a__attn_logit_softcapping": None}, {"attn_logit_softcapping": 50.0}),
        ("gemma2", {"a__final_logit_softcapping": None}, {"final_logit_softcapping": 30.0}),
        ("gemma3_text", {"a__attention__sliding_window": None}, {"layer_types": ["full_attention"] * 7}),
        (
            "gemma3_text",
            {"a__attention__sliding_window_pattern": 3},
            {"layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2 + ["sliding_attention"]},
        ),
        ("gemma3_text", {"a__final_logit_softcapping": 7.0}, {"final_logit_softcapping": 7.0}),
        ("granite", {"a__attention__scale": None}, {"attention_multiplier": 0.25}),
        ("granite", {"a__rope__scaling__finetuned": True}, {}),
        ("phi3", {"a__attention__sliding_window": 0}, {"sliding_window": None}),
        ("stablelm", {"a__use_parallel_residual": None}, {"use_parallel_residual": False}),
    ],
)
def test_what_a_file_does_not_say_is_what_llama_cpp_takes(tmp_path, kind: str, keys: dict, fields: dict) -> None:
    config = load(str(write(tmp_path / "m.gguf", source(kind), **keys))).model.config
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        ("gemma2", {"a__attention__scale": 0.5}, "'gemma2.attention.scale' = 0.5 is not known here"),
        (
            "gemma2",
            {"a__attention__sliding_window": "all"},
            "gemma2.attention.sliding_window = 'all' is not one number",
        ),
        ("granite", {"a__rope__scaling__finetuned": False}, "'granite.rope.scaling.finetuned' = False is not known"),
        ("olmo2", {"a__attention__sliding_window": 24}, "'olmo2.attention.sliding_window' = 24 is not known here"),
        ("lfm2", {"a__attention__head_count_kv": [0, 3]}, "4 query heads cannot share 3 KV heads"),
        ("lfm2", {"a__attention__head_count_kv": [1, 2]}, "lfm2.attention.head_count_kv = [1, 2] is not known here"),
        ("starcoder2", {"a__attention__key_length": 32, "a__attention__value_length": 32}, "a head has 32 channels"),
        ("qwen3_moe", {"a__expert_used_count": 5}, "a token cannot take 5 of 4 experts"),
        ("qwen3_moe", {"a__expert_count": 8}, "tensor 'blk.0.ffn_gate_exps.weight' has the shape [4, 32, 64]"),
        (
            "qwen3_moe",
            {"a__expert_feed_forward_length": 64},
            "has the shape [4, 32, 64], and its header asks for [4, 1",
        ),
        ("qwen3_moe", {"a__expert_weights_scale": 2.5}, "'qwen3moe.expert_weights_scale' = 2.5 is not known here"),
        ("gpt_oss", {"a__expert_gating_func": 2}, "'gpt-oss.expert_gating_func' = 2 is not known here"),
        ("gemma4_text", {"a__attention__shared_kv_layers": 6}, "attention.shared_kv_layers = 6 of 6 layers"),
        ("gemma4_text", {"a__attention__sliding_window_pattern": 6}, "does not say of 6 layers which have windows"),
        ("gemma4_text", {"a__rope__dimension_count_swa": 8}, "rope.dimension_count_swa = 8 is not"),
        (
            "gemma4_text",
            {"a__feed_forward_length": [96] * 5 + [192]},
            "feed_forward_length = [96, 96, 96, 96, 96, 192]",
        ),
        (
            "gemma4_text",
            {"a__attention__head_count_kv": [2, 2, 1] * 2},
            "1 KV heads in layers of full attention beside",
        ),
        ("gemma4_text", {"a__expert_count": 8}, "'gemma4.expert_count' = 8 is not known here"),
        ("gemma4_text", {"a__rope__scaling__type": "linear"}, "'gemma4.rope.scaling.type' = 'linear' is not known"),
        ("qwen3_5_text", {"a__ssm__time_step_rank": 5}, "5 value heads of 96 channels in all cannot share 2 key heads"),
        ("qwen3_5_text", {"a__ssm__state_size": None}, "ssm.state_size = 0 is not one number above 0"),
        ("qwen3_5_text", {"a__nextn_predict_layers": 3}, "qwen35.block_count = 0 is not one number above 0"),
        ("qwen3_5_text", {"a__attention__recurrent_layers": [1, 0]}, "'qwen35.attention.recurrent_layers' = [1, 0]"),
        ("stablelm", {"a__rope__dimension_count": 3}, "3 of 16 channels of a head cannot be rotated in pairs"),
        ("phi3", {"a__rope__scaling__attn_factor": 1.2}, "rope.scaling.attn_factor = 1.2 is known with yarn alone"),
        ("gemma2", sentencepiece(), "tokenizer.ggml.add_space_prefix is True, and only False is read"),
        ("phi3", {**sentencepiece(), "tokenizer__ggml__add_space_prefix": False}, "only True is read"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(tmp_path, home: Path, kind: str, keys: dict, said: str) -> None:
    vocabulary = keys.get("tokenizer__ggml__tokens")
    changes = {"vocab_size": len(vocabulary)} if vocabulary else {}
    with pytest.raises(ModelError) as error:
        load(str(write(tmp_path / "m.gguf", source(kind, **changes), **keys)))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not list((home / "models").glob("*"))


@pytest.mark.slow
def test_gemma_4_in_its_larger_form_and_with_keys_that_nothing_reads(tmp_path) -> None:
    """Its keys of full attention are its values; others' files hold keys for layers that read another's."""
    large = source("gemma4_text", **gguf_gemma4.LARGE)
    found = load(str(write(tmp_path / "large.gguf", large)))
    assert apart(logits(converted(found), IDS), logits(large, IDS)) < EXACT and found.shape.kinds[2].kv_heads == 1
    model = source("gemma4_text")
    left = {f"blk.5.attn_{of}.weight": np.ones((64, 64), np.float32) for of in "kv"}
    found = load(str(write(tmp_path / "m.gguf", model, tensors=left)))
    assert apart(logits(converted(found), IDS), logits(model, IDS)) < EXACT
    assert [kind.reads for kind in found.shape.kinds] == [None] * 3 + [1, 1, 2]


@pytest.mark.slow
def test_layers_that_guess_ahead_are_left_out(tmp_path) -> None:
    """Files of Qwen3.5 count them among their layers; llama.cpp runs them for drafts alone."""
    model = source("qwen3_5_text")
    ahead = {f"blk.3.{name}.weight": np.ones(64, np.float32) for name in ("attn_norm", "nextn.enorm")}
    file = write(tmp_path / "m.gguf", model, tensors=ahead, a__block_count=4, a__nextn_predict_layers=1)
    assert apart(logits(converted(load(str(file))), IDS), logits(model, IDS)) < EXACT


def test_rope_that_changes_with_the_length_of_a_text_is_refused(tmp_path) -> None:
    factors = {f"rope_factors_{of}.weight": np.ones(8, np.float32) for of in ("long", "short")}
    with pytest.raises(ModelError, match=r"RoPE \(longrope\) changes with the length of the text"):
        load(str(write(tmp_path / "m.gguf", source("phi3"), tensors=factors)))


def byte_pairs() -> dict[str, Any]:
    """Keys of a vocabulary whose merges reach over every place where some kind of files cuts a text."""
    pairs = (
        "1 2,2 3,3 4,12 34,d e,de f,Ġ Ġ,Ġ 1,Ġ d,' s,' S,Ċ Ċ,a +,+ =,s .,. Ċ,Ġ +,ĠĠ ĠĠ,A b,b C,f 1,Ġ Ċ,_ d,/ Ċ".split(
            ","
        )
    )
    tokens = [*BYTES, *dict.fromkeys(pair.replace(" ", "") for pair in pairs), "defdef", "abc", "<|start|>", "<|end|>"]
    kinds = [gguf.TokenType.CONTROL if token.startswith("<|") else gguf.TokenType.NORMAL for token in tokens]
    return {
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__merges": pairs,
        "tokenizer__ggml__token_type": [int(kind) for kind in kinds],
        "tokenizer__ggml__bos_token_id": len(tokens) - 2,
        "tokenizer__ggml__eos_token_id": len(tokens) - 1,
    }


def both(file: Path) -> tuple[list[int], list[int]]:
    """Ids of TEXT, here and of llama.cpp."""
    from kvq_core.servers.llama_cpp import LlamaCpp, Types

    with LlamaCpp(file, Types("f16", "f16"), 128, threads=1) as engine:
        theirs = engine.tokens(TEXT)
    return tokenizer(read_header(file))(TEXT, add_special_tokens=False)["input_ids"], theirs


@pytest.mark.slow
@pytest.mark.parametrize("pre", _KNOWN)
def test_text_is_cut_as_llama_cpp_cuts_it(tmp_path, pre: str) -> None:
    pytest.importorskip("xllamacpp")
    keys = byte_pairs()
    model = source("qwen2", vocab_size=len(keys["tokenizer__ggml__tokens"]))
    own, theirs = both(write(tmp_path / "m.gguf", model, tokenizer__ggml__pre=pre, **keys))
    assert own == theirs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "phi3", "gemma2", "gemma3_text"])
def test_pieces_are_those_of_llama_cpp(tmp_path, kind: str) -> None:
    """Of vocabularies with scores: a blank before the text, or none."""
    pytest.importorskip("xllamacpp")
    keys = sentencepiece()
    if "gemma" in kind:
        keys["tokenizer__ggml__add_space_prefix"] = False
    model = source(kind, vocab_size=len(keys["tokenizer__ggml__tokens"]))
    own, theirs = both(write(tmp_path / "m.gguf", model, **keys))
    assert own == theirs
