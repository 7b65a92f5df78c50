"""Prompts read through the caches, against a plain transformers loop with a cache of the tests' own."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from kvq_core.divergence import kl_divergence
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import Prefill
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.spec import Lane, parse_lane
from tests.support.campaigns import pairs
from tests.support.engine_runs import Outcome, run_engine
from tests.support.tiny_models import CONFIGS, prompt_ids, tiny

GROUP = 8


def rounded(x: Tensor, bits: int, dim: int) -> Tensor:
    """Asymmetric groups of GROUP elements along a dimension, fp16 scale and minimum."""
    out = x.clone()
    for start in range(0, x.shape[dim], GROUP):
        part = x.narrow(dim, start, GROUP).float()  # as lanes do: a tie must fall on the same side
        low, high = part.amin(dim, keepdim=True), part.amax(dim, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).half().float()
        scale, low = torch.where(scale > 0, scale, 1.0), low.half().float()
        codes = torch.round((part - low) / scale).clamp(0, 2**bits - 1)
        out.narrow(dim, start, GROUP).copy_(codes * scale + low)
    return out


class PlainCache(DynamicCache):
    """What a server's cache holds of one sequence, in float64: (1, kv_heads, tokens, head_dim) a layer.

    ``axis``: along which keys share a scale, "channels" of a token or "tokens" of a channel (KIVI, whose values wait
    for ``residual`` newer ones and whose keys leave ``residual`` at a time).
    """

    def __init__(self, bits: int, axis: str, residual: int, stored: bool):
        super().__init__()
        self.bits, self.axis, self.residual, self.stored = bits, axis, residual, stored
        self.held: dict[int, list[Tensor]] = {}
        self.done: dict[int, list[int]] = {}
        self.exact = 0  # tokens of the first chunk, which are encoded from full precision

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.held[layer_idx][0].shape[-2] if layer_idx in self.held else 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        count = query_length if isinstance(query_length, int) else len(query_length)
        return self.get_seq_length(layer_idx) + count, 0

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        new = [key_states, value_states]
        past = self.held.get(layer_idx)
        if self.stored:
            new = [x.half().double() for x in new]
        self.held[layer_idx] = [torch.cat([a, b], -2) for a, b in zip(past, new, strict=True)] if past else new
        self.done.setdefault(layer_idx, [0, 0])
        if self.stored:
            self.settle(layer_idx)
        return tuple(self.held[layer_idx])

    def settle(self, layer: int) -> None:
        """Round what has left the window."""
        keys, values = self.held[layer]
        total = keys.shape[-2]
        leaving = [total - self.residual, total - self.residual]
        if self.axis == "tokens":
            leaving[0] = total // self.residual * self.residual
        for at, (x, end) in enumerate(zip((keys, values), leaving, strict=True)):
            start, end = self.done[layer][at], max(self.done[layer][at], end)
            dim = -2 if at == 0 and self.axis == "tokens" else -1
            x = x.clone()
            x[..., start:end, :] = rounded(x[..., start:end, :], self.bits, dim)
            self.held[layer][at], self.done[layer][at] = x, end

    def end_chunk(self, exact: bool) -> None:
        """Tokens enter as computed where ``exact``, as the first chunk's do, else rounded to fp16; then some leave."""
        for layer, held in self.held.items():
            for at, x in enumerate(held):
                start = self.done[layer][at]
                if not exact:
                    x = torch.cat([x[..., :start, :], x[..., start:, :].half().double()], -2)
                held[at] = x
            if not self.stored:
                self.settle(layer)
                for at in (0, 1):
                    start, x = self.done[layer][at], held[at]
                    held[at] = torch.cat([x[..., :start, :], x[..., start:, :].half().double()], -2)


def plain_logits(model: LoadedModel, ids: list[int], follow: list[int], chunk: int, cache: PlainCache) -> Tensor:
    """Logits of every position of prompt and given answer (tokens, vocabulary), in float64 through transformers."""
    whole = deepcopy(model.model).double()
    whole.set_attn_implementation("eager")
    pieces = [ids[start : start + chunk] for start in range(0, len(ids), chunk)] + [[token] for token in follow]
    found, start = [], 0
    with torch.no_grad():
        for at, piece in enumerate(pieces):
            positions = torch.arange(start, start + len(piece))[None]
            out = whole(input_ids=torch.tensor([piece]), position_ids=positions, past_key_values=cache, use_cache=True)
            cache.end_chunk(exact=at == 0)
            found.append(out.logits[0])
            start += len(piece)
    return torch.cat(found).float()


def check_alike(found: Tensor, expected: Tensor, exact: Tensor) -> None:
    """Equal but for single codes on the other side of a tie, which float32 and float64 put there: what is left is small
    beside what quantization does to the ``exact`` logits."""
    off, effect = (found - expected).abs(), (expected - exact).abs().mean()
    assert effect > 3e-4, "nothing was quantized"
    assert off.mean() < 0.1 * effect
    assert off.median() < 0.02 * effect


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


@pytest.mark.slow
@pytest.mark.parametrize("name", LOCAL)
def test_what_is_stored_does_not_depend_on_the_chunk(name: str) -> None:
    model, ids, follow = tiny("llama"), prompt_ids(90, seed=5), prompt_ids(20, seed=3)
    (one, of_one), (many, of_many) = (
        run(model, ids, follow, LOCAL[name], {"chunk": chunk, "own_chunk": "stored"}) for chunk in (1, 7)
    )
    for a, b in zip(*(outcome.decode.states[0].cache.parts for outcome in (one, many)), strict=True):  # type: ignore
        x, y = a.stream.decode(), b.stream.decode()
        assert ((x - y).abs() <= 1e-3 * x.abs().max()).double().mean() >= 0.995
    exact = exact_logits(model, ids + follow[:-1]).log_softmax(-1)
    first, second = (kl_divergence(exact, logits.log_softmax(-1)[None]).mean().item() for logits in (of_one, of_many))
    assert second == pytest.approx(first, rel=0.02)


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
    prefill = Prefill(model, ids)
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
        torch.testing.assert_close(alone.logits()[1][0], together.logits()[1][index], rtol=1e-3, atol=1e-3)
        assert alone.decode.states[0].token_ids == together.decode.states[index].token_ids


def test_a_lane_whose_first_token_differs_writes_its_own_text_from_there() -> None:
    model, ids = tiny("llama"), prompt_ids(90, seed=3)
    lane = {"method": "per_token", "knobs": {"bits": 1, "group_size": 8, "residual_length": 0}}
    outcome = run_engine(model, ids, [Lane(label="one", prefill={"chunk": 16}, **lane)], 12, ignore_eos=True)
    state = outcome.decode.states[0]
    assert state.first_divergence == 0, "this prompt no longer tells them apart"
    assert len(state.token_ids) == len(outcome.decode.token_ids) == 12
    assert len(outcome.logits()[0]) == 11


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
