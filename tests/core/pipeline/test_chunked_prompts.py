"""A whole run of lanes that read the prompt through their caches: what is recorded of them."""

from dataclasses import replace

import pytest
import torch

from kvq_core.models import LoadedModel
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.estimate import estimate
from kvq_core.pipeline.timings import UNKNOWN_COST
from kvq_core.record.events import Filling, Finished
from kvq_core.spec import ComparisonSpec, parse_spec
from tests.support.tiny_models import tiny

TOKEN = {"method": "per_token", "knobs": {"group_size": 32, "residual_length": 0}}
TEXT = "The harbour master wrote down every ship that came in, its port, its cargo and its draught. " * 8


def spec_of(**changes: object) -> ComparisonSpec:
    lanes = [
        {"label": "full", **TOKEN},
        {"label": "raw", "prefill": "64", **TOKEN},
        {"label": "stored", "prefill": {"chunk": 32, "own_chunk": "stored"}, **TOKEN},
        {"label": "long", "prefill": "4096", **TOKEN},
        {"label": "home", "prefill": "deployed", **TOKEN},
    ]
    given = {"prompt": TEXT, "max_new_tokens": 4, "ignore_eos": True, "capture": {"detail": "off"}, "lanes": lanes}
    return parse_spec(given | changes)


@pytest.fixture(scope="module")
def model(smollm: LoadedModel) -> LoadedModel:
    return tiny("llama", tokenizer=smollm.tokenizer)


@pytest.fixture(scope="module")
def events(model: LoadedModel) -> list[object]:
    return list(compare_on(model, spec_of()))


def finished(events: list[object]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.slow
def test_progress_names_the_lane_and_ends_with_the_prompt(events: list[object]) -> None:
    filling = [event for event in events if isinstance(event, Filling)]
    tokens = len(finished(events).record.reference.prompt_token_ids)
    ends = [event.labels for event in filling if event.done == event.total == tokens]
    assert ends == [["raw"], ["stored"]]


@pytest.mark.slow
def test_prompt_scores_are_figures_of_their_own(events: list[object]) -> None:
    record, arrays = finished(events).record, finished(events).arrays
    tokens = len(record.reference.prompt_token_ids)
    full, raw, stored, long, home = (lane.metrics for lane in record.lanes)
    for lane in (full, long, home):
        assert lane is not None and lane.prompt is None
    assert all(lane.metrics is not None and lane.metrics.n_scored == 3 for lane in record.lanes)
    positions = arrays["prompt/positions"].tolist()
    assert positions == list(range(64, tokens))  # the longest chunk that divides the prompt: the same for both lanes
    for at, lane in ((1, raw), (2, stored)):
        assert lane is not None and lane.prompt is not None
        kld = arrays[f"lane/{at}/prompt_kld"]
        assert lane.prompt.n_scored == len(kld) == len(positions)
        assert lane.prompt.kld_mean == pytest.approx(kld.double().mean().item())
        assert lane.prompt.first_token_kld == pytest.approx(kld[-1].item())
        assert 0.03 < lane.prompt.own_key_error < 0.2
    assert "lane/0/prompt_kld" not in arrays and "lane/3/prompt_kld" not in arrays


@pytest.mark.slow
def test_cards_say_how_a_lane_read_the_prompt(events: list[object]) -> None:
    full, raw, stored, long, home = finished(events).record.lanes
    assert full.prefill == "full" and not any("prompt" in note for note in full.notes)
    assert raw.prefill == {"chunk": 64, "own_chunk": "raw", "fit": "prompt"}
    assert any("chunks of 64, the own chunk as computed" in note for note in raw.notes)
    assert any("as stored, in decoding too" in note for note in stored.notes)
    assert any("fits into one chunk of 4096" in note for note in long.notes)
    assert any("no engine reads prompts through Per token's cache" in note for note in home.notes)


@pytest.mark.slow
def test_what_fits_into_one_chunk_is_a_full_prefill(model: LoadedModel) -> None:
    """Each alone: in one batch, a row's place there may move its last digits."""
    full, raw, _, long, home = ({**lane.model_dump(mode="json"), "label": "one"} for lane in spec_of().lanes)
    whole, *others = (
        finished(list(compare_on(model, spec_of(lanes=[lane])))).arrays["lane/0/kld"]
        for lane in (full, long, home, raw)
    )
    assert [torch.equal(kld, whole) for kld in others] == [True, True, False]


@pytest.mark.slow
def test_the_estimate_counts_what_caches_read(smollm: object) -> None:
    plain = estimate(spec_of(lanes=[TOKEN, {**TOKEN, "label": "two"}]))
    through = estimate(spec_of(lanes=[TOKEN, {**TOKEN, "label": "two", "prefill": "64"}]))
    assert any(f"computes {through.prompt_tokens - 64:,} tokens more" in note for note in through.notes)
    assert not any("computes" in note for note in plain.notes)
    assert replace(through, notes=(), cost=UNKNOWN_COST, bytes=0, lanes=[]) == replace(
        plain, notes=(), cost=UNKNOWN_COST, bytes=0, lanes=[]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("how", "count"), [("none", 1), ("all", None)])
def test_how_much_of_the_prompt_is_scored(how: str, count: int | None, model: LoadedModel) -> None:
    asked = spec_of(score_prompt=how, max_new_tokens=2, lanes=[{**TOKEN, "prefill": "64"}])
    done = finished(list(compare_on(model, asked)))
    tokens = len(done.record.reference.prompt_token_ids)
    assert len(done.arrays["prompt/positions"]) == (count or tokens - 64)
    assert model.id == done.record.environment.model
