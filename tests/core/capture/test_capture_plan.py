"""What captures keep is decided before a run, and fits into what a stored run holds."""

from dataclasses import replace

import pytest
import torch

from kvq_core.capture.plan import MOST_BYTES, fit_plan, plan_of
from kvq_core.capture.scores import MAP_BYTES, Extent
from kvq_core.errors import SpecError
from kvq_core.methods import make
from kvq_core.methods.base import ModelShape
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.estimate import estimate
from kvq_core.pipeline.examples import packaged_store
from kvq_core.record.events import Finished, Prefill
from kvq_core.record.files import MAX_ARRAY_BYTES
from kvq_core.spec import Capture, ComparisonSpec, Lane, parse_spec
from tests.support.tiny_models import tiny

SMALL = Extent(layers=30, query_heads=9, head_dim=64, lanes=9, steps=63, tokens=2000)
LARGE = Extent(layers=32, query_heads=32, head_dim=128, lanes=9, steps=64, tokens=8000)
DEEP = Capture(detail="deep")


def test_a_run_of_the_default_model_keeps_everything() -> None:
    found = fit_plan(SMALL, 3, DEEP, usage=10**6)
    assert found.layers == found.distributions == list(range(30)) and found.heads == list(range(9))
    assert found.steps == 63 and found.reduced == () and found.bytes < MOST_BYTES < MAX_ARRAY_BYTES


def test_a_large_model_keeps_fewer_maps_and_then_looks_less_often() -> None:
    found = fit_plan(LARGE, 8, Capture(), usage=10**6)
    assert found.layers[0] == 0 and found.layers[-1] == 31 and 4 <= len(found.layers) < 32 and found.steps == 16
    assert 8 * len(found.layers) * 32 * 64 * 256 <= MAP_BYTES and found.bytes <= MOST_BYTES
    assert found.reduced == (f"score maps and attention rows of {len(found.layers)} of 32 layers",)
    deep = fit_plan(replace(LARGE, layers=48), 8, DEEP, usage=10**6)
    assert deep.steps < 64 and len(deep.distributions) < 48 and len(deep.layers) >= 4 and deep.bytes <= MOST_BYTES
    assert [told.split(" of ")[0] for told in deep.reduced][1:] == ["attention", "key distributions"]


def test_layers_asked_for_are_kept_or_refused() -> None:
    asked = Capture(layers=(3, 1), heads=(0,))
    assert (fit_plan(LARGE, 8, asked, 0).layers, fit_plan(LARGE, 8, asked, 0).heads) == ([1, 3], [0])
    with pytest.raises(SpecError, match=r"maps of 32 layers would take \d+ MB; at most 63 MB .* capture\.layers"):
        fit_plan(LARGE, 8, Capture(layers="all"), 0)


def test_what_can_never_fit_is_refused_before_anything_is_computed(smollm) -> None:
    lanes = tuple(Lane(label=f"QAQ {i}", method="qaq") for i in range(8))
    spec = ComparisonSpec(prompt="word " * 6000, max_new_tokens=2048, lanes=lanes)
    with pytest.raises(SpecError, match=r'would take \d+ MB; at most 63 MB are kept\. .* capture\.detail to "off"'):
        estimate(spec)
    events = []
    with pytest.raises(SpecError, match="captures of this run"):
        events.extend(compare_on(smollm, spec))
    assert not any(isinstance(event, Prefill) for event in events)
    off = spec.model_copy(update={"capture": Capture(detail="off")})
    assert plan_of(smollm, off, 6000) is None and estimate(off).prompt_tokens > 6000


def test_many_lanes_are_compared_without_captures_that_do_not_fit(smollm) -> None:
    lanes = tuple(Lane(label=f"QAQ {i}", method="qaq") for i in range(9))
    spec = ComparisonSpec(prompt="word " * 6000, max_new_tokens=2048, lanes=lanes)
    assert plan_of(smollm, spec, 6000) is None
    assert "Captures of 9 lanes do not fit into 63 MB: none are kept." in estimate(spec).notes
    asked = spec.model_copy(update={"capture": Capture(layers=tuple(range(30)))})
    with pytest.raises(SpecError, match="Captures with the score maps of 30 layers"):
        estimate(asked)


def test_estimates_tell_what_is_reduced_and_what_is_deep(smollm) -> None:
    lanes = tuple(Lane(label=f"KIVI {i}", method="kivi") for i in range(8))
    spec = ComparisonSpec(prompt="word " * 4000, max_new_tokens=1024, lanes=lanes, capture=DEEP)
    told = " ".join(estimate(spec).notes)
    assert "takes longer" in told and "they keep score maps and attention rows of" in told and "of 30 layers" in told
    assert estimate(ComparisonSpec(prompt="word " * 100, lanes=lanes[:2])).notes == ()


def test_shipped_runs_took_no_more_than_planned() -> None:
    runs = packaged_store()
    for summary in runs.list():
        record, arrays = runs.load(summary.id)
        env, spec = record.environment, parse_spec(record.spec)
        shape = ModelShape(env.layers, env.query_heads, env.kv_heads, env.head_dim, 8192)
        prompt, new = len(record.reference.prompt_token_ids), len(record.reference.token_ids)
        extent = Extent.of(shape, len(spec.lanes) + 1, prompt, new)
        usage = [lane.build().usage_bytes(shape, extent.tokens) for lane in spec.lanes]
        found = fit_plan(extent, env.kv_heads, spec.capture, sum(usage))
        assert sum(t.nbytes for t in arrays.values()) <= found.bytes
        for i, most in enumerate(usage):
            told = ("_bits", "_code_counts", "_share")
            assert sum(t.nbytes for n, t in arrays.items() if n.startswith(f"lane/{i}/") and n.endswith(told)) <= most


def test_methods_that_tell_more_of_their_storage_say_so() -> None:
    shape = ModelShape(layers=2, query_heads=4, kv_heads=2, head_dim=64, context=100)
    plain = make("kivi").usage_bytes(shape, 1000)
    assert plain == 2 * (4 * 1000 + 2 * 4 * 512)
    assert make("qaq").usage_bytes(shape, 1000) - plain == 2 * 2 * 4 * 1000  # a width for every token and head
    # 2 bits: 64 * 2 / 4 codebooks of 16 levels a head, and 128 binary digits
    assert make("commvq", bits=2).usage_bytes(shape, 1000) == 2 * 4 * (1000 + 2 * (32 * 16 + 2 * 128))


def test_a_deep_run_keeps_more_than_a_normal_one_and_no_more_than_planned(smollm) -> None:
    lanes = (Lane(label="QAQ", method="qaq"), Lane(label="SVDq", method="svdq"))
    spec = ComparisonSpec(prompt="word " * 60, max_new_tokens=9, ignore_eos=True, lanes=lanes, capture=DEEP)
    model = tiny("llama", tokenizer=smollm.tokenizer)
    finished = next(e for e in compare_on(model, spec) if isinstance(e, Finished))
    info, arrays = finished.record.capture, finished.arrays
    assert info.detail == "deep" and len(info.attention_steps) == 8 and info.distribution_layers == [0, 1, 2]
    assert arrays["lane/0/attention_kl"].shape[0] == 8 and arrays["lane/1/key_quantiles"].shape[0] == 3
    assert (
        sum(t.nbytes for t in arrays.values())
        <= plan_of(model, spec, len(finished.record.reference.prompt_token_ids)).bytes
    )
    assert all(torch.isfinite(t.float()).all() for t in arrays.values())
