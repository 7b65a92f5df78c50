"""`generate` with a packed cache: batches, padding, more text, chunks, and the engine's free row."""

import re
from pathlib import Path

import pytest
import torch

import kvq_core
from benchmarks.architectures import tiny_of
from kvq_core.errors import MethodError, ModelError
from kvq_core.spec import Lane
from tests.core.packed.test_packed import lane
from tests.support.campaigns import whole
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kivi", "squat", "innerq"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_generate_equals_the_free_row_of_the_engine(architecture, name):
    model, ids = tiny(architecture), prompt_ids(180)
    state = run_engine(model, ids, [lane(name)], 24, ignore_eos=True).state(name)
    assert state.error is None
    assert generated(model, ids, lane(name).build(), 24) == state.token_ids


def generated(loaded, ids, method, new, **options):
    held = loaded.model.config._attn_implementation
    try:
        cache = kvq_core.packed_cache(loaded, method, **options)
        prompt = torch.tensor([ids])
        out = loaded.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            past_key_values=cache,
            do_sample=False,
            max_new_tokens=new,
            eos_token_id=None,
        )
        assert cache.get_seq_length() == len(ids) + new - 1
        return out[0, len(ids) :].tolist()
    finally:
        loaded.model.set_attn_implementation(held)


@pytest.mark.slow
def test_generate_takes_a_batch_and_goes_on_with_more_text():
    model, method = tiny("llama"), lane("innerq", sink_tokens=4, recent_tokens=8).build()
    prompts = [prompt_ids(120, seed) for seed in (1, 2)]
    alone = [generated(model, ids, method, 12) for ids in prompts]
    held = model.model.config._attn_implementation
    try:
        cache = kvq_core.packed_cache(model.model, method)
        options = {"do_sample": False, "eos_token_id": None, "past_key_values": cache}
        both = torch.tensor(prompts)
        out = model.model.generate(both, attention_mask=torch.ones_like(both), max_new_tokens=12, **options)
        assert out[:, 120:].tolist() == alone
        more = torch.cat([out, torch.tensor([prompt_ids(9, 3)] * 2)], 1)  # a second turn of several tokens
        on = model.model.generate(more, attention_mask=torch.ones_like(more), max_new_tokens=5, **options)
        assert on.shape[1] == more.shape[1] + 5 and cache.get_seq_length() == on.shape[1] - 1
        layer = cache.layers[0].layer
        assert layer.stores[1].packed_tokens == layer.stores[1].layout.due(cache.get_seq_length() - 4)
    finally:
        model.model.set_attn_implementation(held)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kivi", "innerq"])
def test_prompts_of_different_length_answer_as_each_alone(name):
    """Padded on the left, and none of the padding is stored."""
    knobs = {"residual_length": 32} if name == "kivi" else {"sink_tokens": 4, "recent_tokens": 8}
    model, method = tiny("llama"), lane(name, **knobs).build()
    prompts = [prompt_ids(length, seed) for seed, length in enumerate((90, 41, 3))]
    alone = [generated(model, ids, method, 12) for ids in prompts]
    held = model.model.config._attn_implementation
    padded = torch.tensor([[0] * (90 - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (90 - len(ids)) + [1] * len(ids) for ids in prompts])
    try:
        caches = [kvq_core.packed_cache(model.model, method) for _ in range(4)]
        options = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 12}
        out = model.model.generate(padded, attention_mask=mask, past_key_values=caches[0], **options)
        assert out[:, 90:].tolist() == alone and caches[0].get_seq_length() == 101
        for ids, cache in zip(prompts, caches[1:], strict=True):
            one = torch.tensor([ids])
            model.model.generate(one, attention_mask=torch.ones_like(one), past_key_values=cache, **options)
        assert caches[0].nbytes == sum(cache.nbytes for cache in caches[1:]) > 0
    finally:
        model.model.set_attn_implementation(held)


def test_a_mask_that_hides_more_than_padding_is_refused():
    model, method = tiny("llama"), lane("kivi").build()
    held = model.model.config._attn_implementation
    ids, mask = torch.tensor([prompt_ids(20)] * 2), torch.ones(2, 20, dtype=torch.long)
    try:
        cache, other = (kvq_core.packed_cache(model.model, method) for _ in range(2))
        for hidden in (slice(5, 7), slice(17, 20)):
            with pytest.raises(ModelError, match="padded on the left"):
                model.model(ids, attention_mask=mask.index_fill(1, torch.arange(20)[hidden], 0), past_key_values=cache)
        model.model(ids, past_key_values=other)
        late = torch.ones(2, 21, dtype=torch.long)
        late[1, :4] = 0
        with pytest.raises(ModelError, match="nothing that has entered"):
            model.model(ids[:, :1], attention_mask=late, past_key_values=other)
        spanning = kvq_core.packed_cache(model.model, kvq_core.make("qaq"))
        with pytest.raises(MethodError, match="batch of 1"):
            model.model(ids, attention_mask=late[:, :20], past_key_values=spanning)
    finally:
        model.model.set_attn_implementation(held)


@pytest.mark.slow
def test_the_first_chunk_of_a_chunked_prefill_is_the_prompt():
    """The method is fitted on it, and later chunks enter as later text does."""
    model, method, ids = tiny("llama"), lane("kivi").build(), torch.tensor([prompt_ids(150)])
    held = model.model.config._attn_implementation
    try:
        whole, turns = (kvq_core.packed_cache(model.model, method) for _ in range(2))
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None}
        model.model.generate(ids, past_key_values=whole, prefill_chunk_size=64, max_new_tokens=1, **options)
        with torch.no_grad():
            for chunk in ids.split(64, 1):
                model.model(chunk, past_key_values=turns)
        for one, other in zip(whole.layers, turns.layers, strict=True):
            for a, b in zip(one.layer.stores, other.layer.stores, strict=True):
                assert a.tokens == 150 and torch.equal(a.dense(), b.dense())
    finally:
        model.model.set_attn_implementation(held)


def test_the_documented_example_runs_and_answers_as_the_engine_does(smollm):
    """The text of docs/gpu.md itself, on the bundled model, with fewer tokens."""
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "packed_cache" in block]
    assert "max_new_tokens=64" in example and "kvq_core.models.load" in example
    held = smollm.model.config._attn_implementation
    names: dict[str, object] = {}
    try:
        exec(example.replace("max_new_tokens=64", "max_new_tokens=12"), names)  # noqa: S102
    finally:
        smollm.model.set_attn_implementation(held)
    ids, method = names["ids"][0].tolist(), kvq_core.make("innerq", bits=2)
    asked = Lane(label="innerq", method="innerq", knobs=method.model_dump())
    state = run_engine(smollm, ids, [asked], 12).state("innerq")
    assert names["text"][0, len(ids) :].tolist() == state.token_ids
    assert names["cache"].layers[0].layer.stores[0].tokens == names["text"].shape[1] - 1


@pytest.mark.long("combine")
def test_the_default_models_packed_text_is_the_free_rows(smollm):
    """Past the windows: a prompt long enough that most of it is packed, on the real model."""
    text = "Packed caches hold codes, not numbers; attention reads the codes. " * 12
    ids = smollm.render(text, None, True)
    lanes = [lane(name) for name in (("kivi", "squat", "innerq") if whole() else ("squat",))]
    outcome = run_engine(smollm, ids, lanes, 10, ignore_eos=True)
    for asked in lanes:
        assert generated(smollm, ids, asked.build(), 10) == outcome.state(asked.label).token_ids, asked.label


WINDOWED = ("gemma2", "gemma3_text", "gpt_oss", "llama4_text", "mistral")
KIVI = {"group_size": 8, "residual_length": 16}


@pytest.mark.slow
@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize("kind", WINDOWED)
def test_generate_reads_windows_as_the_engine_does(kind, sliding):
    """Soft-caps, sinks, chunks and a model of windows alone; prompts longer than a window."""
    model, ids = tiny_of(kind), prompt_ids(60)
    asked = Lane(label="one", method="kivi", knobs=KIVI, sliding=sliding)
    if reason := asked.why_not(model.shape):
        with pytest.raises(MethodError, match="attends to a window"):
            kvq_core.packed_cache(model, asked.build(), sliding=sliding)
        assert kind == "mistral" and "attends to a window" in reason
        return
    state = run_engine(model, ids, [asked], 24, ignore_eos=True).state("one")
    assert generated(model, ids, asked.build(), 24, sliding=sliding) == state.token_ids


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss"])
def test_padded_prompts_beyond_a_window_answer_as_each_alone(kind):
    model, method = tiny_of(kind), kvq_core.make("kivi", **KIVI)
    prompts = [prompt_ids(length, seed) for seed, length in enumerate((60, 40, 5))]
    alone = [generated(model, ids, method, 10, sliding=True) for ids in prompts]
    held = model.model.config._attn_implementation
    padded = torch.tensor([[0] * (60 - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (60 - len(ids)) + [1] * len(ids) for ids in prompts])
    try:
        cache = kvq_core.packed_cache(model, method, sliding=True)
        options = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 10, "past_key_values": cache}
        assert model.model.generate(padded, attention_mask=mask, **options)[:, 60:].tolist() == alone
    finally:
        model.model.set_attn_implementation(held)


@pytest.mark.parametrize("kind", ["bamba", "falcon_h1", "gemma3n_text"])
def test_models_that_keep_more_than_keys_and_values_are_refused(kind):
    with pytest.raises(ModelError, match="do not all keep keys and values, and nothing else"):
        kvq_core.packed_cache(tiny_of(kind), kvq_core.make("kivi", **KIVI))
