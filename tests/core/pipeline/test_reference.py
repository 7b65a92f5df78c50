"""A reference that is another file: lanes of several files against the same logits, kept once a prompt."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvq_core.errors import SpecError
from kvq_core.models import in_memory, load
from kvq_core.pipeline.added import add_lane
from kvq_core.pipeline.compare import against, compare
from kvq_core.record.events import Finished
from kvq_core.record.store import Store, open_store
from kvq_core.spec import ComparisonSpec, Lane, links, parse_spec
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import study
from tests.support.study_models import LANES, prompt, study_data, write_model
from ui.form.values import FIELDS, from_comparison, to_comparison

TALK = {"prompt": "", "chat": True, "messages": [{"role": "user", "content": "w1"}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """A model, the same with its weights in 6 and in 4 bits a row, and one whose tokenizer is another."""
    place = tmp_path_factory.mktemp("files")
    found = {"whole": write_model(place / "whole")}
    for bits in (6, 4):
        found[str(bits)] = write_model(place / str(bits))
        model = AutoModelForCausalLM.from_pretrained(found["whole"])
        for weight in model.parameters():
            if weight.dim() > 1:
                step = weight.data.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
                weight.data = (weight.data / step).round() * step
        model.save_pretrained(found[str(bits)])
    found["other"] = write_model(place / "other")
    words = (place / "other" / "tokenizer.json").read_text()
    (place / "other" / "tokenizer.json").write_text(words.replace('"w5"', '"x5"'))
    return found


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(str(tmp_path / "store"))


def spec_of(files: dict[str, Path], model: str = "4", reference: str | None = "whole", **changes) -> ComparisonSpec:
    told = {"model": str(files[model]), "prompt": prompt(1), "chat": False, "ignore_eos": True, "max_new_tokens": 12}
    against = {} if reference is None else {"reference": str(files[reference])}
    return parse_spec({**told, **against, "capture": {"detail": "off"}, "lanes": LANES, **changes})


def finished(spec: ComparisonSpec, store: Store | None = None) -> Finished:
    if store is None:
        return once(spec.canonical())
    *_, event = compare(spec, store)
    return event


@cache
def once(spec: str) -> Finished:
    """For all tests, as nothing is kept of it."""
    *_, event = compare(parse_spec(json.loads(spec)))
    return event


def plain_logits(model: Path, ids: list[int]) -> torch.Tensor:
    """transformers' own, (tokens, vocabulary) float64."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    with torch.no_grad():
        return loaded(torch.tensor([ids])).logits[0]


@pytest.mark.slow
def test_lanes_of_two_files_are_scored_against_the_same_logits(files, store):
    """The floor's KLD, whose cache is whole, is that of two plain forward passes over the reference's own answer."""
    found = {model: finished(spec_of(files, model), store).record for model in ("6", "4")}
    texts = {record.reference.text for record in found.values()}
    plain = finished(spec_of(files, "whole", None)).record
    assert texts == {plain.reference.text} and found["4"].id != found["6"].id
    assert len(list((Path(store.root) / "references").iterdir())) == 1, "kept once a prompt"
    for model, record in found.items():
        ids = record.reference.prompt_token_ids + record.reference.token_ids
        scored = slice(len(record.reference.prompt_token_ids), len(ids) - 1)
        p, q = (plain_logits(files[name], ids)[scored].log_softmax(-1) for name in ("whole", model))
        expected = (p.exp() * (p - q)).sum(-1).mean().item()
        assert record.noise_floor.metrics.kld_mean == pytest.approx(expected, rel=0.02)
        assert record.environment.reference.model_title == "whole"
        assert record.environment.weights_bytes == sum(f.stat().st_size for f in files[model].glob("*.safetensors"))
    assert found["4"].noise_floor.metrics.kld_mean > 2 * found["6"].noise_floor.metrics.kld_mean > 0


@pytest.mark.slow
def test_a_reference_that_is_the_model_itself_changes_the_id_and_no_figure(files):
    one, other = finished(spec_of(files, "4", None)), finished(spec_of(files, "4", "4"))
    assert one.record.id != other.record.id and one.record.reference.text == other.record.reference.text
    for at in range(len(LANES)):
        assert torch.allclose(one.arrays[f"lane/{at}/kld"], other.arrays[f"lane/{at}/kld"], atol=1e-5)
        assert one.record.lanes[at].text == other.record.lanes[at].text
        assert one.record.lanes[at].metrics.near_tie_margin == other.record.lanes[at].metrics.near_tie_margin


@pytest.mark.slow
def test_given_text_is_scored_against_the_reference(files):
    record = finished(spec_of(files, continuation=prompt(2, 10))).record
    assert record.reference.finish == "continuation" and record.lanes[0].metrics.n_scored == 9
    assert record.lanes[0].metrics.kld_mean > 0


@pytest.mark.slow
def test_what_is_kept_is_checked_when_it_is_read_and_only_one_model_is_held(files, store, monkeypatch):
    loads = []
    monkeypatch.setattr("kvq_core.pipeline.answer.load", lambda id: loads.append(id) or load(id))
    first = finished(spec_of(files), store).record
    finished(spec_of(files, "6"), store)
    assert len(loads) == 1 and in_memory(str(files["whole"])) is None
    (file,) = (Path(store.root) / "references").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    again = finished(spec_of(files, notes="again"), store).record
    assert len(loads) == 2 and again.lanes[0].metrics.kld_mean == first.lanes[0].metrics.kld_mean


@pytest.mark.slow
def test_ids_without_a_reference_stay_and_with_one_tell_its_content(files, tmp_path):
    assert "reference" not in spec_of(files, "4", None).canonical()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in files["whole"].iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    here, there = finished(spec_of(files)).record, finished(spec_of({**files, "whole": moved})).record
    assert here.id == there.id != finished(spec_of(files, "4", "6")).record.id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reference": "other"}, "has another tokenizer than 4: .x5. is token 5 there and none here"),
        ({**TALK, "score_turns": "all"}, 'score_turns = "all" and reference are both given'),
        ({"score_prompt": "all"}, 'score_prompt = "all" and reference are both given'),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(files, changes, said):
    with pytest.raises(SpecError, match=said):
        finished(spec_of(files, **changes))


@pytest.mark.slow
def test_no_lane_is_added_to_a_run_that_another_file_is_the_reference_of(files):
    record = finished(spec_of(files)).record
    with pytest.raises(SpecError, match="is scored against the logits of another file, 'whole'"):
        add_lane(record, Lane(method="fp16"))


def test_a_public_instance_keeps_no_logits(files, monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "some/model")
    with pytest.raises(SpecError, match="reference is not offered on this instance"):
        next(against(spec_of(files), None))


@pytest.mark.slow
def test_a_lane_that_reads_the_prompt_through_its_cache_is_scored_at_the_first_token(files):
    lanes = [{**LANES[0], "prefill": "16 raw"}]
    record = finished(spec_of(files, lanes=lanes)).record
    ids = record.reference.prompt_token_ids
    metrics = record.lanes[0].metrics.prompt
    p, q = (plain_logits(files[name], ids)[-1].log_softmax(-1) for name in ("whole", "4"))
    assert metrics.n_scored == 1 and metrics.first_token_kld == pytest.approx(
        (p.exp() * (p - q)).sum().item(), rel=0.5
    ), "the weights' distance, and the cache's on top"


@pytest.mark.slow
def test_the_reference_survives_links_the_form_and_a_study(files, store):
    spec = spec_of(files)
    assert links.decode(links.encode(spec)).reference == spec.reference
    values, lanes, rest = from_comparison(spec)
    assert to_comparison(dict(zip(FIELDS, values, strict=True)), lanes, rest).reference == spec.reference
    data = study_data(files["4"], 2, reference=str(files["whole"]))
    data["models"] = [str(files[name]) for name in ("4", "6")]
    asked = parse_study(data)
    result = study(asked, store)
    alone = finished(result.plan.cells[0].spec, store)
    assert alone.reused and alone.record.id == result.plan.cells[0].id
    assert len(list((Path(store.root) / "references").iterdir())) == 2
    line = result.lanes.iloc[0]
    assert line["total_bytes"] == line["weights_bytes"] + line["cache_bytes"]
