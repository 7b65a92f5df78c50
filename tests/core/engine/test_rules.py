"""Lanes of several rules through the engine: their stores are those of the single lanes, and equal streams are one."""

from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvq_core.codecs.stream import Stream
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.decode import Decode
from kvq_core.engine.fit import MethodFit
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.engine.stored_bytes import measure
from kvq_core.errors import SpecError
from kvq_core.methods import methods
from kvq_core.models import LoadedModel
from kvq_core.spec import ComparisonSpec, Lane, Rule
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import CONFIGS, prompt_ids, tiny

SMALL = {"group_size": 8, "residual_length": 8}
FORMATS = {
    "kivi": {"method": "kivi", "knobs": SMALL},
    "kivi4": {"method": "kivi", "knobs": {**SMALL, "bits": 4}},
    "token": {"method": "per_token", "knobs": {"group_size": 16, "residual_length": 0}},
    "squat": {"method": "squat", "knobs": {**SMALL, "block_size": 8, "rope": "pre"}},
    "qaq": {"method": "qaq", "knobs": {}},
    "innerq": {"method": "innerq", "knobs": {"group_size": 8}, "sink_tokens": 4, "recent_tokens": 8},
    "svdq": {"method": "svdq", "knobs": {"target_bits": 2, "value_bits": 4}},
}


def prefilled(model: LoadedModel, count: int = 70) -> SharedPrefill:
    prefill = SharedPrefill(model, prompt_ids(count))
    list(prefill.run())
    return prefill


def cached(lane: Lane, model: LoadedModel, groups: list[LayerGroup]) -> LaneCache:
    return LaneCache.of_prompt(lane, groups, model.rope(256), model.ref)


def store(cache: LaneCache, tensor: str) -> dict[int, list[torch.Tensor]]:
    """What is held of a tensor by layer, as bytes: sinks, each block's tensors that are by layer, the window."""
    kind, found = tensor.removesuffix("s"), {}
    for part in cache.of(kind):
        for at, layer in enumerate(part.layers.tolist()):
            held = [part.stream.sinks[at], part.stream.recent[at]]
            held += [block.tensors[name][at] for block in part.stream.blocks for name in sorted(block.tensors)]
            assert part.stream.blocks == [] or len(held) > 2
            found[layer] = held
    return found


def same(one: dict[int, list[torch.Tensor]], other: dict[int, list[torch.Tensor]]) -> None:
    assert one.keys() == other.keys()
    for layer, held in one.items():
        assert len(held) == len(other[layer])
        assert all(torch.equal(a, b) for a, b in zip(held, other[layer], strict=True)), layer


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "qaq"])  # QAQ's pools hold all layers as one
def test_two_rules_of_one_method_are_that_methods_lane(name: str) -> None:
    model = tiny("llama")
    groups, told = prefilled(model).groups, FORMATS[name]
    whole = cached(Lane(**told), model, groups)
    ruled = cached(Lane(rules=(Rule(**told, tensors="keys"), Rule(**told, tensors="values"))), model, groups)
    for tensor in ("keys", "values"):
        same(store(whole, tensor), store(ruled, tensor))
    alone, both = measure(whole, model.shape), measure(ruled, model.shape)
    assert both.model_copy(update={"by_rule": []}) == alone and len(both.by_rule) == 2
    assert sum(sum(rule.bytes_by_part.values()) for rule in both.by_rule) == sum(alone.bytes_by_part.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_two_rules_of_one_method_read_as_that_methods_lane(name: str) -> None:
    """Bit by bit, in a batch of the same size: another one would round the model's products otherwise."""
    told, model, ids = FORMATS[name], tiny("qwen2"), prompt_ids(61)
    ruled = Lane(label="x", rules=(Rule(**told, tensors="keys"), Rule(**told, tensors="values")))
    one, two = (run_engine(model, ids, [x], 20, audit=True, ignore_eos=True) for x in (Lane(label="x", **told), ruled))
    assert one.state("x").error is None and two.state("x").error is None
    assert torch.equal(one.logits()[1], two.logits()[1])


@pytest.mark.parametrize(
    ("keys", "values"), [("squat", "kivi4"), ("token", "svdq"), ("svdq", "innerq"), ("qaq", "kivi")]
)
def test_two_methods_store_what_the_two_single_lanes_store(keys: str, values: str) -> None:
    model = tiny("llama")
    groups = prefilled(model).groups
    mixed = Lane(rules=(Rule(**FORMATS[keys], tensors="keys"), Rule(**FORMATS[values], tensors="values")))
    found = cached(mixed, model, groups)
    singles = {"keys": Lane(**FORMATS[keys], tensors="keys"), "values": Lane(**FORMATS[values], tensors="values")}
    for tensor, lane in singles.items():
        own, kind = cached(lane, model, groups), tensor.removesuffix("s")
        (a,), (b,) = found.of(kind), own.of(kind)
        assert torch.equal(a.stream.decode(), b.stream.decode()) and a.stream.nbytes() == b.stream.nbytes()
        assert [sorted(x.tensors) for x in a.stream.blocks] == [sorted(x.tensors) for x in b.stream.blocks]
        for one, other in zip(a.stream.blocks, b.stream.blocks, strict=True):
            assert all(torch.equal(one.tensors[part], other.tensors[part]) for part in one.tensors)
        assert set(own.selects) == (set(found.selects) if tensor == "keys" else set())


def test_each_method_and_layers_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, fit = [], MethodFit.of.__func__
    monkeypatch.setattr(MethodFit, "of", classmethod(lambda cls, *given: fits.append(given[:3]) or fit(cls, *given)))
    model = tiny("llama")
    rules = (
        Rule(**FORMATS["token"], tensors="keys", layers=(1,)),
        Rule(**FORMATS["kivi"]),
    )
    cache = cached(Lane(rules=rules), model, prefilled(model).groups)
    # KIVI's keys leave layer 1 out, its values do not: two fits, because a method sees the layers it stores
    assert [(method.name, layers) for method, _, layers in fits] == [
        ("per_token", (1,)),
        ("kivi", (0, 2)),
        ("kivi", (0, 1, 2)),
    ]
    assert {(part.kind, tuple(part.layers.tolist()), part.rules) for part in cache.parts} == {
        ("key", (1,), (0,)),
        ("key", (0, 2), (1,)),
        ("value", (0, 1, 2), (1,)),
    }


@pytest.mark.parametrize(("name", "said"), [("qaq", "tolerance"), ("svdq", "schedule chosen")])
def test_a_method_over_layers_decides_over_its_own(name: str, said: str) -> None:
    model = tiny("llama")
    groups = prefilled(model).groups
    rules = (Rule(method="fp16", layers=(0,)), Rule(**FORMATS[name], tensors="keys"), Rule(**FORMATS["kivi"]))
    cache = cached(Lane(rules=rules), model, groups)
    own = [note for note in cache.fit_notes if note.startswith(f"{rules[1].named()}: ")]
    assert f"{rules[1].named()}: decided over layers 1-2" in own and any(said in note for note in own)
    alone = cached(Lane(**FORMATS[name], tensors="keys", layers=(1, 2)), model, groups)
    assert torch.equal(_keys(cache, (1, 2)), _keys(alone, (1, 2)))
    assert own == [f"{rules[1].named()}: {note}" for note in alone.fit_notes]


def _keys(cache: LaneCache, layers: tuple[int, ...]) -> torch.Tensor:
    (part,) = (part for part in cache.of("key") if tuple(part.layers.tolist()) == layers)
    return part.stream.decode()


def grid(keys: list[str], values: list[str]) -> list[Lane]:
    return [
        Lane(label=f"{k} {v}", rules=(Rule(**FORMATS[k], tensors="keys"), Rule(**FORMATS[v], tensors="values")))
        for k, v in product(keys, values)
    ]


def test_a_grid_of_four_by_four_formats_is_eight_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, of_prompt = Counter(), Stream.of_prompt.__func__

    def counting(cls: type[Stream], x: torch.Tensor, window: object, codec: object, *rest: object) -> Stream:
        encoded["packed" if codec is not None else "fp16"] += 1
        return of_prompt(cls, x, window, codec, *rest)

    monkeypatch.setattr(Stream, "of_prompt", classmethod(counting))
    model, names = tiny("llama"), ["kivi", "kivi4", "token", "squat"]
    prefill, lanes = prefilled(model), grid(names, names)
    decode = Decode(model, prefill, ComparisonSpec(prompt="-"), [*lanes, Lane(label="floor", method="fp16")])
    list(decode.encode())
    assert encoded == {"packed": 8, "fp16": 2} and all(state.error is None for state in decode.states)
    for state in decode.states[:-1]:
        assert state.cache is not None
        assert measure(state.cache, model.shape) == measure(cached(state.lane, model, prefill.groups), model.shape)
    first, second = (state.cache for state in decode.states[:2])
    assert first is not None and second is not None
    shared = [a.stream.blocks[0] is b.stream.blocks[0] for a, b in zip(first.parts, second.parts, strict=True)]
    assert shared == [True, False]


@pytest.mark.parametrize("name", ["kivi", "per_token", "squat", "innerq"])
def test_a_grid_of_widths_of_one_method_is_eight_encodings_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the short form: keys of one width are stored alike whatever the values' width is."""
    encoded, of_prompt = Counter(), Stream.of_prompt.__func__

    def counting(cls: type[Stream], x: torch.Tensor, window: object, codec: object, *rest: object) -> Stream:
        encoded["packed" if codec is not None else "fp16"] += 1
        return of_prompt(cls, x, window, codec, *rest)

    model, own = tiny("llama"), {"innerq": {"group_size": 8}, "squat": {**SMALL, "block_size": 8}}
    knobs, prefill = own.get(name, {"group_size": 8, "residual_length": 8}), prefilled(model)
    lanes = [
        Lane(label=f"K{k} V{v}", method=name, knobs={**knobs, "key_bits": k, "value_bits": v})
        for k, v in product((1, 2, 3, 4), repeat=2)
    ]
    alone = [cached(lane, model, prefill.groups) for lane in lanes]
    monkeypatch.setattr(Stream, "of_prompt", classmethod(counting))
    decode = Decode(model, prefill, ComparisonSpec(prompt="-"), lanes)
    list(decode.encode())
    assert encoded == {"packed": 8}
    for state, own_cache in zip(decode.states, alone, strict=True):
        assert state.cache is not None
        assert measure(state.cache, model.shape) == measure(own_cache, model.shape)
        for tensor in ("keys", "values"):
            same(store(state.cache, tensor), store(own_cache, tensor))


@pytest.mark.slow
def test_a_cell_of_a_grid_is_the_lane_alone() -> None:
    """Steps that shared streams take are their own: each cell decodes as it does with nothing to share."""
    model, ids = tiny("llama"), prompt_ids(53)
    together = run_engine(model, ids, grid(["kivi", "token"], ["kivi", "qaq"]), 24, audit=True, ignore_eos=True)
    for index, state in enumerate(together.decode.states):
        alone = run_engine(model, ids, [state.lane], 24, audit=True, ignore_eos=True)
        torch.testing.assert_close(together.logits()[1][index], alone.logits()[1][0], rtol=1e-3, atol=1e-3)
        cell, own = state.cache, alone.decode.states[0].cache
        assert cell is not None and own is not None
        assert measure(cell, model.shape).bytes_by_part.keys() == measure(own, model.shape).bytes_by_part.keys()
        assert measure(cell, model.shape).kv_ratio == pytest.approx(measure(own, model.shape).kv_ratio, rel=2e-3)


def test_what_fails_fails_in_every_lane_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, prompt: object) -> None:
        raise SpecError("no such thing")

    monkeypatch.setattr(methods()["squat"], "fit", broken)
    lanes = grid(["squat", "kivi"], ["kivi", "token"])
    outcome = run_engine(tiny("llama"), prompt_ids(40), lanes, 4, ignore_eos=True)
    assert [state.error for state in outcome.decode.states] == ["no such thing", "no such thing", None, None]


@st.composite
def lanes_of(draw: st.DrawFn) -> Lane:
    layers = st.one_of(st.just("all"), st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True).map(tuple))
    rules = [
        Rule(
            **FORMATS[draw(st.sampled_from([*FORMATS]))],
            tensors=draw(st.sampled_from(["both", "keys", "values"])),
            layers=draw(layers),
        )
        for _ in range(draw(st.integers(2, 4)))
    ]
    try:
        return Lane(rules=tuple(rules))
    except SpecError:
        return Lane(rules=tuple(rules[:1]))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(lane=lanes_of(), name=st.sampled_from([*CONFIGS]), count=st.integers(2, 80))
def test_any_rules_store_what_attention_reads(lane: Lane, name: str, count: int) -> None:
    """On every architecture: what is stored is what is read, every layer's tensors once, bytes by rule add up."""
    model = tiny(name)
    if lane.why_not(model.shape):
        return
    outcome = run_engine(model, prompt_ids(count), [lane], 9, audit=True, ignore_eos=True)
    (state,) = outcome.decode.states
    assert state.error is None and state.cache is not None
    for kind in ("key", "value"):
        assert sorted(layer for part in state.cache.of(kind) for layer in part.layers.tolist()) == [0, 1, 2]
    found = {(a.number, a.tensor.removesuffix("s"), a.layers) for a in lane.plan(model.shape)}
    parts = {(n, p.kind, tuple(p.layers.tolist())) for p in state.cache.parts for n in p.rules}
    assert parts == found
    memory = measure(state.cache, model.shape)
    ruled = sum(size for rule in memory.by_rule for size in rule.bytes_by_part.values())
    left = sum(sum(p.stream.nbytes().values()) for p in state.cache.parts if not p.rules)
    if memory.by_rule:
        host = memory.bytes_by_part.get("host_copy", 0)
        assert ruled + left == sum(memory.bytes_by_part.values()) - host
