"""Architectures that rotate some keys, some channels, or none: told apart by looking, and treated accordingly."""

import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvq_core.capture.spectra import before_rope, spectra
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.script import Script
from kvq_core.errors import MethodError, ModelError
from kvq_core.models import LoadedModel, wrap
from kvq_core.models.lockstep import attending
from kvq_core.models.probe import TOKENS, probe
from kvq_core.packed.cache import packed_cache, packed_layers
from kvq_core.pipeline.state import Run
from kvq_core.spec import ComparisonSpec, Lane
from tests.core.packed.test_packed_generate import generated
from tests.core.packed.test_packed_methods import forced_logits
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import generate, prompt_ids, tiny

COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1}
WITHOUT = {  # the last of their four layers has no RoPE
    "cohere2": {},
    "exaone4": {},
    "exaone_moe": MOE,
    "afmoe": MOE,
    "smollm3": {},
}
SMALL_GROUPS = {"group_size": 8, "residual_length": 8}
SQUAT = {**SMALL_GROUPS, "block_size": 8}
PRE = {**SQUAT, "rope": "pre"}


def small(kind: str, **changes: object) -> torch.nn.Module:
    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, **{**COMMON, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def held(kind: str, **changes: object) -> LoadedModel:
    return wrap(small(kind, **changes), None, id=f"small-{kind}")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_channel_that_a_norm_switches_off_hides_no_rotation(dtype: torch.dtype) -> None:
    """Some of Gemma 3's norms multiply channels of keys with 0: what is there is rounding of the channel beside it."""
    model = small("gemma3_text", layer_types=["sliding_attention", "full_attention"] * 2).to(dtype)
    for layer in model.model.layers:
        layer.self_attn.k_norm.weight.data[:3] = -1  # it adds one
    assert wrap(model, None, id="switched-off").rotations == ("rope",) * 4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", list(WITHOUT))
def test_layers_without_rope_are_found(kind: str, dtype: torch.dtype) -> None:
    model = wrap(small(kind, **WITHOUT[kind]).to(dtype), None, id=kind)
    assert model.rotations == ("rope", "rope", "rope", "none")
    assert model.shape.unknown_rope == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(WITHOUT))
def test_keys_that_were_never_rotated_are_not_rotated_back(kind: str) -> None:
    """On such a layer SQuat before and after RoPE are one method; what captures show of it is the same twice."""
    model, ids = held(kind, **WITHOUT[kind]), prompt_ids(60)
    lanes = [Lane(label=rope, method="squat", knobs={**SQUAT, "rope": rope}, layers=(3,)) for rope in ("pre", "post")]
    outcome = run_engine(model, ids, lanes, 12, audit=True, ignore_eos=True)
    assert [outcome.state(lane.label).error for lane in lanes] == [None, None]
    reference, (pre, post) = outcome.logits()
    assert torch.equal(pre, post) and not torch.equal(pre, reference)
    group = outcome.decode.prefill.groups[0]
    found = spectra(group, outcome.decode.rope)
    assert torch.equal(found["centred/key_pre"][3], found["centred/key_post"][3])
    assert not torch.equal(found["centred/key_pre"][0], found["centred/key_post"][0])
    everywhere = [Lane(label="all", method="squat", knobs=PRE), Lane(label="svdq", method="svdq")]
    outcome = run_engine(model, ids, everywhere, 6, audit=True, ignore_eos=True)
    assert [outcome.state(lane.label).error for lane in everywhere] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["squat", "svdq"])
def test_packed_layers_without_rope_are_the_engines(method: str) -> None:
    model, ids = held("smollm3", hidden_size=128, head_dim=32), prompt_ids(70)
    lane = Lane(label="x", method=method, knobs={"rope": "pre"} if method == "squat" else {"value_bits": 4})
    outcome = run_engine(model, ids, [lane], 8, ignore_eos=True)
    logits, _ = forced_logits(model, ids, lane, outcome.decode.token_ids[:-1])
    torch.testing.assert_close(logits, outcome.logits()[1][0], rtol=0, atol=5e-4)


@pytest.mark.slow
def test_a_packed_cache_of_a_bare_model_looks_by_itself_and_leaves_its_attention() -> None:
    model, ids = held("smollm3", hidden_size=128, head_dim=32), prompt_ids(70)
    lane = Lane(label="x", method="squat", knobs={"rope": "pre"})
    state = run_engine(model, ids, [lane], 8, ignore_eos=True).state("x")
    assert generated(model, ids, lane.build(), 8) == state.token_ids
    bare = small("llama")
    assert probe(bare, held("llama").rope(TOKENS)) == ("rope",) * 4
    assert bare.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_partial_rotary_that_a_model_cuts_out_itself() -> None:
    model, ids = held("phi", partial_rotary_factor=0.5), prompt_ids(50)
    assert model.rotations == ("rope",) * 4 and model.rope(9).cos.shape == (9, 8)
    lane = Lane(label="pre", method="squat", knobs=PRE)
    outcome = run_engine(model, ids, [lane], 12, audit=True, ignore_eos=True)
    assert outcome.decode.token_ids == generate(model, ids, 12) and outcome.state("pre").error is None
    keys, rope = outcome.decode.prefill.groups[0].keys, outcome.decode.rope
    assert torch.equal(rope.unrotate(keys, 0)[..., 8:], keys[..., 8:])
    torch.testing.assert_close(rope.rotate(rope.unrotate(keys, 0), 0), keys, rtol=1e-5, atol=1e-5)
    with pytest.raises(MethodError, match="another way than channel i with channel i"):
        packed_layers(lane.build(), model.model, lane.windows(), "auto")


@pytest.mark.slow
def test_the_look_is_taken_once_and_kept(monkeypatch: pytest.MonkeyPatch, home) -> None:
    calls = []

    def look(model, rope):
        calls.append(1)
        return probe(model, rope)

    monkeypatch.setattr(sys.modules["kvq_core.models.loaded"], "probe", look)
    for _ in range(2):
        assert held("cohere2").rotations[3] == "none"
    assert len(calls) == 1
    (memo,) = (home / "rotations").iterdir()
    memo.write_text("[]")
    assert held("cohere2").rotations[3] == "none" and len(calls) == 2
    assert held("cohere2", sliding_window_pattern=2).rotations == ("rope", "none") * 2  # the same weights
    assert len(calls) == 3


def test_an_unknown_rotation_costs_the_lanes_that_need_it(smollm) -> None:
    """A norm after RoPE: what came before it cannot be had, and all other lanes run."""
    model = held("hunyuan_v1_dense", vocab_size=len(smollm.tokenizer))
    for layer in model.model.model.layers:
        torch.nn.init.uniform_(layer.self_attn.key_layernorm.weight, 0.2, 2)
    model.tokenizer = smollm.tokenizer
    lanes = (
        Lane(label="pre", method="squat", knobs=PRE),
        Lane(label="post", method="squat", knobs=SQUAT),
        Lane(label="values", method="per_token", knobs=SMALL_GROUPS, tensors="values"),
    )
    run = Run(
        "0" * 16, model, ComparisonSpec(prompt="-", max_new_tokens=8, lanes=lanes), Script.of_prompt(prompt_ids(40))
    )
    list(run.stages())
    assert model.rotations == ("unknown",) * 4 and model.shape.unknown_rope == (0, 1, 2, 3)
    errors = [state.error for state in run.first.decode.states]
    assert "how the model rotates those of layers 0, 1, 2, 3 is not known" in errors[0] and errors[1:] == [None] * 3
    assert not before_rope(run.prefill.groups[0].keys[0], model.rope(40).on([0])).any()
    with pytest.raises(MethodError, match="not known"):
        model.rope(4).unrotate(torch.ones(4, 2, 4, 16), 0)
    with pytest.raises(MethodError, match="in a way that is not known"):
        packed_cache(model, lanes[0].build())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("diffllama", "do not all attend once a token"), ("doge", "uses a mask of its own")],
)
def test_attention_that_would_come_out_wrong_is_refused(kind: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{kind} models are not supported: it.*{reason}"):
        held(kind, head_dim=16)


@pytest.mark.parametrize("asked", [{"indices": torch.zeros(1)}, {"is_causal": False}, {"position_bias": 0}])
def test_what_an_attention_asks_for_is_not_dropped(asked: dict[str, object]) -> None:
    model = tiny("llama")
    with pytest.raises(ModelError, match=f"uses {next(iter(asked))}, which the engine does not apply"):
        with attending(lambda *_: pytest.fail("answered"), model.scoring):
            model.model(torch.tensor([[1, 2]]), use_cache=False, **asked)


def test_experts_are_taken() -> None:
    """Which experts compute is decided by numbers, of which the empty twin has none."""
    model, ids = held("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32), prompt_ids(30)
    outcome = run_engine(model, ids, [], 8, ignore_eos=True)
    assert outcome.decode.token_ids == generate(model, ids, 8)


def test_scalars_among_the_weights_are_hashed() -> None:
    one, other = held("apertus"), small("apertus")
    scalars = [weight for weight in other.state_dict().values() if weight.dim() == 0]
    assert scalars and wrap(other, None, id="x").weights_hash == one.weights_hash
    scalars[0].add_(1)
    assert wrap(other, None, id="x").weights_hash != one.weights_hash


def test_a_model_that_answers_nan_is_refused() -> None:
    broken = small("llama")
    broken.model.layers[1].mlp.up_proj.weight.data[3, 5] = torch.nan
    model = wrap(broken, None, id="broken", title="Broken")
    with pytest.raises(ModelError, match="Broken answers NaN or infinity instead of numbers"):
        list(SharedPrefill(model, prompt_ids(20)).run())
