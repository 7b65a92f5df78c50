"""Lanes added to a finished run: the same on what is held as on what is read anew, and as in a run of all lanes."""

import pytest
import torch

from kvq_core.analysis.causes import variants
from kvq_core.engine import prompt_memory
from kvq_core.engine.prompt_memory import READINGS, ReadPrompts
from kvq_core.errors import MethodError, SpecError
from kvq_core.machine import memory
from kvq_core.methods.per_token import PerToken
from kvq_core.pipeline.added import adding_on, captures_of, index_of, spec_of
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.why import _variants, spec_of_why, why_of
from kvq_core.record.events import Finished, Prefill
from kvq_core.record.store import open_store
from kvq_core.record.subset import part_of
from kvq_core.spec import MAX_LANES, Lane, parse_spec
from tests.core.pipeline.test_batches import KINDS, PROMPT, same
from tests.support.tiny_models import tiny
from ui.service.records import RecordCache

ADDED = Lane(label="added", method="per_token", knobs={"bits": 2, "group_size": 8})


@pytest.fixture(scope="module")
def model(smollm):
    return tiny("qwen2", tokenizer=smollm.tokenizer)  # with a bias at its projections


@pytest.fixture(autouse=True)
def _nothing_held():
    READINGS.clear()


def spec(**changes: object):
    told = {"prompt": PROMPT, "chat": False, "max_new_tokens": 24, "ignore_eos": True, "lanes": list(KINDS[:2])}
    return parse_spec({**told, **changes})


def told(events) -> tuple[Finished, list[int]]:
    """How a run ended, and what it said of the tokens that it had read of the prompt and the reference's answer."""
    every = list(events)
    assert isinstance(every[-1], Finished)
    return every[-1], [event.done for event in every if isinstance(event, Prefill)]


def added(model, parent, lanes=(ADDED,), **options) -> tuple[Finished, list[int]]:
    return told(adding_on(model, parent.record, spec_of(parent.record, lanes), **options))


@pytest.mark.long("combine", sample=2)
@pytest.mark.parametrize(
    ("changes", "lane"),
    [
        ({}, ADDED),
        ({"temperature": 0.9}, ADDED),
        ({"continuation": PROMPT[:60], "score_chunk": 3}, ADDED),
        ({"stress": {"key_outlier_scale": 8.0}}, ADDED),
        ({}, Lane(**KINDS[4])),
        ({}, Lane(method="per_token", knobs={"bits": 3, "group_size": 8}, select={"by": "h2o"})),
    ],
    ids=["greedy", "sampled", "continuation", "stress", "chunks", "select"],
)
def test_an_added_lane_is_that_of_a_fresh_prefill_bit_for_bit_and_near_that_of_a_whole_run(model, changes, lane):
    parent, _ = told(compare_on(model, spec(**changes)))
    first, _ = added(model, parent, [lane])
    again, read = added(model, parent, [lane])
    assert read == [], "the prompt and the reference's answer are held"
    READINGS.clear()
    fresh, read = added(model, parent, [lane])
    assert read[0] == 0 and read[-1] > len(parent.record.reference.prompt_token_ids)
    for other in (again, fresh):
        assert same(first.arrays, other.arrays) and other.record.lanes[0].metrics == first.record.lanes[0].metrics
    whole, _ = told(compare_on(model, spec(**changes, lanes=[*KINDS[:2], lane.model_dump(mode="json")])))
    one, other = first.record.lanes[0], whole.record.lanes[2]
    assert one.metrics.kld_mean == pytest.approx(other.metrics.kld_mean, rel=1e-2)
    assert one.metrics.near_tie_margin == pytest.approx(other.metrics.near_tie_margin)
    assert (one.token_ids, one.memory) == (other.token_ids, other.memory)
    reference = first.arrays["reference/nll"]
    assert torch.allclose(reference, whole.arrays["reference/nll"], atol=1e-4) and len(reference)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_so_it_is_on_models_of_other_shapes(smollm, name):
    model = tiny(name, tokenizer=smollm.tokenizer)
    parent, _ = told(compare_on(model, spec()))
    first, read = added(model, parent)
    assert min(read) > len(parent.record.reference.prompt_token_ids), "the prompt was held"
    READINGS.clear()
    fresh, _ = added(model, parent)
    assert same(first.arrays, fresh.arrays) and first.record.lanes[0].metrics == fresh.record.lanes[0].metrics


def test_what_is_added_is_a_run_of_its_own_with_a_parent(model):
    store = open_store()
    parent, _ = told(compare_on(model, spec(), store))
    before = store.load(parent.record.id)[0]
    child, _ = added(model, parent, [ADDED, Lane(label=parent.record.lanes[0].label + "!", **KINDS[2])], store=store)
    record = child.record
    assert record.parent == parent.record.id != record.id and len(record.lanes) == 2
    assert record.environment.reference_apart and not parent.record.environment.reference_apart
    assert record.reference.token_ids == parent.record.reference.token_ids
    assert record.noise_floor == parent.record.noise_floor
    assert store.load(parent.record.id)[0] == before, "nothing is merged into it"
    assert {run.id: run.parent for run in store.list()} == {parent.record.id: None, record.id: parent.record.id}
    assert added(model, parent, [ADDED, Lane(label=record.lanes[1].label, **KINDS[2])], store=store)[0].reused
    grandchild, _ = added(model, child, [Lane(**KINDS[3])], store=store)
    assert grandchild.record.parent == parent.record.id
    alike, _ = added(model, parent, [Lane(**KINDS[0])])
    assert alike.record.lanes[0].label == "KIVI (3)" not in [lane.label for lane in parent.record.lanes]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"results_version": 1}, "is of results version 1"),
        ({"model_hash": "0" * 16}, "was computed with another .tiny-qwen2. than"),
        ({"dtype": "bfloat16"}, "was computed in bfloat16, here it would be float32"),
    ],
)
def test_a_run_that_cannot_be_followed_here_is_refused_in_a_line(model, change, reason):
    parent, _ = told(compare_on(model, spec()))
    record = parent.record
    if "results_version" in change:
        record = record.model_copy(update=change)
    else:
        record = record.model_copy(update={"environment": record.environment.model_copy(update=change)})
    with pytest.raises(SpecError, match=reason):
        told(adding_on(model, record, spec_of(record, [ADDED])))
    with pytest.raises(SpecError, match="at least one"):
        spec_of(record, [])


def test_a_run_of_as_many_lanes_as_one_may_have_is_added_to_as_any(model):
    few, more = told(compare_on(model, spec()))[0].record, [ADDED, Lane(**KINDS[0]), Lane(**KINDS[0])]
    given = [lane.model_dump(mode="json", exclude_defaults=True) for lane in more]
    together = parse_spec({**few.spec, "lanes": [*few.spec["lanes"], *given]}).lanes
    assert spec_of(few, more).lanes == together[2:], "as they are called in one run: ids stay what they were"
    full = few.model_copy(update={"spec": spec(lanes=[KINDS[0]] * MAX_LANES).model_dump(mode="json")})
    assert [lane.label for lane in spec_of(full, more).lanes] == ["added", "KIVI (65)", "KIVI (66)"]
    with pytest.raises(SpecError, match="Two lanes are labelled 'KIVI'"):
        spec_of(full, [Lane(label="KIVI", **KINDS[1])])


def test_what_is_held_is_its_owners_alone_and_makes_way(model, monkeypatch):
    parent, _ = told(compare_on(model, spec(), owner="one"))
    assert added(model, parent, owner="another")[1][0] == 0
    tokens = len(parent.record.reference.prompt_token_ids)
    assert min(added(model, parent, owner="one")[1]) > tokens, "the answer alone is read"
    size = READINGS.nbytes
    assert size > 0
    monkeypatch.setattr(memory, "free_bytes", lambda device="cpu": 1000)
    memory.room_for(500)
    assert READINGS.nbytes == size
    memory.room_for(2000)
    assert READINGS.nbytes == 0


def test_a_quarter_of_free_memory_is_held_at_most_and_of_one_model(model, monkeypatch):
    told(compare_on(model, spec()))
    (reading,) = READINGS._held.values()
    reading.replays.clear()  # they go before prompts do, see test_layer_look
    readings, free = ReadPrompts(), [4 * reading.nbytes * 2]
    monkeypatch.setattr(
        prompt_memory, "free_bytes", lambda device: free[0] - sum(x.nbytes for x in readings._held.values())
    )
    for key in "abc":
        readings.keep(key, reading)
    assert [key for key in "abc" if readings.take(key)] == ["b", "c"]
    readings.take("b")
    readings.keep("d", reading)
    assert [key for key in "abcd" if readings.take(key)] == ["b", "d"], "the one taken longest ago goes first"
    free[0] = 0
    readings.keep("e", reading)
    assert readings.nbytes == 0
    free[0] = 1 << 40
    readings.keep("f", reading)
    other, _ = told(compare_on(tiny("llama", tokenizer=model.tokenizer), spec()))
    assert len(READINGS._held) == 1 and READINGS._model == other.record.environment.model_hash


def test_a_lane_is_looked_at_in_every_layer_and_head_as_a_run_that_captures_them_does(model):
    parent, _ = told(compare_on(model, spec(capture={"layers": [1]})))
    asked = captures_of(parent.record, 1)
    found, read = told(adding_on(model, parent.record, asked))
    record = found.record
    assert read == [] and record.parent == parent.record.id and not record.environment.reference_apart
    every, heads = list(range(model.shape.layers)), list(range(model.shape.query_heads))
    assert (record.capture.layers, record.capture.heads, record.capture.distribution_layers) == (every, heads, every)
    one, other = parent.record.lanes[1].metrics, record.lanes[0].metrics
    assert other.kld_mean == pytest.approx(one.kld_mean, rel=1e-2)
    assert other.attention_delta_mean == pytest.approx(one.attention_delta_mean, rel=1e-2)
    maps = [run.arrays[f"lane/{at}/delta_map"].float() for run, at in ((parent, 1), (found, 0))]
    scales = [run.arrays[f"lane/{at}/delta_scale"][..., None, None] for run, at in ((parent, 1), (found, 0))]
    kept, seen = maps[0][0] * scales[0][0], maps[1][1] * scales[1][1]
    assert ((kept - seen).norm() / kept.norm()).item() < 1e-2
    steps = [record.capture.attention_steps.index(step) for step in parent.record.capture.attention_steps]
    rows = [run.arrays[f"lane/{at}/attention_rows"].int() for run, at in ((parent, 1), (found, 0))]
    assert (rows[0][:, 0] - rows[1][steps, 1]).abs().max() <= 1  # of codes of 255
    errors = [run.arrays[f"lane/{at}/key_error"] for run, at in ((parent, 1), (found, 0))]
    assert torch.allclose(*errors, rtol=1e-2)


def test_causes_are_lanes_of_their_own_and_what_they_leave_is_told(model):
    lane = {**KINDS[3], "recent_tokens": 16, "sink_tokens": 2}
    alone = [{**lane, "tensors": "values"}, {**lane, "tensors": "keys"}]
    whole, _ = told(compare_on(model, spec(lanes=[lane, *alone, {"method": "fp16"}])))
    parent = whole.record
    lanes = [variant for _, variant in _variants(parent, 0)]
    finished, _ = told(adding_on(model, parent, spec_of(parent, lanes, "causes")))
    found = why_of(parent, 0, finished)
    assert [(c.kind, c.label.split()[0]) for c in found.causes] == [
        ("tensors", "keys"),
        ("tensors", "values"),
        *(("layers", third) for third in ("first", "middle", "last")),
        ("windows", "no"),
    ]
    klds = [lane.metrics.kld_mean for lane in parent.lanes]
    assert found.recorded == klds[0] and [found.kld, *(c.kld for c in found.of("tensors"))] == pytest.approx(
        klds[:3], rel=2e-2
    )
    keys, values = found.of("tensors")
    differs = finished.arrays["lane/0/kld"].double() - finished.arrays["lane/1/kld"].double()
    assert keys.gain == pytest.approx(found.kld - keys.kld) == pytest.approx(differs.mean().item())
    assert keys.se == pytest.approx((differs.std() / len(differs) ** 0.5).item())
    sizes = [sum(told.memory.bytes_by_part.values()) for told in parent.lanes]
    assert [keys.more_bytes, values.more_bytes] == [size - sizes[0] for size in sizes[1:3]]
    assert found.unexplained("tensors") == pytest.approx(found.kld - keys.gain - values.gain)
    (windows,) = found.of("windows")
    assert windows.more_bytes > 0 and windows.gain == pytest.approx(windows.kld - found.kld)
    gains = [cause.per_kib for cause in found.ranked]
    assert gains == sorted(gains, reverse=True) and windows not in found.ranked
    with pytest.raises(SpecError, match="quantizes nothing"):
        _variants(parent, 3)
    with pytest.raises(SpecError, match="no lane 'none'"):
        index_of(parent, "none")


def test_added_lanes_stand_among_the_parents_on_the_page_and_what_is_about_them_does_not(model):
    store = open_store()
    parent, _ = told(compare_on(model, spec(), store))
    child, _ = added(model, parent, store=store)
    told(adding_on(model, parent.record, spec_of(parent.record, [ADDED], "causes"), store))
    records = RecordCache(store)
    record, arrays = records.whole({"run": parent.record.id})
    assert [lane.label for lane in record.lanes] == ["KIVI", "KIVI (2)", "added"] and record.id == parent.record.id
    assert torch.equal(arrays["lane/2/kld"], child.arrays["lane/0/kld"]) and len(record.spec["lanes"]) == 3
    assert records.whole({"run": parent.record.id})[0] is record is records.drawn({"run": record.id})[0]
    assert len(records.get(parent.record.id)[0].lanes) == 2, "the run itself stays as it is"
    later, _ = added(model, parent, [Lane(label="added", **KINDS[3])], store=store)
    records.put(later.record, later.arrays)
    labels = [lane.label for lane in records.whole({"run": parent.record.id})[0].lanes]
    assert labels[2:] == ["added", "added (2)"]


def test_a_page_has_its_own_lanes_beside_a_run_and_takes_them_back(model, monkeypatch):
    store = open_store()
    parent, _ = told(compare_on(model, spec(), store))
    child, _ = added(model, parent, store=store)
    run, tried = parent.record.id, child.record.id
    monkeypatch.setenv("KVQ_MODELS", "one-of-mine")
    records = RecordCache(store)
    assert len(records.whole({"run": run})[0].lanes) == 2, "nobody else's, until it is shared"
    record = records.whole({"run": run, "own": [tried]})[0]
    assert len(record.lanes) == 3 and record.added(2) == (tried, 0) and record.added(1) is None
    assert records.whole({"run": run, "own": [tried], "without": [tried]})[0].beside == ()
    records.take_back(tried, run)
    assert not store.exists(tried) and len(records.whole({"run": run, "own": [tried]})[0].lanes) == 2
    again, _ = added(model, parent, store=store)
    store.share(again.record.id)
    records.take_back(again.record.id, run)
    assert store.exists(again.record.id), "whoever has its link still opens it"


def test_causes_that_were_measured_stand_with_the_run_at_their_lane(model):
    store = open_store()
    parent, _ = told(compare_on(model, spec(), store))
    assert RecordCache(store).whole({"run": parent.record.id})[0].causes(1) is None
    finished, _ = told(adding_on(model, parent.record, spec_of_why(parent.record, 1), store))
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    assert len(record.lanes) == 2 and record.causes(0) is None
    assert record.causes(1) == why_of(parent.record, 1, finished)
    part = part_of(record, arrays, [1])[0]
    assert part.causes(0) == record.causes(1) and part.beside == (finished.record.id,)
    alone = [Lane(**{**KINDS[1], "tensors": "values", "label": "values"})]
    kinds = [kind for kind, _ in variants(alone[0], model.shape)]
    assert "tensors" not in kinds, "of a lane of values alone nothing is left without them"


def test_an_added_lane_that_fails_says_why_beside_the_answer_that_it_was_to_follow(model, monkeypatch):
    parent, _ = told(compare_on(model, spec()))

    def fails(*_: object) -> None:
        raise MethodError("no such cache")

    monkeypatch.setattr(PerToken, "fit", fails)
    record = added(model, parent)[0].record
    assert [(lane.status, lane.error) for lane in record.lanes] == [("failed", "no such cache")]
    assert record.reference.token_ids == parent.record.reference.token_ids
