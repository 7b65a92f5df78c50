"""Comparisons of more lanes than go at once: batches on one prefill, which score the same tokens."""

import math
from collections import Counter

import pytest
import torch

from kvq_core.codecs.stream import Stream
from kvq_core.engine.script import Script
from kvq_core.errors import MethodError, SpecError
from kvq_core.pipeline import footprint
from kvq_core.pipeline.batch import Batch
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.estimate import estimate
from kvq_core.pipeline.lanes import lanes_of
from kvq_core.pipeline.state import Run
from kvq_core.record.events import Encoding, Finished, Step
from kvq_core.record.files import MAX_ARRAY_BYTES
from kvq_core.record.store import open_store
from kvq_core.spec import MAX_LANES, parse_spec
from tests.support.tiny_models import tiny

PROMPT = "The harbour keeps its tide tables by hand and the brass gauge has a paper drum. " * 4
KINDS = (
    {"method": "kivi", "knobs": {"bits": 4, "group_size": 8, "residual_length": 8}},
    {"method": "kivi", "knobs": {"bits": 2, "group_size": 8, "residual_length": 8}},
    {"method": "per_token", "knobs": {"bits": 3, "group_size": 8}},
    {"method": "per_token", "knobs": {"bits": 2, "group_size": 4}},
    {"method": "per_token", "knobs": {"bits": 2, "group_size": 8}, "prefill": {"chunk": 24}},
)


def lanes(count: int) -> list[dict]:
    return [{**KINDS[i % len(KINDS)], "label": f"lane {i}", "sink_tokens": i % 7} for i in range(count)]


def spec_of(count: int, **changes: object):
    return parse_spec(
        {"prompt": PROMPT, "chat": False, "max_new_tokens": 9, "ignore_eos": True, "lanes": lanes(count), **changes}
    )


@pytest.fixture
def by_eight(monkeypatch):
    monkeypatch.setattr(footprint, "AT_ONCE", 8)


@pytest.fixture(scope="module")
def model(smollm):
    return tiny("llama", tokenizer=smollm.tokenizer)


def script(model):
    return Script.of_prompt(model.tokenizer(PROMPT).input_ids)


def run_of(model, spec) -> Run:
    run = Run("0" * 16, model, spec, script(model))
    for _ in run.stages():
        pass
    return run


def finished(model, spec) -> Finished:
    return next(event for event in compare_on(model, spec) if isinstance(event, Finished))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long("combine", sample=1)
@pytest.mark.parametrize(
    "changes",
    [{}, {"temperature": 0.9}, {"continuation": PROMPT[:60]}, {"capture": {"detail": "off"}}],
    ids=["greedy", "sampled", "continuation", "no captures"],
)
def test_twenty_lanes_are_three_runs_of_the_same_batches_bit_for_bit(model, changes, by_eight):
    spec = spec_of(20, **changes)
    run = run_of(model, spec)
    lanes, floors = run.lanes()
    together = [*lanes, *floors]
    assert [len(batch.lanes) for batch in run.batches] == [8, 8, 4] and len(together) == 21
    first = None
    for start in (0, 8, 16):
        alone = Run("0" * 16, model, spec, script(model))
        list(alone._prefill())
        batch = Batch(
            model, spec, alone.script, alone.prefill, list(spec.lanes[start : start + 8]), run.plan, first=first
        )
        for _ in (*batch.encode(), *batch.steps()):
            pass
        batch.score_prompt()
        told = lanes_of(batch)
        expected = together[:20][start : start + 8] + (together[-1:] if first is None else [])
        for (record, arrays), (own, values) in zip(expected, told, strict=True):
            assert same(arrays, values) and record.status == own.status == "done"
            assert record.metrics == own.metrics and record.token_ids == own.token_ids and record.memory == own.memory
        first = first or batch


def test_the_first_eight_of_twenty_lanes_are_what_they_are_without_the_others(model, by_eight):
    alone, together = (finished(model, spec_of(count, capture={"detail": "off"})) for count in (8, 20))
    shared = {name: values for name, values in together.arrays.items() if name in alone.arrays}
    assert same(shared, alone.arrays)
    assert alone.record.reference == together.record.reference
    assert (alone.record.environment.lanes_at_once, together.record.environment.lanes_at_once) == (None, 8)


def test_a_lane_of_a_later_batch_is_the_lane_alone_within_the_noise_of_batch_sizes(model, by_eight):
    together = finished(model, spec_of(20)).record.lanes
    for index in (8, 12, 16, 19):
        spec = spec_of(20)
        alone = finished(model, spec.model_copy(update={"lanes": (spec.lanes[index],)})).record.lanes[0]
        assert math.isclose(alone.metrics.kld_mean, together[index].metrics.kld_mean, rel_tol=1e-2)
        assert (alone.token_ids, alone.memory) == (together[index].token_ids, together[index].memory)


def test_all_batches_score_the_tokens_the_first_one_chose(model, monkeypatch, by_eight):
    """A later batch in which the reference would choose otherwise is given what it chose first."""
    spec = spec_of(12)
    run = run_of(model, spec)
    later, chose = run.batches[1], Batch.encode

    def other(batch):
        yield from chose(batch)
        if batch.first is not None:
            batch.prefill.logits = -batch.prefill.logits

    monkeypatch.setattr(Batch, "encode", other)
    moved = run_of(model, spec)
    assert moved.batches[1].decode.token_ids == later.decode.token_ids == run.first.decode.token_ids
    parted = [record.first_divergence for record in (told.metrics for told, _ in moved.lanes()[0][8:12])]
    assert parted.count(0) >= 3, "lanes part from the given text where they choose otherwise"


def test_twenty_lanes_at_once_are_the_lanes_of_three_batches_within_the_noise_of_batch_sizes(model, monkeypatch):
    at_once = finished(model, spec_of(20)).record
    monkeypatch.setattr(footprint, "AT_ONCE", 8)
    divided = finished(model, spec_of(20)).record
    assert (at_once.environment.lanes_at_once, divided.environment.lanes_at_once) == (None, 8)
    for one, other in zip(at_once.lanes, divided.lanes, strict=True):
        assert math.isclose(one.metrics.kld_mean, other.metrics.kld_mean, rel_tol=1e-2)
        assert one.memory == other.memory


def test_sixty_four_lanes_run_and_are_kept(model, tmp_path):
    store = open_store(str(tmp_path))
    events = list(compare_on(model, spec_of(MAX_LANES), store))
    last = events[-1]
    assert isinstance(last, Finished) and not last.unkept
    assert [lane.label for lane in last.record.lanes] == [f"lane {i}" for i in range(64)]
    assert all(lane.status == "done" and lane.metrics for lane in last.record.lanes)
    assert sum(values.nbytes for values in last.arrays.values()) <= MAX_ARRAY_BYTES
    assert last.record.environment.lanes_at_once == 32
    assert last.record.capture.layers and "lane/63/delta_map" in last.arrays
    record, arrays = store.load(last.record.id)
    assert same(dict(arrays), last.arrays) and record == last.record
    encoding = [event for event in events if isinstance(event, Encoding)]
    assert {event.total for event in encoding} == {65} and sorted(event.index for event in encoding) == list(range(65))
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.done for step in steps] == sorted(step.done for step in steps) and steps[-1].done == steps[-1].total
    assert all(len(step.lanes) == 64 for step in steps)
    assert len(steps[0].lanes[0].tokens) and not steps[0].lanes[-1].tokens
    assert steps[0].lanes[0].kld == steps[-1].lanes[0].kld[: len(steps[0].lanes[0].kld)]


def test_one_lane_more_is_refused_in_one_line():
    with pytest.raises(SpecError, match=r"65 lanes were given; at most 64 are allowed. Remove 1\.$"):
        spec_of(65)


def test_cancelling_in_a_later_batch_keeps_nothing(model, tmp_path, by_eight):
    store = open_store(str(tmp_path))
    going = compare_on(model, spec_of(20), store)
    for event in going:
        if isinstance(event, Step) and event.done > event.total // 2:
            break
    going.close()
    assert store.list() == []


def test_a_lane_that_fails_does_not_hurt_the_others(model, by_eight):
    """One lane of each of the first batches, and every one of the last."""
    failing = {3, 9, 16, 17, 18, 19}
    given = lanes(20)
    for index in failing:
        given[index] = {"label": f"lane {index}", "method": "per_token", "knobs": {"group_size": 48}}
    fine, some = finished(model, spec_of(20)), finished(model, spec_of(20, lanes=given))
    for index, (lane, other) in enumerate(zip(some.record.lanes, fine.record.lanes, strict=True)):
        assert lane.status == ("failed" if index in failing else "done")
        assert (f"lane/{index}/kld" in some.arrays) == (index not in failing)
        if index not in failing:
            assert math.isclose(lane.metrics.kld_mean, other.metrics.kld_mean, rel_tol=1e-2)


def test_short_memory_makes_batches_smaller_and_the_record_says_so(model, monkeypatch):
    spec = spec_of(6)
    new, read = spec.max_new_tokens, script(model)
    needed = {size: footprint.run_bytes(model, spec, read, new, size) for size in (8, 4, 2, 1)}
    assert needed[8] > needed[4] > needed[2] > needed[1]
    monkeypatch.setattr(footprint, "room_for", lambda asked, device: needed[4] - 1)
    assert footprint.batch_size(model, spec, read, new) == 2
    record = finished(model, spec).record
    assert record.environment.lanes_at_once == 2 and all(lane.status == "done" for lane in record.lanes)
    monkeypatch.setattr(footprint, "room_for", lambda asked, device: 0)
    assert footprint.batch_size(model, spec, read, new) == 1


def test_equal_streams_are_encoded_once_over_all_batches(model, monkeypatch, by_eight):
    """A grid of four formats of keys and of values: eight encodings, though its batches are two."""
    rules = [{"method": "per_token", "knobs": {"bits": bits, "group_size": 8}} for bits in (2, 3, 4, 8)]
    cells = [
        {"label": f"{k} {v}", "rules": [{"tensors": "keys", **rules[k]}, {"tensors": "values", **rules[v]}]}
        for k in range(4)
        for v in range(4)
    ]
    encoded, of_prompt = Counter(), Stream.of_prompt.__func__

    def counted(cls, x, window, codec, *more):
        encoded["packed" if codec is not None else "fp16"] += 1
        return of_prompt(cls, x, window, codec, *more)

    monkeypatch.setattr(Stream, "of_prompt", classmethod(counted))
    record = finished(model, spec_of(0, lanes=cells)).record
    assert encoded["packed"] == 8 and all(lane.status == "done" for lane in record.lanes)


def test_what_a_batch_held_is_given_back(model, by_eight):
    run = run_of(model, spec_of(20))
    for batch in run.batches[:-1]:
        assert not hasattr(batch.decode, "rows")
        assert all(state.cache is None and state.prompt_hidden is None for state in batch.decode.states)


def test_no_noise_floor_is_no_run(model, monkeypatch):
    monkeypatch.setattr("kvq_core.spec.lane.Lane.why_not", lambda lane, shape: "it must")
    with pytest.raises(MethodError, match="Noise floor"):
        run_of(model, spec_of(2))


def test_an_estimate_knows_batches_and_that_memory_is_one_batchs(smollm, by_eight):
    few, many = (estimate(spec_of(count, capture={"detail": "off"})) for count in (8, 64))
    assert (few.batches, many.batches) == (1, 8)
    assert many.cost.bytes == few.cost.bytes


def test_the_time_of_one_batch_alone_is_remembered(model, monkeypatch, by_eight):
    """A memo knows of no second one."""
    kept: list[list[float]] = []
    monkeypatch.setattr("kvq_core.pipeline.timings.files.keep_memo", lambda file, rows: kept.append(rows[-1]))
    full = [lane for lane in lanes(12) if "prefill" not in lane]
    finished(model, spec_of(0, lanes=full))
    assert len(full) > 8 and not kept
    finished(model, spec_of(2))
    assert len(kept) == 1 and kept[0][2] == 3
