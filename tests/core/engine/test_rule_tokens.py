"""Rules for some tokens in a lane: stores against the simulation of tiers, identities, bytes, what is refused."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvq_core.analysis.context_growth import Growth
from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.tiers import TierPlan, Tiers, TierStoring
from kvq_core.codecs.window import Window
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.engine.stored_bytes import measure
from kvq_core.errors import SpecError
from kvq_core.methods import ModelRef
from kvq_core.spec import Lane
from tests.core.codecs.test_tiers import Simulation
from tests.core.engine.test_centering_dense import PROMPT, TOKENS, first, whole
from tests.core.engine.test_device_groups import spread
from tests.support.engine_runs import run_engine
from tests.support.growth_bits import effective_bits
from tests.support.tiny_models import CONFIGS, SCALED, prompt_ids, tiny

Given = dict[str, Any]
Q8: Given = {"method": "per_token", "knobs": {"bits": 8, "group_size": 16, "residual_length": 0}}
Q4: Given = {"method": "per_token", "knobs": {"bits": 4, "group_size": 16, "residual_length": 0}}
KIVI: Given = {"method": "kivi", "knobs": {"bits": 2, "group_size": 8, "residual_length": 8}}
SQUAT: Given = {"method": "squat", "knobs": {"group_size": 8, "residual_length": 8}}
FP16: Given = {"method": "fp16"}


def lane(*rules: Given, **more: Any) -> Lane:
    return Lane.model_validate({"rules": list(rules), **more})


def cached(lane: Lane, group: LayerGroup, tokens: int = PROMPT) -> LaneCache:
    return LaneCache.of_prompt(lane, [first(group, tokens)], whole()[1])


def grow(cache: LaneCache, group: LayerGroup, start: int, end: int) -> None:
    for position in range(start, end):
        for part in cache.parts:
            x = group.keys if part.kind == "key" else group.values
            cache.append(part, x[..., position : position + 1, :], position)
            cache.flush(part)


def test_a_lane_of_tiers_reads_what_the_simulation_does() -> None:
    """Keys of KIVI under a tail of 8 bits, first tokens of 8 bits, and a span in fp16; values per token."""
    group, _ = whole()
    rules = ({**FP16, "tokens": [[20, 28]]}, {**Q8, "tokens": "first:8"}, {**Q8, "tokens": "last:20"}, KIVI)
    cache = cached(lane(*rules), group)
    grow(cache, group, PROMPT, TOKENS)
    eight = TierStoring(Window(step=1), GroupCodec(8, 16, "channels"))
    bodies = {
        "key": TierStoring(Window(step=8), GroupCodec(2, 8, "tokens")),
        "value": TierStoring(Window(recent=8), GroupCodec(2, 8, "channels")),
    }
    for part in cache.parts:
        x = group.keys if part.kind == "key" else group.values
        plan = TierPlan(bodies[part.kind], (8, eight), (20, eight), (((20, 28), TierStoring()),))
        simulated = Simulation(x, plan, PROMPT)
        for tokens in range(PROMPT + 1, TOKENS + 1):
            simulated.settle(tokens)
        wrong = (part.stream.decode() - simulated.seen(TOKENS)).abs() > 1e-3
        assert wrong.double().mean() < 0.01  # float32 and float64 round a few elements to different codes


SIX = [
    ("per_token", {"bits": 4, "group_size": 16}),
    ("kivi", {"bits": 2, "group_size": 8}),
    ("innerq", {"group_size": 16}),
    ("squat", {"group_size": 8}),
    ("squat", {"group_size": 8, "rope": "pre"}),
    ("per_channel", {"group_size": 8}),
]


@pytest.mark.few(sample=3)
@pytest.mark.parametrize(("method", "knobs"), SIX)
def test_the_newest_tokens_in_fp16_are_recent_tokens(method: str, knobs: Given) -> None:
    group, _ = whole()
    given = {"method": method, "knobs": knobs}
    rules, option = lane({**FP16, "tokens": "last:16"}, given), Lane(**given, recent_tokens=16)
    a, b = cached(rules, group), cached(option, group)
    grow(a, group, PROMPT, TOKENS), grow(b, group, PROMPT, TOKENS)
    shape = tiny("qwen2").shape
    assert measure(a, shape).bytes_by_part == measure(b, shape).bytes_by_part
    for one, other in zip(a.parts, b.parts, strict=True):
        assert torch.equal(one.stream.decode(), other.stream.decode())


@pytest.mark.parametrize(("method", "knobs"), SIX)
def test_the_first_tokens_in_fp16_are_sink_tokens(method: str, knobs: Given) -> None:
    group, _ = whole()
    given = {"method": method, "knobs": knobs}
    a, b = cached(lane({**FP16, "tokens": "first:5"}, given), group), cached(Lane(**given, sink_tokens=5), group)
    for one, other in zip(a.parts, b.parts, strict=True):
        assert torch.equal(one.stream.decode(), other.stream.decode()) and one.stream.nbytes() == other.stream.nbytes()


BESIDE: list[Given] = [{**Q8, "tokens": "last:16"}, {**FP16, "tokens": [[20, 28]]}]


@pytest.mark.parametrize("prompt", [3, PROMPT])
@pytest.mark.parametrize("beside", BESIDE, ids=["tail", "spans"])
@pytest.mark.parametrize("own", [False, True], ids=["a rule", "its option"])
def test_first_tokens_stay_in_fp16_beside_other_tiers(own: bool, beside: Given, prompt: int) -> None:
    """Those of a rule before it, and those that a method keeps by itself."""
    group, _ = whole()
    first = {**FP16, "tokens": "first:5"}
    span = beside["method"] == "fp16"
    kivi = {**KIVI, "sink_tokens": 5} if own else KIVI
    cache = cached(lane(*([beside] if own else [beside, first] if span else [first, beside]), kivi), group, prompt)
    grow(cache, group, prompt, TOKENS)
    for part in cache.parts:
        x, read = group.keys if part.kind == "key" else group.values, part.stream.decode()
        assert torch.equal(read[..., :5, :], x[..., :5, :].half().float())
        assert not torch.equal(read[..., 5:13, :], x[..., 5:13, :].half().float())
        assert part.stream.nbytes()["sinks"] == 2 * x[..., :5, :].numel()
        assert sum(stream.nbytes().get("sinks", 0) for stream in part.stored_by(cache.rules - 1)) > 0, "of its rule"


def test_a_tail_with_nothing_behind_it_leaves_first_tokens_in_fp16() -> None:
    group, _ = whole()
    cache = cached(lane({**FP16, "tokens": "first:5"}, {**Q8, "tokens": "last:16"}), group, 12)
    for part in cache.parts:
        x, read = group.keys if part.kind == "key" else group.values, part.stream.decode()
        assert torch.equal(read[..., :5, :], x[..., :5, :].half().float())
        assert not torch.equal(read[..., 5:12, :], x[..., 5:12, :].half().float())


@pytest.mark.parametrize("beside", BESIDE, ids=["tail", "spans"])
def test_bits_by_arithmetic_count_first_tokens_beside_other_tiers(beside: Given) -> None:
    group, shape = whole()[0], tiny("qwen2").shape
    drawn = lane(beside, {**Q4, "sink_tokens": 8})
    memory = measure(cached(drawn, group), shape)
    keys, values = effective_bits(Growth.of(drawn, memory, shape), shape, PROMPT)
    assert (keys, values) == (pytest.approx(memory.key_bits, rel=1e-6), pytest.approx(memory.value_bits, rel=1e-6))


@pytest.mark.long("combine", sample=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONFIGS, *SCALED])
def test_every_store_decodes_to_what_attention_reads(name: str) -> None:
    lanes = [
        lane({**Q8, "tokens": "last:12"}, KIVI, label="tail"),
        lane({**FP16, "tokens": "first:2"}, {**Q8, "tokens": "first:10"}, Q4, label="head"),
        lane({**FP16, "tokens": [[3, 9], [20, 21]]}, {**Q8, "tokens": [[30, 34]]}, KIVI, label="spans"),
        lane({**Q8, "tokens": "last:9", "tensors": "keys", "layers": [1], "rotate": "signed"}, Q4, label="some"),
        lane({**Q8, "tokens": "first:16", "center": "mean"}, label="the rest in fp16"),
    ]
    outcome = run_engine(tiny(name), prompt_ids(PROMPT), lanes, 30, audit=True, ignore_eos=True)
    assert [state.error for state in outcome.decode.states] == [None] * len(lanes)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_rules_for_tokens_are_stored_or_refused(data: st.DataObject) -> None:
    methods = st.sampled_from([Q8, Q4, KIVI, FP16, SQUAT])
    tokens = st.sampled_from(["all", "first:8", "first:3", "last:16", "last:5", [[8, 16]], [[1, 2], [40, 48]]])
    tensors = st.sampled_from(["both", "keys", "values"])
    rule = st.builds(lambda m, t, x: {**m, "tokens": t, "tensors": x}, methods, tokens, tensors)
    try:
        drawn = lane(*data.draw(st.lists(rule, min_size=1, max_size=4)))
    except SpecError as error:
        assert "\n" not in str(error)
        return
    cache, shape = cached(drawn, whole()[0]), tiny("qwen2").shape
    grow(cache, whole()[0], PROMPT, PROMPT + 20)
    memory = measure(cache, shape)
    for kind in ("key", "value"):
        bits = sum(p.stream.bits().double().expand(p.layers.numel(), 2, -1, -1).mean(-1).sum() for p in cache.of(kind))
        stored = sum(size for name, size in memory.bytes_by_part.items() if name.startswith(kind))
        assert float(bits) * shape.head_dim == pytest.approx(8 * stored, rel=1e-6)
    if cache.rules > 1:
        stored = sum(sum(rule.bytes_by_part.values()) for rule in memory.by_rule)
        untouched = sum(sum(p.stream.nbytes().values()) for p in cache.parts if not p.rules)
        bodies = sum(_in_no_rule(p.stream) for p in cache.parts)
        assert stored + untouched + bodies == sum(memory.bytes_by_part.values())
    growth = Growth.of(drawn, memory, shape)
    assert growth.mean_bits(shape, 4096) is None or 0 < (growth.mean_bits(shape, 4096) or 0) < 40


def _in_no_rule(stream: object) -> int:
    """Bytes of tokens in fp16 beside tiers: those that no rule is for, and first ones that a tail may not take."""
    if not isinstance(stream, Tiers) or stream.plan is None or stream.plan.body.rule is not None:
        return 0
    first = stream.head is not None and stream.plan.first is not None and stream.plan.first[1].rule is None
    alone = [stream.body, *([stream.head] if first else [])]
    return sum(sum(each.nbytes().values()) for each in alone if each is not None)


def test_curves_meet_what_a_run_measured() -> None:
    """At the length of the run, bits by arithmetic are those counted, but for groups that wait in the tail."""
    group, shape = whole()[0], tiny("qwen2").shape
    drawn = lane({**FP16, "tokens": [[30, 40]]}, {**Q8, "tokens": "first:8"}, {**Q8, "tokens": "last:16"}, Q4)
    memory = measure(cached(drawn, group), shape)
    keys, values = effective_bits(Growth.of(drawn, memory, shape), shape, PROMPT)
    assert (keys, values) == (pytest.approx(memory.key_bits, rel=1e-6), pytest.approx(memory.value_bits, rel=1e-6))


@pytest.mark.slow
def test_devices_share_tiers() -> None:
    drawn = [lane({**Q8, "tokens": "first:8", "rotate": "signed"}, {**Q8, "tokens": "last:16"}, KIVI)]
    ids = prompt_ids(PROMPT)
    one, two = (run_engine(model, ids, drawn, 12, ignore_eos=True) for model in (tiny("qwen2"), spread("qwen2")))
    for expected, found in zip(one.logits(), two.logits(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_layers_with_and_without_tiers_are_stored_apart() -> None:
    cache = cached(lane({**Q8, "tokens": "last:16", "layers": [1], "tensors": "keys"}, Q4), whole()[0])
    keys = {tuple(part.layers.tolist()): part.rules for part in cache.of("key")}
    assert keys == {(1,): (0, 1), (0, 2): (1,)}
    assert [part.rules for part in cache.of("value")] == [(1,)]


REFUSED = [
    ([{**Q8, "tokens": "last:8"}, {**Q8, "tokens": "first:8"}, Q4], "rules of spans come first, then first:n"),
    ([{**Q8, "tokens": "first:8"}, {**Q4, "tokens": "first:16"}, KIVI], "first:n may stand once in fp16"),
    ([{**FP16, "tokens": "last:16"}, {**Q8, "tokens": "last:16"}, KIVI], "last:n may stand once in fp16"),
    ([{**KIVI, "tokens": "first:12"}, Q4], "kivi stores 8 tokens at a time; give first whole multiples"),
    ([{**KIVI, "tokens": [[0, 9]]}, Q4], "give spans whole multiples"),
    ([{"method": "per_token", "tokens": "last:16"}, Q4], "keeps up to 32 newest tokens in fp16; give last:33 or more"),
    ([{**FP16, "tokens": "first:5000"}, Q4], "fp16 there is sink_tokens = 5000 of "),
    ([{**Q8, "tokens": "last:8"}, {"method": "qaq"}], "qaq stores its tokens anew, as one: it cannot be split"),
    ([{**Q8, "tokens": [[0, 8]]}, {"method": "svdq", "tensors": "keys"}], "svdq stores the prompt once, as a whole"),
    ([{**Q8, "tokens": "last:8"}, {"method": "squat", "knobs": {"rope": "pre"}}], "keys before RoPE, "),
    ([{**Q8, "tokens": "first:8"}, {**KIVI, "sink_tokens": 9}], "give first:9 or more, or sink_tokens = 8 or less"),
    ([{**Q8, "tokens": [[9, 12], [4, 6]]}, Q4], "spans come in order and do not overlap"),
    ([Q4, {**Q8, "tokens": "last:8"}], "can never be reached"),
    (
        [{**FP16, "tokens": [[0, 9], [9, 20]]}, {**Q8, "tokens": [[2, 6], [8, 20]]}, Q4],
        "rule 2 (16 tokens of spans per_token 8) can never be reached: the spans of rules before it",
    ),
]


@pytest.mark.parametrize(("rules", "said"), REFUSED)
def test_what_cannot_be_split_says_why(rules: list[Given], said: str) -> None:
    with pytest.raises((SpecError, ValueError)) as caught:
        lane(*rules)
    assert said in str(caught.value)
    if isinstance(caught.value, SpecError):
        assert "\n" not in str(caught.value)


def test_runs_of_overlapping_spans_have_ids_of_their_own() -> None:
    model = ModelRef("m", "0")
    apart, over = (lane({**FP16, "tokens": [[0, 9]]}, {**Q8, "tokens": [[at, 20]]}, Q4) for at in (9, 8))
    assert apart.data_hash(model) is None and over.data_hash(model) is not None


def test_runs_whose_first_tokens_stay_beside_others_have_ids_of_their_own() -> None:
    model, tail, first = ModelRef("m", "0"), {**Q8, "tokens": "last:16"}, {**FP16, "tokens": "first:5"}
    sinks = {**KIVI, "sink_tokens": 5}
    keys = {**Q8, "tokens": "first:16", "tensors": "keys"}
    for rules in ((first, tail, KIVI), (tail, sinks), ({**FP16, "tokens": [[20, 28]]}, sinks), (keys, tail, sinks)):
        assert lane(*rules).data_hash(model) is not None
    for rules in ((tail, KIVI), (first, KIVI), (sinks,), ({**Q8, "tokens": "first:16"}, tail, sinks)):
        assert lane(*rules).data_hash(model) is None


def test_spans_that_reach_beyond_earlier_ones_are_allowed() -> None:
    drawn = lane({**FP16, "tokens": [[0, 9]]}, {**Q8, "tokens": [[2, 6], [8, 10]]}, Q4)
    assert [rule.spans for rule in drawn.every_rule] == [((0, 9),), ((2, 6), (8, 10)), ()]


def test_names_say_which_tokens() -> None:
    drawn = lane({**FP16, "tokens": [[4, 9]]}, {**Q8, "tokens": "first:8"}, {**Q8, "tokens": "last:16"}, KIVI)
    assert drawn.title.startswith("5 tokens of spans fp16, first 8 per_token 8, last 16 per_token 8, kivi 2")


@pytest.mark.slow
def test_a_short_prompt_fills_its_first_tokens_later() -> None:
    prefill = SharedPrefill(tiny("qwen2"), prompt_ids(3))
    list(prefill.run())
    drawn = lane({**Q8, "tokens": "first:8"}, {**Q8, "tokens": "last:9"}, KIVI)
    outcome = run_engine(tiny("qwen2"), prompt_ids(3), [drawn], 40, audit=True, ignore_eos=True)
    assert outcome.decode.states[0].error is None


@pytest.mark.slow
def test_tiers_take_a_prompt_in_chunks() -> None:
    """Read from the cache, chunk by chunk; what they cannot do is refused."""
    rules = ({**FP16, "tokens": "first:2"}, {**Q8, "tokens": "first:10"}, {**Q8, "tokens": "last:12"}, KIVI)
    lanes = [lane(*rules, label=str(n), prefill={"chunk": n}) for n in (7, 16, 64)]
    outcome = run_engine(tiny("llama"), prompt_ids(PROMPT), lanes, 24, audit=True, ignore_eos=True)
    assert [state.error for state in outcome.decode.states] == [None] * 3
    with pytest.raises(SpecError, match="tokens = last:12 are quantized by another"):
        lane({**Q8, "tokens": "last:12"}, Q4, prefill={"chunk": 8, "own_chunk": "stored"})
    with pytest.raises(SpecError, match="spans are kept beside a prompt that is known as a whole"):
        lane({**FP16, "tokens": [[2, 8]]}, Q4, prefill={"chunk": 8})
