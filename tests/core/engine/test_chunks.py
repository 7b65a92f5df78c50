"""Prompts read through the caches, against a plain transformers loop with a cache of the tests' own."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.divergence import kl_divergence
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.spec import Lane, parse_lane
from tests.support.campaigns import pairs
from tests.support.engine_runs import Outcome, run_engine
from tests.support.plain_cache import GROUP, PlainCache, check_alike, plain_logits
from tests.support.tiny_models import CONFIGS, prompt_ids, tiny

METHODS = {
    "token-8": ({"method": "per_token", "knobs": {"bits": 8, "group_size": GROUP, "residual_length": 0}}, "channels"),
    "token-4": ({"method": "per_token", "knobs": {"bits": 4, "group_size": GROUP, "residual_length": 0}}, "channels"),
    "token-4-window": (
        {"method": "per_token", "knobs": {"bits": 4, "group_size": GROUP, "residual_length": 16}},
        "channels",
    ),
    "kivi": ({"method": "kivi", "knobs": {"bits": 2, "group_size": GROUP, "residual_length": 16}}, "tokens"),
}


def run(
    model: LoadedModel, ids: list[int], follow: list[int], lane: dict[str, Any], prefill: dict[str, Any] | str
) -> tuple[Outcome, Tensor]:
    """The engine's run, and logits of one lane at all prompt positions and the answer's."""
    lanes = [Lane(label="one", prefill=prefill, **lane)]
    outcome = run_engine(model, ids, lanes, 1, follow=follow, audit=True, scored=tuple(range(len(ids))))
    state = outcome.decode.states[0]
    assert state.error is None, state.error
    assert state.prompt_hidden is not None
    return outcome, torch.cat([model.head(state.prompt_hidden[None])[0], outcome.logits()[1][0]])


def exact_logits(model: LoadedModel, ids: list[int]) -> Tensor:
    """Full precision, through transformers: (tokens, vocabulary)."""
    whole = deepcopy(model.model)
    whole.set_attn_implementation("eager")
    with torch.no_grad():
        return whole(input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize(("name", "chunk"), pairs(METHODS, (1, 7, 64)))
def test_raw_chunks_equal_a_plain_loop(name: str, chunk: int) -> None:
    model, ids, follow = tiny("llama"), prompt_ids(100), prompt_ids(10, seed=3)
    lane, axis = METHODS[name]
    knobs = lane["knobs"]
    cache = PlainCache(knobs["bits"], axis, knobs["residual_length"], stored=False)
    expected = plain_logits(model, ids, follow[:-1], chunk, cache)
    _, found = run(model, ids, follow, lane, {"chunk": chunk})
    check_alike(found, expected[chunk:], exact_logits(model, ids + follow[:-1])[chunk:])


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize(("chunk", "name"), pairs((1, 7, 64, 200), ("token-8", "token-4", "token-4-window")))
def test_tokens_stored_before_they_are_read_equal_a_plain_loop(name: str, chunk: int) -> None:
    """One by one, whatever the chunk."""
    model, ids, follow = tiny("qwen2"), prompt_ids(100, seed=1), prompt_ids(10, seed=3)
    lane, axis = METHODS[name]
    knobs = lane["knobs"]
    cache = PlainCache(knobs["bits"], axis, knobs["residual_length"], stored=True)
    expected = plain_logits(model, ids, follow[:-1], 1, cache)
    _, found = run(model, ids, follow, lane, {"chunk": chunk, "own_chunk": "stored"})
    check_alike(found, expected, exact_logits(model, ids + follow[:-1]))


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize(("name", "own_chunk"), pairs(CONFIGS, ("raw", "stored")))
def test_an_unquantized_cache_answers_as_the_reference(name: str, own_chunk: str) -> None:
    model, ids, follow = tiny(name), prompt_ids(61), prompt_ids(6, seed=1)
    outcome, found = run(model, ids, follow, {"method": "fp16"}, {"chunk": 16, "own_chunk": own_chunk})
    reference = torch.cat([model.head(outcome.decode.prefill.hidden[None])[0], outcome.logits()[0]])
    reference = reference[-len(found) :]
    assert kl_divergence(reference.log_softmax(-1), found.log_softmax(-1)[None]).max() < 1e-5
    torch.testing.assert_close(found, reference, rtol=0, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_chunk_as_long_as_the_prompt_changes_nothing(name: str) -> None:
    model, ids = tiny("llama"), prompt_ids(70)
    lane = METHODS[name][0]
    plain, chunked = (
        run_engine(model, ids, [Lane(label="one", prefill=prefill, **lane)], 20, ignore_eos=True)
        for prefill in ("full", {"chunk": 70})
    )
    assert torch.equal(plain.logits()[1], chunked.logits()[1])
    assert plain.decode.states[0].token_ids == chunked.decode.states[0].token_ids


LOCAL = {
    **{name: METHODS[name][0] for name in ("token-8", "token-4", "token-4-window")},
    "oscar": {"method": "oscar", "knobs": {"sink_tokens": 4, "recent_tokens": 8}},
    "kvquant": {"method": "kvquant", "knobs": {"bits": 4}},
    "rvq": {"method": "rvq", "knobs": {"entries": 64, "steps": 6}},
    "rvq-window": {"method": "rvq", "knobs": {"entries": 64, "steps": 6}, "sink_tokens": 3, "recent_tokens": 8},
}


@pytest.mark.long("combine", sample=3)
@pytest.mark.slow
@pytest.mark.parametrize("name", LOCAL)
def test_what_is_stored_does_not_depend_on_the_chunk(name: str) -> None:
    model, ids, follow = tiny("llama"), prompt_ids(90, seed=5), prompt_ids(20, seed=3)
    (one, of_one), (many, of_many) = (
        run(model, ids, follow, LOCAL[name], {"chunk": chunk, "own_chunk": "stored"}) for chunk in (1, 7)
    )
    for a, b in zip(*(outcome.decode.states[0].cache.parts for outcome in (one, many)), strict=True):  # type: ignore
        assert torch.equal(a.stream.decode(), b.stream.decode())
    assert torch.equal(of_one, of_many)


ANY = {
    **{name: lane for name, (lane, _) in METHODS.items()},
    "channel": {"method": "per_channel", "knobs": {"group_size": 8, "residual_length": 8}},
    "squat": {"method": "squat", "knobs": {"group_size": 8, "residual_length": 16, "block_size": 8}},
    "squat-pre": {"method": "squat", "knobs": {"group_size": 8, "residual_length": 8, "rope": "pre"}},
    "sinks": {"method": "kivi", "knobs": {"group_size": 8, "residual_length": 8, "sink_tokens": 5}},
    "innerq": {"method": "innerq", "knobs": {"group_size": 8, "sink_tokens": 8, "recent_tokens": 16}},
    "some": {"method": "per_token", "knobs": {"group_size": 8, "residual_length": 0}, "layers": (0, 2)},
    "values": {"method": "kivi", "knobs": {"group_size": 8, "residual_length": 8}, "tensors": "values"},
    "centred": {"method": "per_token", "knobs": {"group_size": 8, "residual_length": 4}, "center": "mean"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANY)
def test_a_chunk_enters_as_its_tokens_one_by_one_do(name: str) -> None:
    """Bit for bit, from the same prompt's cache on."""
    model, ids = tiny("llama"), prompt_ids(150)
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    rope, lane, start = model.rope(len(ids)), Lane(label="one", **ANY[name]), 60
    whole, single = (LaneCache.of_prompt(lane, prefill.groups, rope, model.ref, tokens=start) for _ in range(2))
    for a, b in zip(whole.parts, single.parts, strict=True):
        x = (prefill.groups[0].keys if a.kind == "key" else prefill.groups[0].values)[a.layers]
        first, read = whole.enter(a, x[..., start:, :], start, prompt=False)
        for position in range(start, len(ids)):
            single.append(b, x[..., position : position + 1, :], position)
            single.flush(b)
        stored = [torch.cat([v for _, v in cache.pieces(p)], -2) for cache, p in ((whole, a), (single, b))]
        assert torch.equal(*stored)
        assert torch.equal(read, stored[0][..., first:, :])
        assert first <= start and read.shape[-2] == len(ids) - first


TAKEN = ANY | {"svdq": {"method": "svdq", "knobs": {}}, "qaq": {"method": "qaq", "knobs": {}}}


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize(("name", "fit"), pairs(TAKEN, ("prompt", "first_chunk")))
def test_every_method_takes_chunks(name: str, fit: str) -> None:
    """Stores stand as the working copies say after every step, and hold every token of the prompt."""
    model, ids, follow = tiny("qwen2"), prompt_ids(101), prompt_ids(12, seed=2)
    outcome, found = run(model, ids, follow, TAKEN[name], {"chunk": 40, "fit": fit})
    assert torch.isfinite(found).all()
    state = outcome.decode.states[0]
    assert state.cache is not None
    assert all(part.stream.tokens == len(ids) + len(follow) - 1 for part in state.cache.parts)
    assert state.own_errors is not None and max(state.own_errors) > 0


@pytest.mark.slow
def test_lanes_of_all_kinds_stand_beside_each_other() -> None:
    model, ids = tiny("llama"), prompt_ids(90)
    lane, kivi = METHODS["token-4"][0], METHODS["kivi"][0]
    lanes = [
        Lane(label="full", **kivi),
        Lane(label="raw", prefill={"chunk": 32}, **kivi),
        Lane(label="stored", prefill={"chunk": 32, "own_chunk": "stored"}, **lane),
        Lane(label="floor", method="fp16"),
    ]
    together = run_engine(model, ids, lanes, 24, ignore_eos=True)
    for index, each in enumerate(lanes):
        alone = run_engine(model, ids, [each], 24, ignore_eos=True)
        assert torch.equal(alone.logits()[1][0], together.logits()[1][index])
        assert alone.decode.states[0].token_ids == together.decode.states[index].token_ids


def test_a_lane_whose_first_token_differs_writes_its_own_text_from_there() -> None:
    model, ids = tiny("llama"), prompt_ids(90, seed=3)
    lane = {"method": "per_token", "knobs": {"bits": 1, "group_size": 8, "residual_length": 0}}
    outcome = run_engine(model, ids, [Lane(label="one", prefill={"chunk": 16}, **lane)], 12, ignore_eos=True)
    state = outcome.decode.states[0]
    assert state.first_divergence == 0, "this prompt no longer tells them apart"
    assert len(state.token_ids) == len(outcome.decode.token_ids) == 12
    assert len(outcome.logits()[0]) == 11


@pytest.mark.slow
def test_no_lane_writes_a_text_of_its_own_where_none_is_asked_for() -> None:
    model, ids = tiny("llama"), prompt_ids(64, seed=3)
    lane = Lane(label="kivi", method="kivi", knobs={"bits": 1, "group_size": 8, "residual_length": 16})
    free, forced = (run_engine(model, ids, [lane], 30, ignore_eos=True, free_text=wanted) for wanted in (True, False))
    parted = free.decode.states[0].first_divergence
    assert parted is not None and forced.decode.states[0].first_divergence == parted
    assert forced.decode.states[0].token_ids == free.decode.states[0].token_ids[: parted + 1]
    assert max(forced.decode.step_rows) == 2 < max(free.decode.step_rows)
    torch.testing.assert_close(free.logits()[1], forced.logits()[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("lane", "said"),
    [
        ({"method": "kivi", "prefill": {"own_chunk": "stored"}}, "take own_chunk = raw"),
        (
            {"rules": [{"method": "q8_0", "tokens": "first:8"}, {"method": "q4_0"}], "prefill": "8 stored"},
            "and tokens = first:8 are quantized by another; take own_chunk = raw, or fp16 there",
        ),
        ({"method": "per_token", "prefill": {"chunk": 0}}, "chunk"),
        ({"method": "svdq", "knobs": {"sparsity": {}}, "prefill": {}}, "sparsity"),
        ({"method": "qaq", "knobs": {"update": "once"}, "prefill": {}}, "every_step"),
        ({"method": "per_token", "prefill": "chunked"}, "prefill"),
    ],
)
def test_what_cannot_enter_in_chunks_is_refused_in_one_line(lane: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_lane(lane)
    assert said in str(raised.value) and "\n" not in str(raised.value)
