"""Whole comparisons: one on the bundled model, and others on a tiny one that stands in for it."""

import json
import re

import pytest
import torch

import kvq_core
from kvq_core.errors import SpecError
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import estimate
from kvq_core.pipeline.prompt import render
from kvq_core.record.arrays import ARRAYS, OF_BIASES, OF_CHUNKED_PROMPTS, OF_LOOKS, OF_SOME_METHODS
from kvq_core.record.events import Encoding, Finished, Prefill, Step
from kvq_core.record.fields import Record
from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from tests.support.tiny_models import generate, tiny

FACTS = "The harbour keeps its tide tables by hand and the brass gauge has a paper drum. "
LANES = [
    {"label": "kivi4", "method": "kivi", "knobs": {"bits": 4}},
    {"label": "kivi2", "method": "kivi", "knobs": {"bits": 2}},
    {"label": "squat", "method": "squat", "knobs": {"block_size": 16}},
    {"label": "k only", "method": "kivi", "tensors": "keys"},
    {"label": "some", "method": "per_token", "layers": [0, 2], "sink_tokens": 4},
]


def spec_of(**changes: object) -> kvq_core.ComparisonSpec:
    return parse_spec(
        {"prompt": "Tell me about the harbour. " + FACTS * 12, "max_new_tokens": 52, "lanes": LANES, **changes}
    )


@pytest.fixture(scope="module")
def finished(smollm) -> Finished:
    *_, last = compare(spec_of())
    assert isinstance(last, Finished)
    return last


@pytest.fixture
def stand_in(smollm, monkeypatch):
    """What runs of this test are on: a tiny model with the bundled one's tokenizer."""
    model = tiny("llama", tokenizer=smollm.tokenizer)
    monkeypatch.setattr("kvq_core.pipeline.compare.load", lambda *_: model)
    return model


def test_reference_is_generate_token_for_token(smollm, finished: Finished) -> None:
    reference = finished.record.reference
    assert reference.token_ids == generate(smollm, reference.prompt_token_ids, 52, ignore_eos=False)
    assert reference.text == smollm.tokenizer.decode(reference.token_ids, skip_special_tokens=True)
    assert "".join(reference.tokens) == reference.text


def test_fidelity_is_ordered_and_complete(finished: Finished) -> None:
    lanes = {lane.label: lane for lane in finished.record.lanes}
    floor = finished.record.noise_floor.metrics
    assert floor is not None and floor.kld_mean is not None
    scored = len(finished.record.reference.token_ids) - 1
    assert floor.n_scored == scored >= 50
    assert floor.kld_mean < 1e-5 < lanes["kivi4"].metrics.kld_mean < lanes["kivi2"].metrics.kld_mean
    for lane in lanes.values():
        values = lane.metrics.model_dump(exclude={"perplexity_block", "first_divergence", "prompt"})
        assert all(value is not None for value in values.values()), lane.label
        assert lane.metrics.n_scored == scored and lane.status == "done" and "too_few_positions" not in lane.flags
        assert len(lane.metrics.perplexity_block) == 34
    assert lanes["k only"].metrics.value_rmse < 0.5 * lanes["kivi2"].metrics.value_rmse
    assert lanes["some"].metrics.layers_quantized == 2 and "partly_engaged" not in lanes["some"].flags


def test_memory_counts_real_bytes(finished: Finished) -> None:
    shape = finished.record.environment
    for lane in finished.record.lanes:
        memory = lane.memory
        assert memory is not None
        elements = shape.layers * shape.kv_heads * shape.head_dim * memory.tokens
        parts = memory.bytes_by_part
        for kind, bits in (("key", memory.key_bits), ("value", memory.value_bits)):
            assert bits == pytest.approx(8 * sum(n for p, n in parts.items() if p.startswith(kind)) / elements)
        assert memory.kv_ratio == pytest.approx(sum(parts.values()) / (4 * elements))
    kivi = finished.record.lanes[1].memory
    assert (kivi.key_bits_quantized, kivi.value_bits_quantized) == (3.0, 3.0)
    tokens, packed = kivi.tokens, kivi.tokens - kivi.tokens % 32
    assert kivi.key_bits == pytest.approx((3 * packed + 16 * (tokens - packed)) / tokens)
    assert finished.record.lanes[3].memory.value_bits == 16.0


def test_free_texts_part_where_they_say(finished: Finished) -> None:
    reference = finished.record.reference.token_ids
    for lane in finished.record.lanes:
        at = lane.metrics.first_divergence
        if at is None:
            assert lane.token_ids == reference
        else:
            assert lane.token_ids[:at] == reference[:at] and lane.token_ids[at] != reference[at]
            assert lane.metrics.matched_prefix == at
        assert "".join(lane.tokens) == lane.text


def test_arrays_are_the_documented_ones(finished: Finished) -> None:
    documented = {re.sub(r"\{i\}", "0", name) for name in ARRAYS}
    held = {re.sub(r"^lane/\w+/", "lane/0/", name) for name in finished.arrays}
    assert held <= documented
    apart = OF_SOME_METHODS + OF_CHUNKED_PROMPTS + OF_LOOKS + OF_BIASES
    assert {name for name in documented - held if not name.endswith(apart)} == set()
    kivi = {name.removeprefix("lane/0/") for name in finished.arrays if name.startswith("lane/0/")}
    assert {"key_code_counts", "value_code_counts"} <= kivi
    assert all(torch.isfinite(t.float()).all() for t in finished.arrays.values())
    assert sum(t.numel() * t.element_size() for t in finished.arrays.values()) < 64e6
    positions = finished.record.noise_floor.metrics.n_scored
    assert finished.arrays["lane/0/kld"].mean().item() == pytest.approx(
        finished.record.lanes[0].metrics.kld_mean, rel=1e-5
    )
    assert finished.arrays["lane/0/delta_mean"].shape == (30, 9, positions)
    energy = finished.arrays["lane/1/key_error_energy"]
    assert (energy.sum(-1) > 0).all()


def test_every_token_of_the_top_lists_has_its_text(smollm, finished: Finished) -> None:
    words = finished.record.vocabulary
    for name in ("reference/topk_ids", "lane/0/topk_ids", "lane/noise/topk_ids"):
        for id in finished.arrays[name].flatten().tolist():
            assert words[id] == smollm.tokenizer.decode([id])


def test_bit_map_agrees_with_the_bytes(finished: Finished) -> None:
    for index, lane in enumerate(finished.record.lanes):
        for kind in ("key", "value"):
            bits = finished.arrays[f"lane/{index}/{kind}_bits"].float()
            assert bits.shape[2] == lane.memory.tokens
            told = finished.arrays[f"lane/{index}/{kind}_bits"].dtype == torch.float32
            assert bits.mean().item() == pytest.approx(getattr(lane.memory, f"{kind}_bits"), rel=1e-6 if told else 5e-4)
            # what no layer has alone is exact, to far less than 1/64 bit
            assert told or bits.shape[0] > 1, lane.label


def test_record_survives_json(finished: Finished) -> None:
    text = finished.record.model_dump_json()
    assert Record.model_validate_json(text) == finished.record
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_events_tell_the_story_in_order(stand_in) -> None:
    spec = parse_spec({"prompt": "Say hi to the harbour master.", "max_new_tokens": 12, "lanes": LANES[:1]})
    events = list(compare(spec))
    kinds = [type(event).__name__ for event in events]
    order = ["Loading", "Prefill", "Encoding", "Step", "Summarizing", "Finished"]
    assert sorted(set(kinds), key=kinds.index) == order
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.done for step in steps] == sorted({step.done for step in steps}) and steps[-1].done <= 12
    lane = steps[-1].lanes[0]
    assert len(lane.kld) == len(lane.same_top) == len(steps[-1].tokens) - 1
    assert [e.label for e in events if isinstance(e, Encoding)] == ["kivi4", "Noise floor"]


def test_a_short_prompt_is_flagged_as_never_engaged(smollm) -> None:
    spec = parse_spec(
        {"prompt": "Say hi.", "max_new_tokens": 4, "lanes": [{"method": "kivi", "knobs": {"residual_length": 64}}]}
    )
    guess = estimate(spec)
    assert guess.lanes[0].key_tokens == guess.lanes[0].value_tokens == 0 and "nothing" in (guess.lanes[0].warning or "")
    record = kvq_core.run(spec)
    assert "never_engaged" in record.lanes[0].flags and record.lanes[0].metrics.tokens_quantized == 0
    assert "too_few_positions" in record.lanes[0].flags


def test_estimate_agrees_with_what_happens(finished: Finished) -> None:
    guess = estimate(spec_of())
    assert guess.prompt_tokens == len(finished.record.reference.prompt_token_ids) and guess.context == 8192
    for told, lane in zip(guess.lanes, finished.record.lanes, strict=True):
        held = lane.metrics.tokens_quantized
        assert max(told.key_tokens, told.value_tokens) >= held > 0 and told.warning is None
    assert guess.cost.seconds is not None and guess.cost.seconds > 0 and guess.bytes > 5e8


def test_continuation_scores_given_text(stand_in) -> None:
    text = " The gauge was read every six minutes, and the old books are still in the town archive."
    base = {"prompt": FACTS * 5, "chat": False, "continuation": text, "lanes": LANES[:2], "capture": {"detail": "off"}}
    one, chunked = (kvq_core.run(parse_spec({**base, "score_chunk": chunk})) for chunk in (1, 8))
    positions = len(stand_in.encode(text)) - 1
    for record in (one, chunked):
        assert record.reference.finish == "continuation" and record.reference.text == text
        assert record.lanes[1].metrics.n_scored == positions and record.lanes[1].text == ""
    assert one.reference.ppl == pytest.approx(chunked.reference.ppl, rel=1e-3)
    assert one.lanes[1].metrics.kld_mean > one.noise_floor.metrics.kld_mean


def test_a_lane_that_cannot_run_is_red_and_alone(stand_in) -> None:
    lanes = [{"label": "odd", "method": "per_token", "knobs": {"group_size": 48}}, LANES[0]]
    record = kvq_core.run(spec_of(lanes=lanes, max_new_tokens=4))
    assert [lane.status for lane in record.lanes] == ["failed", "done"]
    assert "group_size = 48 does not divide head_dim = 32" in record.lanes[0].error
    assert record.lanes[0].metrics is None and record.lanes[1].metrics.kld_mean > 0


def test_cancelling_stops_at_once_and_keeps_nothing(stand_in, tmp_path) -> None:
    store = open_store(str(tmp_path))
    events = compare(spec_of(), store)
    for event in events:
        if isinstance(event, Step) and event.done >= 3:
            break
    events.close()
    assert store.list() == []
    again = compare(spec_of(), store)
    assert any(isinstance(event, Prefill) for event in (next(again), next(again)))
    again.close()


def test_a_stored_run_is_not_computed_again(stand_in, tmp_path) -> None:
    store = open_store(str(tmp_path))
    spec = parse_spec({"prompt": "Say hi.", "max_new_tokens": 3, "lanes": LANES[:1]})
    first = kvq_core.run(spec, store)
    events = list(compare(spec, store))
    assert [type(e).__name__ for e in events] == ["Loading", "Finished"] and events[-1].reused
    assert events[-1].record == first
    other = kvq_core.run(parse_spec({**spec.model_dump(mode="json"), "seed": 1}), store)
    assert other.id != first.id and len(store.list()) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": "word " * 9000}, "shorten the prompt by"),
        ({"capture": {"layers": [30]}}, "layers 0 to 29"),
        ({"capture": {"heads": [9]}}, "heads 0 to 8"),
        ({"lanes": [{"method": "kivi", "layers": [99]}]}, "layer 99 does not exist"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(smollm, changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        render(smollm, spec_of(**changes))


def test_one_token_scores_nothing_and_is_a_run(stand_in) -> None:
    record = kvq_core.run(spec_of(max_new_tokens=1))
    assert len(record.reference.token_ids) == 1 and record.capture.step_edges == [0, 0]
    for lane in record.lanes:
        assert lane.metrics.n_scored == 0 and lane.metrics.kld_mean is None and lane.metrics.key_rmse > 0


def test_sampling_is_reproducible_and_shared(stand_in) -> None:
    base = {
        "prompt": "Tell a short story about a lighthouse.",
        "max_new_tokens": 8,
        "temperature": 0.9,
        "lanes": LANES[:1],
        "capture": {"detail": "off"},
    }
    first, again = (kvq_core.run(parse_spec({**base, "seed": 3})) for _ in range(2))
    other = kvq_core.run(parse_spec({**base, "seed": 4}))
    assert first.reference.text == again.reference.text != other.reference.text
    assert first.noise_floor.token_ids == first.reference.token_ids
