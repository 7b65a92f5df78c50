"""Every kind of model that transformers builds and the engine takes, tiny and with random weights."""

import json
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from benchmarks.architectures import CONFIGS, RESULTS, SAMPLE, eager, ids_of, tiny_of, wired
from kvq_core.engine.ahead import Ahead
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.stored_bytes import measure
from kvq_core.errors import ModelError
from kvq_core.models import LoadedModel
from kvq_core.models.scoring import Scoring, causal_attention
from kvq_core.packed.cache import lane_layers
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.events import Finished
from kvq_core.sizing.count import PlannedCache
from kvq_core.sizing.layers import shape_of
from kvq_core.spec import ComparisonSpec, Lane
from tests.support.campaigns import whole
from tests.support.engine_runs import run_engine
from tests.support.every_lane import EVERY

KINDS = sorted(CONFIGS) if whole() else SAMPLE
FEW = ("gpt_oss", "mimo_v2_flash", "llama4_text", "gemma3n_text")  # of which a sample runs every method
TAKEN = [kind for kind in SAMPLE if kind != "deepseek_v3"]
METHODS = {
    "per_token": {"group_size": 16, "residual_length": 8},
    "kivi": {"group_size": 8, "residual_length": 16},
    "squat": {"group_size": 8, "residual_length": 16, "block_size": 8},
    "q8_0": {},
}
# of a spread of 1: sums in another order; of delta nets, whose chunks round otherwise than single steps, more
EXACT, CHUNK_RULE = 1e-4, 2e-3


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path_factory.getbasetemp() / "architectures"))


def model_of(kind: str) -> LoadedModel | None:
    """None where it is refused, which are the kinds that the table names, and in its words."""
    told = json.loads(RESULTS.read_text()).get(kind)
    try:
        model = tiny_of(kind)
    except ModelError as error:
        assert (told or {"refused": kind})["refused"] in str(error) and "\n" not in str(error)
        return None
    assert told is None or "refused" not in told
    return model


@pytest.mark.slow
@pytest.mark.few(sample=4)
@pytest.mark.long("combine")
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_what_transformers_computes(kind: str) -> None:
    """Over a prompt in chunks, decoding, a fork and a drop of rows."""
    if (model := model_of(kind)) is None:
        return
    reference, _ = wired(model)
    assert reference < (CHUNK_RULE if model.shape.stateful else EXACT)


@pytest.mark.slow
def test_what_checks_numbers_is_taken_whatever_was_imported_before() -> None:
    """torch._dynamo switches checks of distributions off, which on the meta device cannot be made."""
    from torch.distributions import Distribution

    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    try:
        assert tiny_of("gemma3n_text").shape.layers == 6 and Distribution._validate_args
    finally:
        Distribution.set_default_validate_args(before)


def test_the_table_holds_every_kind() -> None:
    assert set(json.loads(RESULTS.read_text())) == set(CONFIGS)


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in TAKEN or whole()])
def test_lanes_store_what_they_say_on_every_kind(kind: str) -> None:
    """Full-attention layers are quantized, the others are as they were, byte for byte; windows on request."""
    if (model := model_of(kind)) is None:
        return
    sliding = bool(model.shape.windowed)
    lanes = [Lane(label=name, method=name, knobs=knobs, sliding=sliding) for name, knobs in METHODS.items()]
    if model.shape.full:
        lanes.append(Lane(label="full", method="per_token", knobs=METHODS["per_token"]))
    heads = {dim for kind in model.shape.kinds for dim in (kind.key_dim, kind.value_dim) if kind.kv_heads}
    refused = [lane for lane in lanes if lane.why_not(model.shape)]
    assert not refused or any(dim % 32 for dim in heads)
    lanes = [lane for lane in lanes if lane not in refused]
    outcome = run_engine(model, ids_of(60), lanes, 6, audit=True, ignore_eos=True)
    assert [state.error for state in outcome.decode.states] == [None] * len(lanes)
    assert all(torch.isfinite(x).all() for x in outcome.logits())
    told = model.shape
    for state in outcome.decode.states:
        assert state.cache is not None
        stored = {layer for part in state.cache.parts if part.rules for layer in _layers(state.cache, part)}
        assert stored == set(told.full if state.lane.label == "full" else told.keyed)
    for part in outcome.decode.states[-1].cache.parts:  # type: ignore[union-attr]
        if not part.rules:
            group = outcome.decode.prefill.groups[part.group]
            true = (group.keys if part.kind == "key" else group.values)[part.layers]
            assert torch.equal(part.plain.decode()[..., : true.shape[-2], :], true.half().float())


def _layers(cache: LaneCache, part) -> list[int]:
    return [cache.layers[part.group][i] for i in part.layers.tolist()]


# Why a method may not run on a model: mechanisms it would need, and nothing else. Kinds beside them are those that have
# it; "any" where a lane's own settings or learned data decide.
ALLOWED = {
    "how the model rotates those of layers": ["llama4_text"],  # no RoPE to undo
    "is no multiple of 32": ["mimo_v2_flash"],  # channels of a head
    "is no multiple of its blocks of 32": ["mimo_v2_flash"],
    "choose a divisor": ["mimo_v2_flash"],  # groups of more channels than its heads have
    "There are no keys codebooks like this": "any",
}


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize("kind", KINDS if whole() else FEW)
def test_every_method_runs_or_lacks_a_mechanism(kind: str) -> None:
    """Every lane of every method's main variants; a refusal for any other reason than those above is a failure."""
    if (model := model_of(kind)) is None:
        return
    sliding = not model.shape.full
    for lanes in EVERY.values():
        lanes = [lane.model_copy(update={"sliding": sliding}) for lane in lanes]
        why = {lane.label: lane.why_not(model.shape) for lane in lanes}
        taken = [lane for lane in lanes if why[lane.label] is None]
        outcome = run_engine(model, ids_of(140), taken, 3, ignore_eos=True) if taken else None
        states = [] if outcome is None else outcome.decode.states
        why |= {state.lane.label: state.error for state in states if state.error is not None}
        for reason in filter(None, why.values()):
            kinds = next((kinds for told, kinds in ALLOWED.items() if told in reason), ())
            assert kinds == "any" or kind in kinds, reason
        assert outcome is None or torch.isfinite(outcome.logits()[1]).all()


@pytest.mark.slow
@pytest.mark.long("combine", sample=3)
@pytest.mark.parametrize("kind", KINDS if whole() else (*FEW, "qwen3_next", "falcon_h1", "jamba"))
def test_known_tokens_are_read_many_at_once_as_one_by_one(kind: str) -> None:
    """Windows and chunks move within a pass, states go on by chunks, readers read what their holder entered."""
    if (model := model_of(kind)) is None:
        return
    sliding = bool(model.shape.windowed)
    lanes = [Lane(label=name, method=name, knobs=knobs, sliding=sliding) for name, knobs in METHODS.items()]
    lanes.append(Lane(label="windowed", method="per_token", sliding=sliding, sink_tokens=3, recent_tokens=11))
    given = model, ids_of(70), [lane for lane in lanes if lane.why_not(model.shape) is None], 40
    ahead = run_engine(*given, ignore_eos=True, free_text=False)
    with patch.object(Ahead, "passes", lambda *_: None):
        single = run_engine(*given, ignore_eos=True, free_text=False)
    assert (ahead.decode.rows.ahead is None) is not model.shape.in_chunks and single.decode.rows.ahead is None
    assert ahead.decode.token_ids == single.decode.token_ids
    for own, other in zip(ahead.logits(), single.logits(), strict=True):
        off, spread = (own - other).abs(), other.std()
        assert off.median() < (1e-3 if model.shape.stateful else 1e-4) * spread  # CHUNK_RULE against EXACT
        assert off.amax(-1).quantile(0.9) < 0.02 * spread
        # a code that rounds to the next level moves the steps that look at its token: Granite's attention, which is not
        # divided by the root of head_dim, by up to .05 of the spread
        assert off.max() < 0.2 * spread
    for own, other in zip(ahead.decode.states, single.decode.states, strict=True):
        assert own.cache is not None and other.cache is not None
        held, expected = ([part.stream.nbytes() for part in cache.parts] for cache in (own.cache, other.cache))
        assert held == expected and own.token_ids == other.token_ids
        for one, beside in zip(own.cache.parts, other.cache.parts, strict=True):
            off = (one.stream.decode() - beside.stream.decode()).abs()
            assert (off > 0.01).float().mean() < 0.01, "few codes round to another level"


@pytest.mark.parametrize("kind", ["gemma2", "bamba", "llama4_text", "gemma3n_text"])
def test_windows_and_states_are_counted_as_what_they_hold(kind: str) -> None:
    model, ids = tiny_of(kind), ids_of(60)
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    lane = Lane(method="per_token", knobs={"group_size": 16, "residual_length": 0})
    memory = measure(LaneCache.of_prompt(lane, prefill.groups, model.rope(60), model.ref), model.shape)
    windows = {"gemma2": 2 * 24, "bamba": 0, "llama4_text": 3 * 24, "gemma3n_text": 2 * 24}[kind] * 2 * (32 + 32) * 2
    assert memory.window_bytes == windows
    held = 0 if prefill.states is None else prefill.states.nbytes // 4  # float32 here
    assert memory.state_bytes == 2 * held and memory.tokens == 60
    full = len(model.shape.full) * 60 * 2 * (32 + 32) * 2
    own = sum(memory.bytes_by_part.values())
    beside = memory.window_bytes + memory.state_bytes
    assert memory.kv_ratio == own / full and memory.whole_ratio == (own + beside) / (full + beside)


@pytest.mark.parametrize("how", ["window", "chunk", "softcap", "sinks", "all"])
def test_attention_is_that_of_a_float64_recomputation(how: str) -> None:
    generator = torch.Generator().manual_seed(3)
    queries, keys = (torch.randn(1, n, 19, 8, generator=generator) for n in (4, 2))
    values, sinks = torch.randn(1, 2, 19, 6, generator=generator), torch.randn(4, generator=generator)
    every = {"window": {"window": 5}, "chunk": {"chunk": 6}, "softcap": {"softcap": 0.7}, "sinks": {"sinks": sinks}}
    given = {"window": 5, "softcap": 0.7, "sinks": sinks} if how == "all" else every[how]
    scoring = Scoring(0.3, **given)  # type: ignore[arg-type]
    found = causal_attention(queries[:, :, -7:], keys, values, scoring)
    for head in range(4):
        for i, position in enumerate(range(12, 19)):
            first = {"window": position - 4, "chunk": position // 6 * 6}.get(how if how != "all" else "window", 0)
            seen = slice(first, position + 1)
            scores = 0.3 * keys[0, head // 2, seen].double() @ queries[0, head, position].double()
            scores = 0.7 * torch.tanh(scores / 0.7) if how in ("softcap", "all") else scores
            sink = sinks[head : head + 1].double() if how in ("sinks", "all") else scores[:0]
            weights = torch.softmax(torch.cat([scores, sink]), 0)[: len(scores)]
            expected = weights @ values[0, head // 2, seen].double()
            torch.testing.assert_close(found[0, i, head].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "bamba", "gemma3_text", "gemma3n_text", "gemma4_text"])
@pytest.mark.parametrize("sliding", [False, True])
def test_packed_layers_are_the_engines(kind: str, sliding: bool) -> None:
    model, ids = tiny_of(kind), ids_of(60)
    lane = Lane(label="x", method="per_token", knobs=METHODS["per_token"], sliding=sliding)
    outcome = run_engine(model, ids, [lane], 8, ignore_eos=True)
    layers = lane_layers(lane, model.model, "torch", 0, model.ref, model.rotations)
    states = model.states()

    def attend(layer: int, *call: Tensor) -> Tensor:
        return layers[layer].attend(*call)  # type: ignore[arg-type]

    model.forward(torch.tensor([ids]), 0, attend, states=states)
    found = [
        model.forward(torch.tensor([[token]]), len(ids) + at, attend, states=states)[0]
        for at, token in enumerate(outcome.decode.token_ids[:-1])
    ]
    torch.testing.assert_close(torch.cat(found), outcome.logits()[1][0], rtol=0, atol=3e-3)


def test_what_a_lane_cannot_have_is_said() -> None:
    gemma, bamba, mistral = (tiny_of(kind).shape for kind in ("gemma2", "bamba", "mistral"))
    method = {"method": "per_token", "knobs": METHODS["per_token"]}
    assert "layer 0 of this model attends to a window" in (Lane(**method, layers=(0,)).why_not(gemma) or "")
    assert Lane(**method, layers=(0,), sliding=True).why_not(gemma) is None
    assert "layer 0 of this model holds no keys and values" in (Lane(**method, layers=(0,)).why_not(bamba) or "")
    assert "every layer of this model attends to a window" in (Lane(**method).why_not(mistral) or "")
    assert {a.layers for a in Lane(**method).plan(gemma)} == {(1, 3)}


@pytest.mark.slow
def test_what_engines_keep_at_both_ends_they_keep_of_models_without_states() -> None:
    """vLLM counts all layers, and keeps none of a hybrid, though each of its layers attend."""
    lane = Lane(method="turboquant", knobs={"boundary_layers": 1})
    for kind, layers in (("llama", (1, 2)), ("gemma2", (1,)), ("falcon_h1", (0, 1, 2, 3)), ("bamba", (1, 3))):
        model = tiny_of(kind)
        assert {assigned.layers for assigned in lane.plan(model.shape)} == {layers}
        cache = run_engine(model, ids_of(40), [lane], 2, ignore_eos=True).decode.states[0].cache
        assert cache is not None and cache.quantized_layers == set(layers)
        plan = PlannedCache(lane, shape_of(model.model.config.to_dict())).plan
        assert {layer for part in plan for layer in part.layers} >= set(layers)
    assert Lane(method="turboquant").why_not(tiny_of("falcon_h1").shape) is None
    assert "keeps all 4 layers" in (Lane(method="turboquant").why_not(tiny_of("llama").shape) or "")


@pytest.mark.parametrize("kind", ["mistral", "phi3"])
def test_models_of_windows_alone_are_compared(smollm, kind: str) -> None:
    """The noise floor, which quantizes nothing, is one of the lanes; nothing is looked at."""
    lanes = tuple(Lane(label=name, method=name, knobs=METHODS[name], sliding=True) for name in ("per_token", "q8_0"))
    spec = ComparisonSpec(prompt="word " * 40, chat=False, max_new_tokens=6, ignore_eos=True, lanes=lanes)
    model = tiny_of(kind, smollm.tokenizer)
    finished = next(event for event in compare_on(model, spec) if isinstance(event, Finished))
    first, second = (lane.metrics for lane in finished.record.lanes)
    assert first is not None and second is not None and min(first.kld_mean, second.kld_mean) > 0
    assert Lane(method="fp16").why_not(model.shape) is None
    assert "every layer of this model attends to a window" in (Lane(method="q8_0").why_not(model.shape) or "")


@pytest.mark.slow
def test_a_state_that_takes_whole_prompts_is_given_whole_prompts() -> None:
    model, ids = tiny_of("jamba"), ids_of(600)
    assert not model.shape.in_chunks
    prefill = SharedPrefill(model, ids)
    assert list(prefill.run()) == [600]
    torch.testing.assert_close(prefill.logits, eager(model, ids), rtol=1e-3, atol=1e-3)
