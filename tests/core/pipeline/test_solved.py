"""Lanes that are solved for a budget: a run on the model and the prompt they were solved for stores what was meant."""

import pytest

from kvq_core.models import load
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.solved import cache_at, parse_spec
from kvq_core.presets.equal import NEAR, USUAL
from kvq_core.record.fields import Record
from kvq_core.sizing.count import PlannedCache
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec

WORDS = "The tide rises twice a day, and a mill that waits for it grinds when the moon allows. "


def solved(bits: float, **more: object) -> ComparisonSpec:
    asked = {"prompt": WORDS * 18, "max_new_tokens": 9, "ignore_eos": True, "capture": {"detail": "off"}}
    return parse_spec({**asked, "bundle": {"name": "equal-bytes", "bits": bits}, **more})


def run(spec: ComparisonSpec) -> Record:
    *_, finished = compare(spec)
    return finished.record


@pytest.mark.real_model
def test_what_is_usual_is_the_bundled_models_shape() -> None:
    own, usual = load(DEFAULT_MODEL).shape, USUAL.shape
    heads = (own.layers, own.query_heads, own.kv_heads, own.head_dim, own.context)
    assert heads == (usual.layers, usual.query_heads, usual.kv_heads, usual.head_dim, usual.context)


def check(spec: ComparisonSpec, budget: float) -> None:
    """Of a run's real tensors: each lane meets the budget, or misses it as its label says."""
    at, stored = cache_at(spec), {lane.label: lane.memory for lane in run(spec).lanes}
    met = 0
    for lane in spec.lanes:
        memory = stored[lane.label]
        assert memory is not None and memory.tokens == at.tokens
        bits = (memory.key_bits + memory.value_bits) / 2
        loose = 0.12 if any(rule.build().from_data for rule in lane.every_rule) else 0.01
        assert bits == pytest.approx(PlannedCache(lane, at.shape).bits(at.prompt, at.tokens), rel=loose), lane.label
        words = [each for each in ("cannot reach", "below", "about") if lane.label.startswith(f"{each} {budget:g}: ")]
        if words == ["below"]:
            assert bits < budget * (1 - NEAR) + 0.03, lane.label
        elif words == ["cannot reach"]:
            assert abs(bits - budget) > NEAR * budget, lane.label
        else:
            assert bits == pytest.approx(budget, rel=NEAR + loose), lane.label
            met += 1
    assert met >= len(spec.lanes) // 2


@pytest.mark.long("programs", sample=1)
@pytest.mark.real_model
@pytest.mark.parametrize("budget", [4.5, 6.0])
def test_lanes_store_the_budget_they_are_solved_for(budget: float) -> None:
    check(solved(budget), budget)


@pytest.mark.long("programs", sample=0)
def test_lanes_are_solved_for_the_shape_of_another_model(second_model) -> None:
    spec = solved(4.5, model=second_model, prompt=WORDS * 8)
    assert cache_at(spec).shape == load(second_model).shape
    assert spec.lanes != solved(4.5, prompt=WORDS * 8).lanes
    check(spec, 4.5)


@pytest.mark.slow
def test_lanes_are_solved_for_the_length_of_the_prompt() -> None:
    short, long = solved(4.5), solved(4.5, prompt=WORDS * 30)
    assert [lane.label for lane in short.lanes] != [lane.label for lane in long.lanes]
    told = {"name": "equal-bytes", "bits": 6.0, "tokens": cache_at(short).prompt}
    for layers, ends in ((30, "4bit_nc"), (12, "boundary 1")):  # two layers at both ends are a third of 12
        fewer = parse_spec({"prompt": "A prompt.", "bundle": {**told, "layers": layers}})
        assert next(lane.label for lane in fewer.lanes if "turboquant" in lane.label).endswith(ends)
