"""Models with windows at the scale that published ones have: prompts of several windows, heads as wide, weights as
small, RoPE by layer, read in chunks, decoded, packed, chosen from and looked at. The weights are random."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.architectures import eager
from kvq_core.engine.prefill import CHUNK, SharedPrefill
from kvq_core.models import LoadedModel, wrap
from kvq_core.packed.cache import lane_layers
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine

PROMPT, NEW, VOCABULARY = 1300, 5, 512
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}
_LOCAL = {"rope_type": "default", "rope_theta": 10_000.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3_text": {  # RoPE of full layers stretched, of windows not; norms of queries and keys
        "head_dim": 256,
        "num_hidden_layers": 7,
        "sliding_window": 512,
        "query_pre_attn_scalar": 256,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": _LOCAL,
        },
    },
    "gemma2": {"head_dim": 256, "num_hidden_layers": 4, "sliding_window": 1024, "query_pre_attn_scalar": 256},
    "gpt_oss": {  # sinks, YaRN, a short window
        "head_dim": 64,
        "num_hidden_layers": 4,
        "sliding_window": 128,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_theta": 150_000.0,
            "truncate": False,
        },
    },
    "gemma4_text": {  # E2B: layers that read another's, heads of two sizes, RoPE of a part of the channels
        "head_dim": 128,
        "global_head_dim": 256,
        "num_hidden_layers": 10,
        "sliding_window": 512,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
        "num_kv_shared_layers": 5,
        "use_double_wide_mlp": True,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 32,
    },
}
IDS = torch.randint(3, VOCABULARY, (PROMPT + NEW,), generator=torch.Generator().manual_seed(4)).tolist()
KNOBS = {"group_size": 32, "residual_length": 32}


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path_factory.getbasetemp() / "long"))


@cache
def long(kind: str) -> LoadedModel:
    torch.manual_seed(2)
    config = AutoConfig.for_model(kind, **{**_COMMON, **CONFIGS[kind]})
    model = AutoModelForCausalLM.from_config(config).float()
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("sinks"):  # as trained ones differ from channel to channel
            size = 1.0 if weight.mean() > 0.5 else 0.0
            if kind == "gemma4_text" and name.endswith(("q_norm.weight", "k_norm.weight")):
                size = len(weight) ** -0.25  # nothing else makes scores smaller there
            torch.nn.init.normal_(weight, size, 0.3 * (size or 1.0))
    return wrap(model, None, id=f"long-{kind}")


def apart(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.std()).item()


@pytest.mark.long("combine", sample=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_long_prompts_are_read_as_transformers_reads_them(kind: str) -> None:
    """In three chunks, then token by token; rows whose caches are fp16 stay as near as that rounds."""
    model = long(kind)
    assert model.shape.windowed and model.shape.full and PROMPT > 2 * CHUNK
    outcome = run_engine(model, IDS[:PROMPT], [Lane(label="x", method="fp16")], NEW, follow=IDS[PROMPT:])
    reference, lanes = outcome.logits()
    assert apart(outcome.decode.prefill.logits, eager(model, IDS[:PROMPT])) < 1e-4
    for step in range(len(reference)):
        assert apart(reference[step], eager(model, IDS[: PROMPT + step + 1])) < 1e-4
    assert apart(lanes[0], reference) < 0.05


@pytest.mark.long("combine", sample=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_long_prompts_are_packed_as_lanes_store_them(kind: str) -> None:
    model = long(kind)
    lane = Lane(label="x", method="per_token", knobs={**KNOBS, "bits": 8}, sliding=True)
    outcome = run_engine(model, IDS[:PROMPT], [lane], NEW, follow=IDS[PROMPT:], audit=True)
    layers = lane_layers(lane, model.model, "torch", 0, model.ref, model.rotations)

    def attend(layer: int, *call: Tensor) -> Tensor:
        return layers[layer].attend(*call)  # type: ignore[arg-type]

    model.forward(torch.tensor([IDS[:PROMPT]]), 0, attend, last_only=True)
    steps = enumerate(IDS[PROMPT:-1], PROMPT)
    found = torch.cat([model.forward(torch.tensor([[token]]), at, attend)[0] for at, token in steps])
    assert apart(found, outcome.logits()[1][0]) < 0.02
    held = sum(layer.nbytes for layer in layers)
    cache = outcome.state("x").cache
    assert cache is not None
    stored = sum(sum(part.stream.nbytes().values()) for part in cache.parts)
    assert held == pytest.approx(stored, rel=0.02)  # all tokens of windows, too, where they are packed


@pytest.mark.long("combine", sample=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_choice_of_keys_leaves_windows_as_they_are(kind: str) -> None:
    """A lane that keeps a tenth of the tokens of full layers differs, one that keeps all of them does not."""
    model = long(kind)
    lanes = [
        Lane(label=f"{kept}", method="fp16", select={"by": "h2o", "heavy": kept / 2, "recent": kept / 2})
        for kept in (1.0, 0.1)
    ]
    outcome = run_engine(model, IDS[:PROMPT], lanes, NEW, follow=IDS[PROMPT:])
    reference, (whole, few) = outcome.logits()
    assert apart(whole, reference) < 0.05 and apart(few, reference) > 2 * apart(whole, reference)
    cache = outcome.state("0.1").cache
    assert cache is not None and set(cache.selects) == set(model.shape.full)


@pytest.mark.long("combine", sample=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3_text", "gemma4_text"])
def test_long_prompts_go_through_the_cache(kind: str) -> None:
    """Stored before it is read, a prompt is the same in passes of 300 and of 700 tokens, and near the reference."""
    model, found = long(kind), []
    for chunk in (300, 700):
        told = {"chunk": chunk, "own_chunk": "stored"}
        lane = Lane(label="x", method="per_token", knobs={**KNOBS, "bits": 8}, sliding=True, prefill=told)
        outcome = run_engine(model, IDS[:PROMPT], [lane], NEW, follow=IDS[PROMPT:])
        found.append(outcome.logits()[1][0])
    assert apart(*found) < 1e-3
    prefill = SharedPrefill(model, IDS[:PROMPT])
    list(prefill.run())
    assert apart(found[0], outcome.logits()[0]) < 0.1
