"""Large models on a GPU, by formula and on tensors without memory: what a run holds, in the model's own dtype."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import Precision, SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.script import Script
from kvq_core.models import LoadedModel
from kvq_core.models.shape import rope_of
from kvq_core.pipeline import footprint, state
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.state import Run
from kvq_core.spec import ComparisonSpec, Lane, parse_spec
from tests.support.tiny_models import prompt_ids, tiny

CARD = 24 * 2**30
PROMPT, NEW = 8128, 64
KINDS = ["kivi", "innerq", "per_token", "per_channel", "q8_0", "q4_0", "fp8", "turboquant"]
ROWS = [
    {"label": "kivi", "method": "kivi", "knobs": {"group_size": 8, "residual_length": 8}},
    {
        "label": "pre",
        "method": "squat",
        "knobs": {"rope": "pre", "group_size": 8, "residual_length": 8, "block_size": 8},
    },
    {"label": "qaq", "method": "qaq"},
    {"label": "chosen", "method": "kivi", "knobs": {"group_size": 8, "residual_length": 8}, "select": {"by": "h2o"}},
    {"label": "raw", "method": "kivi", "knobs": {"group_size": 8, "residual_length": 8}, "prefill": {"chunk": 32}},
    {"label": "stored", "method": "per_token", "recent_tokens": 8, "prefill": {"chunk": 32, "own_chunk": "stored"}},
]


def spec_of(lanes: list[dict], **more: object) -> ComparisonSpec:
    return parse_spec({"prompt": "p", "max_new_tokens": NEW, "ignore_eos": True, "lanes": lanes, **more})


@pytest.fixture(scope="module")
def eight_billion() -> LoadedModel:
    """The shape of Llama 3.1 8B in bfloat16, on tensors without memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    return replace(tiny("llama"), id="8b", title="8B", model=model, weights_hash="0", model_hash="0")


@pytest.mark.slow
def test_eight_lanes_of_an_8b_fit_on_24_gb_in_batches(eight_billion: LoadedModel, monkeypatch) -> None:
    """By formula, and of what is allocated: the prompt's tensors, the packed stores, the working copies."""
    spec = spec_of([{"method": name} for name in KINDS], capture={"detail": "off"})
    ids = [0] * PROMPT
    weights = sum(p.numel() * p.element_size() for p in eight_billion.model.parameters())
    assert weights == pytest.approx(16.06e9, rel=1e-3)
    monkeypatch.setattr(footprint, "room_for", lambda needed, device: CARD - weights)
    size = footprint.batch_size(eight_billion, spec, Script.of_prompt(ids), NEW)
    formula = partial(footprint.run_bytes, eight_billion, spec, Script.of_prompt(ids), NEW)
    assert size == 2 and formula(size) <= CARD - weights
    held = footprint.held_of(eight_billion, spec, PROMPT, captured=False)
    assert held == Precision(torch.bfloat16, queries=False, layers=8)
    prefill = SharedPrefill(eight_billion, ids, held=held)
    rope = rope_of(eight_billion.model, PROMPT + NEW)
    lanes = [Lane(method="fp16"), *spec.lanes[:size]]
    caches = [LaneCache.of_prompt(lane, prefill.groups, rope) for lane in lanes]
    rows = Rows(prefill.groups, caches, rope, PROMPT, PROMPT + NEW)
    tensors = [x for group in prefill.groups for x in (group.keys, group.values, group.queries)]
    tensors += [x for c in rows.copies for x in (c.prefix_keys, c.prefix_values, c.tail_keys, c.tail_values)]
    assert {x.dtype for x in tensors} == {torch.bfloat16}
    stored = sum(sum(part.stream.nbytes().values()) for cache in caches for part in cache.parts)
    allocated = stored + sum(x.numel() * x.element_size() for x in tensors)
    assert 0.5 * formula(size) < allocated < formula(size)


def test_what_is_held_in_the_models_dtype_answers_as_what_is_held_in_float32(smollm, monkeypatch) -> None:
    """Rounding what attention reads to bfloat16 is no larger than the other roundings of such a model."""
    model = tiny("llama", tokenizer=smollm.tokenizer)
    model = replace(model, model=deepcopy(model.model).to(torch.bfloat16))
    spec, ids = spec_of(ROWS, floors="both").model_copy(update={"max_new_tokens": 16}), prompt_ids(96)

    def kld(held: Precision) -> list[float]:
        monkeypatch.setattr(state, "held_of", lambda *_, **__: held)
        run = Run("0" * 16, model, spec, Script.of_prompt(ids))
        for _ in run.stages():
            pass
        record, arrays = assemble(run)
        assert [lane.error for lane in record.lanes] == [None] * len(ROWS)
        assert {x.dtype for x in run.prefill.groups[0].__dict__.values() if isinstance(x, torch.Tensor)} >= {held.dtype}
        assert any("channel_error" in name for name in arrays)
        return [lane.metrics.kld_mean for lane in record.lanes]

    as_computed, in_float32 = kld(Precision(torch.bfloat16, layers=2)), kld(Precision())
    assert as_computed == pytest.approx(in_float32, rel=0.5, abs=2e-3)
