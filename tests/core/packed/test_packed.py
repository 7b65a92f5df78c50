"""Packed execution: the cache in packed form only, against the lock-step engine and in measurements."""

import pytest
import torch
from kvq_kernels import KernelError, Store
from transformers import DynamicCache

import kvq_core
from kvq_core.cli.measure import measured_table
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup
from kvq_core.errors import MethodError, ModelError, SpecError
from kvq_core.methods import methods
from kvq_core.models.rope import Rope
from kvq_core.packed import MeasureRequest, measure
from kvq_core.packed.layer import PackedLayer, PackingPlan
from kvq_core.packed.measurement import largest
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

LANES = {
    "kivi": {"bits": 2},
    "squat": {"bits": 2, "subspace_rank": 5},
    "innerq": {"mode": "hybrid"},
    "per_token": {"bits": 4},
}
INNERQ_MODES = ("symmetric", "asymmetric", "hybrid_prefill")


def lane(name, **knobs):
    return Lane(label=name, method=name, knobs={**LANES.get(name, {}), **knobs})


def packed_layer(asked):
    return PackedLayer(PackingPlan(asked.build(), asked.windows()))


def layer_tensors(tokens, layers=1, query_heads=4, kv_heads=2, dim=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(layers, kv_heads, tokens, dim, generator=generator) for _ in "kv")
    keys[..., 3] += 4
    return torch.randn(layers, query_heads, tokens, dim, generator=generator), keys, values


CASES = [(name, {}) for name in LANES] + [("innerq", {"mode": mode}) for mode in INNERQ_MODES]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "knobs"), CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v.values()))
def test_a_packed_layer_holds_what_the_lane_holds(name, knobs):
    """Prompt and decoded tokens alike: the store decodes to the lane's working copy, value for value."""
    queries, keys, values = layer_tensors(230)
    asked = lane(name, **knobs)
    group = LayerGroup([0], torch.device("cpu"), keys[..., :150, :], values[..., :150, :], queries[..., :150, :])
    one = torch.ones(230, 64)
    rope = Rope.of(one, one * 0, 64)
    cache = LaneCache.of_prompt(asked, [group], rope)
    layer = packed_layer(asked)
    layer.fill(queries[..., :150, :], keys[..., :150, :], values[..., :150, :])
    for position in range(150, 230):
        for part, store, x in zip(cache.parts, layer.stores, (keys, values), strict=True):
            fresh = x[..., position : position + 1, :]
            cache.append(part, fresh, position)
            cache.flush(part)
            store.append(fresh)
            store.pack_due()
    for part, store in zip(cache.parts, layer.stores, strict=True):
        assert torch.equal(part.stream.decode(), store.dense())
        assert store.packed_tokens == part.stream.packed_tokens > 0
        held = sum(part.stream.nbytes().values())
        mask = part.stream.blocks and sum(b.nbytes.get("mask", 0) for b in part.stream.blocks)
        assert store.nbytes == held - mask  # the mask of hybrid groups rides in the sign of the scales


@pytest.mark.slow
def test_several_tokens_at_once_enter_as_one_by_one():
    _, keys, _ = layer_tensors(300)
    for name in LANES:
        asked = lane(name)
        stores = []
        for step in (1, 37):
            layer = packed_layer(asked)
            layer.fill(
                torch.randn(1, 4, 100, 64, generator=torch.Generator().manual_seed(1)), *[keys[..., :100, :]] * 2
            )
            for start in range(100, 300, step):
                for store in layer.stores:
                    store.extend(keys[..., start : start + step, :])
            stores.append(layer.stores)
        for one, many in zip(*stores, strict=True):
            assert one.tokens == many.tokens == 300 and one.packed_tokens == many.packed_tokens
            assert torch.equal(one.dense(), many.dense())


def test_what_a_packed_cache_cannot_do_is_refused_in_one_line():
    model, ids = tiny("llama"), torch.tensor([prompt_ids(20)])
    held = model.model.config._attn_implementation
    try:
        cache = kvq_core.packed_cache(model.model, lane("kivi").build())
        model.model(ids, past_key_values=cache)
        for act, words in (
            (lambda: cache.crop(-1), "can be cut back by the tokens of its last call"),
            (lambda: model.model(ids, past_key_values=cache, output_attentions=True), "leave out output_attentions"),
            (lambda: cache.batch_repeat_interleave(2), "cannot be repeated"),
            (lambda: cache.batch_select_indices(torch.tensor([0])), "cannot be chosen"),
        ):
            with pytest.raises(ModelError, match=words):
                act()
    finally:
        model.model.set_attn_implementation(held)


def test_the_packed_attention_is_sdpa_for_every_other_cache():
    model, ids = tiny("llama"), prompt_ids(40)
    held = model.model.config._attn_implementation
    prompt = torch.tensor([ids, ids])
    mask = torch.ones_like(prompt)
    mask[1, :7] = 0  # left padding
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 8, "eos_token_id": None}
    try:
        model.model.set_attn_implementation("sdpa")
        expected = model.model.generate(prompt, past_key_values=DynamicCache(), **options)
        kvq_core.packed_cache(model.model, lane("kivi").build())
        assert torch.equal(model.model.generate(prompt, past_key_values=DynamicCache(), **options), expected)
    finally:
        model.model.set_attn_implementation(held)


def test_what_cannot_be_packed_is_refused_with_its_reason():
    model = tiny("llama")
    for name, knobs, words in (
        ("fp16", {}, "quantizes nothing"),
        ("kivi", {"group_size": 64, "residual_length": 64}, "does not divide head_dim"),
    ):
        with pytest.raises(MethodError, match=words):
            kvq_core.packed_cache(model.model, methods()[name](**knobs))
    with pytest.raises(MethodError, match="multiples of 32"):
        measure(model, lane("innerq", group_size=16), prompt_ids(160), MeasureRequest(new_tokens=3))
    with pytest.raises(MethodError, match="layer 9 does not exist"):
        measure(model, Lane(label="late", method="kivi", layers=(9,)), prompt_ids(60), MeasureRequest(new_tokens=3))
    with pytest.raises(ModelError, match="Triton cannot run here"):
        measure(model, lane("kivi"), prompt_ids(60), MeasureRequest(new_tokens=3, path="triton"))
    with pytest.raises(SpecError, match="exceed the 1024"):
        measure(model, None, prompt_ids(60), MeasureRequest(tokens=1020, new_tokens=8))
    with pytest.raises(ModelError, match="GPUs only"):
        measure(model, None, prompt_ids(60), MeasureRequest(limits=("context",)))


def test_measure_counts_the_bytes_of_the_cache_that_ran():
    model, ids = tiny("llama"), prompt_ids(100)
    request = MeasureRequest(tokens=300, new_tokens=6, batch=2)
    whole = measure(model, None, ids, request)
    packed = measure(model, lane("kivi"), ids, request)
    held = 305  # the last token chosen is not in the cache
    assert whole.cache_bytes == 2 * held * 2 * 2 * 32 * 3 * 4  # rows, tokens, K and V, heads, channels, layers, bytes
    keys_packed, values_packed = held // 32 * 32, held - 32
    fp16 = 2 * ((held - keys_packed) + (held - values_packed))
    bits = 2 + 32 / 32
    assert packed.cache_bytes == 2 * 2 * 32 * 3 * (fp16 + (keys_packed + values_packed) * bits / 8)
    assert packed.allocated_bytes >= packed.cache_bytes
    assert packed.paths["decode_attention"] == ["torch"] and packed.peak_decode_bytes is None
    assert packed.token_ids[0] == whole.token_ids[0] and len(packed.token_ids) == 6 and packed.ms_per_token > 0
    alone = run_engine(model, (ids * 3)[:300], [lane("kivi")], 6, ignore_eos=True).state("kivi")
    assert packed.token_ids == alone.token_ids
    assert "plain-torch reference" in measured_table([whole, packed], {"fp16": "no packed execution"})


def test_the_largest_size_that_fits_is_found():
    for limit in (1, 5, 1024, 37_123):
        found = largest(lambda size, limit=limit: size <= limit, 1, 1 << 22)
        assert found <= limit and limit - found <= max(1, limit // 16)
    assert largest(lambda size: False, 1024, 1 << 22) == 0
    assert largest(lambda size: True, 1024, 1 << 14) == 1 << 14


def test_a_store_refuses_what_does_not_fit():
    _, keys, _ = layer_tensors(40)
    layer = packed_layer(lane("kivi"))
    layer.fill(None, keys, keys)
    with pytest.raises(KernelError, match="do not fit the window"):
        layer.stores[1].append(keys)
    with pytest.raises(KernelError, match="empty store"):
        layer.stores[0].fill(keys)
    assert isinstance(layer.stores[0], Store)
