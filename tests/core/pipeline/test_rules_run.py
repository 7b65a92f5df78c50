"""A comparison whose lanes have several rules, on a tiny model: its record, and what is concluded from it."""

import pytest

from kvq_core.analysis.context_growth import growths
from kvq_core.analysis.explain import explain
from kvq_core.analysis.plans import lane_plan, shape_of
from kvq_core.analysis.two_runs import versus
from kvq_core.cli.tables import describe_record
from kvq_core.models import LoadedModel
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.estimate import estimate
from kvq_core.record.events import Finished
from kvq_core.record.fields import Record
from kvq_core.spec import ComparisonSpec, parse_spec
from tests.support.growth_bits import effective_bits
from tests.support.tiny_models import tiny
from ui.html.cards import lane_head
from ui.views.storage import by_rule
from ui.views.verdicts import compute as draw_verdicts

FACTS = "The harbour keeps its tide tables by hand and the brass gauge has a paper drum. "
RULES = [
    {"method": "fp16", "layers": [0, 1]},
    {"method": "per_token", "knobs": {"bits": 8}, "tensors": "keys"},
    {"method": "kivi", "tensors": "values"},
]
LANES = [
    {"label": "kivi", "method": "kivi"},
    {"label": "twice", "rules": [{"method": "kivi", "tensors": "keys"}, {"method": "kivi", "tensors": "values"}]},
    {"rules": RULES},
    {"label": "qaq first", "rules": [{"method": "qaq", "layers": [0, 1, 2]}, {"method": "innerq"}]},
]


def spec_of(**changes: object) -> ComparisonSpec:
    prompt = "Tell me about the harbour. " + FACTS * 8
    return parse_spec({"prompt": prompt, "max_new_tokens": 52, "ignore_eos": True, "lanes": LANES, **changes})


@pytest.fixture(scope="module")
def finished(smollm: LoadedModel) -> Finished:
    *_, last = compare_on(tiny("llama", tokenizer=smollm.tokenizer, layers=6), spec_of())
    assert isinstance(last, Finished)
    return last


def test_the_record_holds_the_rules(finished: Finished) -> None:
    one, twice, mixed, _ = finished.record.lanes
    assert one.method == "kivi" and [rule.method for rule in one.rules] == ["kivi"] == [
        r.method for r in one.every_rule
    ]
    assert one.knobs == one.rules[0].knobs and one.memory is not None and one.memory.by_rule == []
    assert (twice.method, twice.knobs, twice.tensors, twice.layers) == (None, None, "both", "all")
    assert mixed.title == mixed.label == "K per_token 8, V kivi 2; layers 0-1 fp16"
    assert mixed.layers == list(range(2, 6)) and mixed.flags == []
    assert [(rule.method, rule.tensors, rule.layers) for rule in mixed.rules] == [
        ("fp16", "both", [0, 1]),
        ("per_token", "keys", "all"),
        ("kivi", "values", "all"),
    ]
    again = Record.model_validate_json(finished.record.model_dump_json())
    assert again == finished.record and parse_spec(again.spec) == spec_of(model=again.spec["model"])


def test_two_rules_of_one_method_measure_what_the_method_does(finished: Finished) -> None:
    one, twice, *_ = finished.record.lanes
    assert one.memory is not None and twice.memory is not None and one.metrics is not None and twice.metrics is not None
    assert twice.memory.model_copy(update={"by_rule": []}) == one.memory
    assert twice.metrics.kld_mean == pytest.approx(one.metrics.kld_mean, rel=0.01)


def test_bytes_are_told_by_rule(finished: Finished) -> None:
    memory = finished.record.lanes[2].memory
    assert memory is not None and [bool(rule.bytes_by_part) for rule in memory.by_rule] == [False, True, True]
    left, keys, values = memory.by_rule
    assert (left.key_bits_quantized, keys.key_bits_quantized, keys.value_bits_quantized) == (None, 9.0, None)
    assert values.value_bits_quantized == 3.0 and set(keys.bytes_by_part) & set(values.bytes_by_part) == set()
    untouched = sum(size for name, size in memory.bytes_by_part.items() if name.endswith("untouched"))
    ruled = sum(sum(rule.bytes_by_part.values()) for rule in memory.by_rule)
    assert ruled + untouched == sum(memory.bytes_by_part.values())
    twice, mixed, _ = by_rule(finished.record)
    assert twice.startswith("Stored by twice: K kivi 2 ") and "fp16" not in twice
    assert "K per_token 8 " in mixed and ", V kivi 2 " in mixed and " and fp16 " in mixed


def test_bytes_grow_with_the_context_rule_by_rule(finished: Finished) -> None:
    """InnerQ's hybrid pads the mask of every token that came by itself to whole bytes, and that of a prompt once."""
    record = finished.record
    shape, found = shape_of(record), growths(record)
    for index, lane in enumerate(record.lanes):
        growth, memory = found[index], lane.memory
        assert growth is not None and memory is not None
        stored = sum(size for name, size in memory.bytes_by_part.items() if name != "host_copy")
        assert growth.nbytes(shape, memory.tokens, 1) == pytest.approx(stored, rel=1e-3 if index == 3 else 1e-6), (
            lane.label
        )
    mixed = found[2]
    assert mixed is not None
    assert effective_bits(mixed, shape, 10**7) == pytest.approx(((4 * 9 + 32) / 6, (4 * 3 + 32) / 6), rel=1e-3)
    plan = lane_plan(record, 2)
    assert plan is not None and {a.layers for a in plan} == {tuple(range(2, 6))}


def test_what_is_said_of_a_lane_knows_its_rules(finished: Finished) -> None:
    record, arrays = finished.record, finished.arrays
    card = lane_head(record, arrays, 2)
    assert "layers 0-1 fp16" in card and "K per_token 8: K8 V8" in card
    assert [note for note in record.lanes[3].notes if note.startswith("layers 0-2 qaq 3: decided over layers 0-2")]
    assert all(explain(record, arrays, index).sentences for index in range(4))
    shown = draw_verdicts(record, arrays, None).html["verdicts"]  # type: ignore[arg-type]
    assert "Per token: " in shown and "stores by several rules" in shown
    assert "twice" in describe_record(record, arrays)
    other = record.model_copy(update={"lanes": [record.lanes[0], record.lanes[2], record.lanes[1], record.lanes[3]]})
    assert versus(record, other).changes == ()
    renamed = record.lanes[2].model_copy(update={"label": "x", "summary": "y"})
    found = versus(record, record.model_copy(update={"lanes": [*record.lanes[:2], renamed, record.lanes[3]]}))
    assert {change.place.partition(": ")[2] for change in found.changes} == {"label", "rules"}


def test_estimates_look_at_every_rule(smollm: object) -> None:
    rules = [{"method": "kivi", "tensors": "keys", "sink_tokens": 1000}, {"method": "kivi", "tensors": "values"}]
    found = estimate(spec_of(lanes=[{"rules": rules}, {"rules": [{**rule, "sink_tokens": 1000} for rule in rules]}]))
    first, second = found.lanes
    assert first.key_tokens == 0 < first.value_tokens and first.warning is None
    assert second.warning is not None and "would quantize nothing" in second.warning
