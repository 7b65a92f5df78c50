"""Maps of any layer after a run: of its very rows while memory holds them, else of lanes led up to that layer again."""

import pytest
import torch

from kvq_core.analysis.looks import REPLAYED, cosines_at, looked_at, most_steps_at, noise, steps_at
from kvq_core.capture.layer_maps import layer_maps
from kvq_core.engine import prompt_memory
from kvq_core.engine.prompt_memory import READINGS
from kvq_core.errors import SpecError
from kvq_core.pipeline.added import adding_on, spec_of
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.layer_look import held_maps, look_at, look_held, looking_on, spec_of_look
from kvq_core.record.events import Finished, Prefill, Replaying
from kvq_core.record.store import open_store
from kvq_core.record.subset import part_of
from kvq_core.spec import Lane, parse_spec
from tests.core.pipeline.test_batches import KINDS, PROMPT
from tests.support.every_lane import EVERY
from tests.support.tiny_models import tiny
from ui.figures.subspace import _angles
from ui.service.records import RecordCache
from ui.service.replays import with_maps
from ui.words.views import why_empty

ADDED = Lane(label="added", method="per_token", knobs={"bits": 2, "group_size": 8})
STEPS = 23


@pytest.fixture(scope="module")
def model(smollm):
    return tiny("qwen2", tokenizer=smollm.tokenizer)


@pytest.fixture(autouse=True)
def _nothing_held():
    READINGS.clear()


def spec(**changes: object):
    told = {"prompt": PROMPT, "chat": False, "max_new_tokens": STEPS + 1, "ignore_eos": True, "lanes": list(KINDS[:2])}
    return parse_spec({**told, **changes})


def run(model, store=None, **changes) -> Finished:
    *_, last = compare_on(model, spec(**changes), store)
    assert isinstance(last, Finished)
    return last


def maps_of(arrays, lane: int, at: int = 0) -> torch.Tensor:
    return arrays[f"lane/{lane}/delta_map"][at].float() * arrays[f"lane/{lane}/delta_scale"][at][..., None, None]


def check_same(found, captured: Finished, lane: int, other: int, layer: int, near: float | None) -> None:
    """``near``: how far apart maps may be, relative; None: as far as the order of sums moves them."""
    own, there = maps_of(found, other), maps_of(captured.arrays, lane, layer)
    codes = [x[f"lane/{i}/delta_map"][at].int() for x, i, at in ((found, other, 0), (captured.arrays, lane, layer))]
    rows = [
        x[f"lane/{i}/attention_rows"][:, at].int() for x, i, at in ((found, other, 0), (captured.arrays, lane, layer))
    ]
    kls = found[f"lane/{other}/looked_kl"], captured.arrays[f"lane/{lane}/attention_kl"][:, layer]
    offsets = found[f"lane/{other}/looked_offset"].float(), captured.arrays[f"lane/{lane}/delta_offset"][layer].float()
    quantiles = [
        x[f"lane/{i}/key_quantiles"][at].float() for x, i, at in ((found, other, 0), (captured.arrays, lane, layer))
    ]
    assert (rows[0] - rows[1]).abs().max() <= 1
    if near is None:
        assert (codes[0] - codes[1]).abs().max() <= 1 and (codes[0] != codes[1]).float().mean() < 0.03
        assert torch.allclose(*kls, rtol=1e-3, atol=2e-6) and torch.allclose(*offsets, rtol=2e-3, atol=2e-4)
        assert torch.equal(*quantiles)
    else:
        assert ((own - there).norm() / there.norm()).item() < near
        assert torch.allclose(*kls, rtol=5e-2, atol=1e-4) and torch.allclose(*quantiles, atol=3e-2)


LANES = [
    lane for kind, lanes in EVERY.items() for lane in lanes if kind in ("papers", "variants", "selection", "tiles")
]
GROUPS = [LANES[first : first + 8] for first in range(0, len(LANES), 8)]


@pytest.mark.long("combine", sample=2)
@pytest.mark.parametrize("lanes", GROUPS, ids=[group[0].label for group in GROUPS])
def test_what_rows_left_gives_the_maps_that_a_run_captures_in_every_layer(model, lanes):
    lanes = [lane for lane in lanes if lane.why_not(model.shape) is None]
    whole = run(model, capture={"layers": "all", "detail": "deep"}, lanes=[lane.model_dump() for lane in lanes])
    done = [at for at, lane in enumerate(whole.record.lanes) if lane.status == "done"]
    assert len(done) >= len(lanes) - 1, "without codebooks CommVQ has nothing to read"
    for layer in range(model.shape.layers):
        found = held_maps(whole.record, done, layer)
        assert found.attention_steps == whole.record.capture.attention_steps == list(range(STEPS))
        assert found.step_edges == whole.record.capture.step_edges
        assert found.position_edges == whole.record.capture.position_edges
        rows = [x["reference/attention_rows"] for x in (found.arrays, whole.arrays)]
        assert (rows[0][:, 0].int() - rows[1][:, layer].int()).abs().max() <= 1
        for at, lane in enumerate(done):
            check_same(found.arrays, whole, lane, at, layer, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.9},
        {"continuation": PROMPT[:60], "score_chunk": 3},
        {"stress": {"key_outlier_scale": 8.0}},
        {"lanes": [*KINDS, *KINDS]},
    ],
    ids=["sampled", "continuation", "stress", "batches"],
)
def test_so_it_does_of_every_kind_of_run(model, changes):
    whole = run(model, capture={"layers": [1], "detail": "deep"}, **changes)
    lanes = [at for at, lane in enumerate(whole.record.lanes) if lane.status == "done"]
    found = held_maps(whole.record, lanes, 1)
    for at, lane in enumerate(lanes):
        own, there = maps_of(found.arrays, at), maps_of(whole.arrays, lane)
        assert torch.allclose(own, there, atol=0.02 * float(there.abs().max()))


@pytest.mark.parametrize("name", ["qwen2", "llama-mha", "gemma2"])
def test_a_layer_is_looked_at_by_passes_that_stop_there(smollm, name):
    model = tiny(name, tokenizer=smollm.tokenizer)
    whole = run(model, capture={"layers": "all", "detail": "deep"})
    for lane in (0, 1):
        check_same(held_maps(whole.record, [0, 1], 1).arrays, whole, lane, lane, 1, None)
    READINGS.clear()
    called: list[int] = []
    layers = model.model.model.layers
    hooks = [layer.register_forward_hook(lambda *_, at=at: called.append(at)) for at, layer in enumerate(layers)]
    try:
        events = list(looking_on(model, whole.record, [0, 1], 1))
    finally:
        for hook in hooks:
            hook.remove()
    passes = [event.done for event in events if isinstance(event, Replaying)]
    assert passes == sorted(set(passes)) and passes[-1] == STEPS
    assert [event.done for event in events if isinstance(event, Prefill)], "it was read again"
    above = called.count(0) - called.count(2)
    assert called.count(2) and above == len(passes), "no pass went beyond layer 1"
    look = events[-1]
    assert look.record.parent == whole.record.id and look.record.capture.layers == [1]
    for lane in (0, 1):
        check_same(look.arrays, whole, lane, lane, 1, 1e-2)
    assert look_held(whole.record, [0, 1], 0) is not None, "layers below are there as well"
    assert look_held(whole.record, [0, 1], 2) is None
    again = list(looking_on(model, whole.record, [0, 1], 2))
    assert not [event for event in again if isinstance(event, Prefill)], "the prompt is held"
    assert not any("looked_kld" in name for name in look.arrays), "its passes came to no logits"
    for lane in (0, 1):
        here, recorded = again[-1].arrays[f"lane/{lane}/looked_kld"], whole.arrays[f"lane/{lane}/kld"]
        assert here.shape == recorded.shape and here.mean().item() == pytest.approx(recorded.mean().item(), rel=0.05)
    assert look_held(whole.record, [1], 1) is not None


@pytest.mark.long("combine", sample=2)
@pytest.mark.parametrize("lanes", GROUPS, ids=[group[0].label for group in GROUPS])
def test_lanes_of_all_kinds_are_led_up_to_a_layer(model, lanes):
    lanes = [lane for lane in lanes if lane.why_not(model.shape) is None]
    whole = run(model, capture={"layers": "all", "detail": "deep"}, lanes=[lane.model_dump() for lane in lanes])
    READINGS.clear()
    done = [at for at, lane in enumerate(whole.record.lanes) if lane.status == "done"]
    *_, look = looking_on(model, whole.record, done, 1)
    for at, lane in enumerate(done):
        own, there = maps_of(look.arrays, at), maps_of(whole.arrays, lane, 1)
        assert ((own - there).norm() / there.norm().clamp_min(1e-3)).item() < 0.1, whole.record.lanes[lane].label


def test_maps_stand_beside_the_run_with_how_far_they_are_from_what_was_recorded(model):
    store = open_store()
    parent = run(model, store, capture={"layers": [0], "heads": [1]})
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    assert looked_at(record, arrays, 0, 1) == (record, arrays)
    assert looked_at(record, arrays, 1, 2) is None and not noise(record, arrays, 1, 2)
    (missed, *_) = set(range(STEPS)) - set(record.capture.attention_steps)
    assert steps_at(record, arrays, 0, 1, missed) is None, "exactly that step, or nothing"
    READINGS.clear()
    *_, found = looking_on(model, record, [0, 1], 1, store)
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    assert len(record.lanes) == 2, "what is looked at is no lane"
    seen, own = looked_at(record, arrays, 1, 2)
    assert seen.capture.layers == [1] and len(seen.capture.heads) == model.shape.query_heads
    assert seen.capture.attention_steps == list(range(STEPS)), "every step"
    (told,) = noise(record, arrays, 1, 2)
    steps = record.capture.attention_steps
    kept = [float(arrays[f"lane/{lane}/attention_kl"][:, 1, 2].mean()) for lane in (0, 1)]
    here = [float(found.arrays[f"lane/{lane}/looked_kl"][steps, 2].mean()) for lane in (0, 1)]
    assert "layer 1, query head 2" in told.of and [label for label, *_ in told.lanes] == ["KIVI", "KIVI (2)"]
    assert [recorded for *_, recorded in told.lanes] == pytest.approx(kept)
    assert [now for _, now, _ in told.lanes] == pytest.approx(here)
    assert here == pytest.approx(kept, rel=5e-2)
    *_, last = looking_on(model, record, [0, 1], 2, store)
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    kld, _ = noise(record, arrays, 2, 0)
    assert kld.of == "mean KLD" and [label for label, *_ in kld.lanes] == ["KIVI", "KIVI (2)"]
    assert kld.lanes[0][1:] == pytest.approx(
        [float(x["lane/0/" + n].mean()) for x, n in ((last.arrays, "looked_kld"), (parent.arrays, "kld"))]
    )
    part, of_part = part_of(record, arrays, [1])
    assert torch.equal(looked_at(part, of_part, 1, 2)[1]["lane/0/delta_map"], own["lane/1/delta_map"])
    with pytest.raises(SpecError, match="layer = 9 does not exist; the model has layers 0 to 2"):
        spec_of_look(parent.record, [0], 9)
    with pytest.raises(SpecError, match="No lane was given"):
        spec_of_look(parent.record, [], 1)


def test_maps_from_memory_are_drawn_unasked_and_kept_when_that_is_asked(model):
    store = open_store()
    parent = run(model, store, capture={"layers": [0], "heads": [1]})
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    drawn = with_maps(record, 2)
    assert with_maps(record, 2) is drawn is not record, "made once"
    seen, own = most_steps_at(drawn, arrays, 2, 3)
    assert len(seen.capture.attention_steps) == STEPS and not noise(drawn, arrays, 2, 3)
    assert [run.id for run in store.list()] == [parent.record.id], "nothing is kept of it"
    kept = look_at(parent.record.id, 2, store)
    assert kept.notes == [REPLAYED] and {run.id for run in store.list()} == {parent.record.id, kept.id}
    assert look_held(record, [0, 1], 2, store).reused
    READINGS.clear()
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    assert with_maps(record, 2) is record and with_maps(record, 1) is record
    assert torch.equal(looked_at(record, arrays, 2, 3)[1]["lane/1/delta_map"], own["lane/1/delta_map"])


def test_angles_of_any_rank_are_those_that_runs_keep_of_some(model):
    parent = run(model)
    record, arrays = parent.record, parent.arrays
    assert _angles(record, arrays, 1, 1, 4, "key_key", 0) is None, "rank 4 was not kept"
    drawn = with_maps(record, 1)
    for pair, lane in (("query_key", None), ("query_key", 1), ("key_key", 0)):
        assert cosines_at(drawn, 1, pair, lane).shape == (2, 32, 32)
        kept = _angles(drawn, arrays, 1, 1, 5, pair, lane)
        own = _angles(drawn, {}, 1, 1, 5, pair, lane)
        assert own == pytest.approx(kept, abs=0.2) and len(_angles(drawn, arrays, 1, 1, 4, pair, lane)) == 4


def test_a_lane_that_was_added_is_seen_beside_those_of_the_run(model):
    store = open_store()
    parent = run(model, store)
    *_, child = adding_on(model, parent.record, spec_of(parent.record, [ADDED]), store)
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    found = held_maps(record, [0, 1, 2], 1)
    whole = run(model, capture={"layers": [1], "detail": "deep"}, lanes=[*KINDS[:2], ADDED.model_dump(mode="json")])
    for lane in (0, 1, 2):
        own, there = maps_of(found.arrays, lane), maps_of(whole.arrays, lane)
        assert ((own - there).norm() / there.norm()).item() < 2e-2
    look = look_held(record, [0, 1, 2], 1, store)
    assert look.record.parent == parent.record.id and [lane.label for lane in look.record.lanes][2] == "added"
    record, arrays = RecordCache(store).whole({"run": parent.record.id})
    assert "lane/2/delta_map" in looked_at(record, arrays, 1, 0)[1]


def test_what_only_maps_are_made_from_makes_way_first(model, monkeypatch):
    parent = run(model)
    (reading,) = READINGS._held.values()
    without = reading.prefill.nbytes
    assert reading.nbytes > without and READINGS.replay(parent.record.id) is not None
    free = 4 * without + 8 - reading.nbytes
    monkeypatch.setattr(prompt_memory, "free_bytes", lambda device: free)
    READINGS.keep("again", reading)
    assert READINGS.replay(parent.record.id) is None and READINGS.take("again") is reading
    assert held_maps(parent.record, [0, 1], 1) is None and with_maps(parent.record, 1) is parent.record


def test_a_log_gives_up_rather_than_fill_memory(model, monkeypatch):
    from kvq_core.engine import replaying

    monkeypatch.setattr(replaying, "free_bytes", lambda device: 1 << 20)
    parent = run(model)
    assert READINGS.replay(parent.record.id) is None and len(READINGS._held) == 1


def test_a_reference_alone_is_no_map(model):
    parent = run(model)
    assert held_maps(parent.record, [], 1) is None
    place = READINGS.replay(parent.record.id).reference
    assert layer_maps(place, [place], 0).arrays["lane/0/delta_map"].abs().max() == 0


def test_an_answer_of_one_token_has_no_step_to_look_at(model):
    record = run(model, max_new_tokens=1).record
    with pytest.raises(SpecError, match="has no step to look at: the answer is one token, .* nothing was scored"):
        look_at(record, 1)
    assert with_maps(record, 1) is record and held_maps(record, [0], 1) is None


def test_a_run_without_captures_says_what_was_looked_at(model):
    parent = run(model, open_store(), capture={"detail": "off"}, max_new_tokens=4)
    assert "kept no captures; set capture.detail" in why_empty(parent.record)
    for layer, told in ((1, "layer 1 was"), (2, "layers 1 and 2 were")):
        list(looking_on(model, parent.record, [0, 1], layer, open_store()))
        record, _ = RecordCache(open_store()).whole({"run": parent.record.id})
        assert why_empty(record) == f"This run kept no captures of its own; {told} looked at afterwards."
