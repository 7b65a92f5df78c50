"""Layers scored one at a time, and a policy verified, on a tiny model of which one layer's keys cannot stand 4 bits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvq_core.cli.layers import study_prompts
from kvq_core.cli.main import main
from kvq_core.errors import KvqError, SpecError
from kvq_core.machine.progress import Progress
from kvq_core.models import LoadedModel
from kvq_core.recommend import sensitivity as kept
from kvq_core.recommend.held_out import MeasuredPolicy, deployed_lanes, flags_of, verify
from kvq_core.recommend.layer_plans import FP16, TOKENS, Candidate
from kvq_core.recommend.sensitivity import (
    Sensitivity,
    check_scores_model,
    followed_answer,
    key,
    lane_losses,
    score_layers,
)
from kvq_core.recommend.solver import free
from kvq_core.spec import Lane
from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.prompts import StudyPrompt
from tests.support.reading_models import Letters, small

NAME = "per_token:bits=4,residual_length=0"
BAD = 1  # the layer whose keys carry a constant
TEXTS = ["What is kept of a prompt is read again for every token.", "Rivers run to the sea, and the sea is never full."]


class Characters(Letters):
    """As a record asks of a tokenizer."""

    def decode(self, ids: list[int], **options: bool) -> str:
        return super().decode(ids)

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        return str(ids) if isinstance(ids, int) else list(map(str, ids))


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "file_of", lambda id: tmp_path / f"{id}.json")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return replace(small("qwen2", constant=60, layer=BAD), tokenizer=Characters())


def scored(model: LoadedModel, texts: list[str] = TEXTS[:1]) -> tuple[Sensitivity, int]:
    """And how many comparisons it took."""
    *done, found = score_layers(model, [StudyPrompt(prompt=text) for text in texts], [Candidate.parse(NAME)])
    assert isinstance(found, Sensitivity) and all(isinstance(each, Progress) for each in done)
    return found, len(done)


@pytest.mark.slow
def test_scores_name_the_layer_that_costs_most_and_are_added_to(model: LoadedModel) -> None:
    first, runs = scored(model)
    assert runs == 1 and scored(model)[1] == 0, "what was scored is not scored again"
    both, more = scored(model, TEXTS)
    assert more == 1 and both.id == first.id and len(both.whole) == 2
    told = {(each.tensor, each.layer): each for each in both.scores()}
    worst = max(told, key=lambda at: told[at].kld_mean)
    assert worst == ("keys", BAD) and told[worst].kld_low is None
    own = [klds[key(NAME, *worst)] for klds in both.klds.values()]
    assert told[worst].kld_mean == pytest.approx(np.mean(own))


@pytest.mark.slow
def test_scores_of_another_version_of_results_are_not_taken_for_new_ones(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = scored(model)
    monkeypatch.setattr(kept, "RESULTS_VERSION", 0)
    with pytest.raises(KvqError, match=f"Scores {old.id} are of other weights .* or of another version of results"):
        check_scores_model(model, old)
    new, runs = scored(model)
    assert runs == 1 and new.id != old.id


@pytest.mark.slow
def test_a_score_is_that_of_a_run_of_the_lane_alone(model: LoadedModel) -> None:
    found, _ = scored(model)
    prompt, method = StudyPrompt(prompt=TEXTS[0]), Candidate.parse(NAME)
    lane = Lane.model_validate({**method.data, "tensors": "keys", "layers": [BAD]})
    (alone,) = lane_losses(model, prompt, [lane], followed_answer(model, prompt))
    (own,) = found.klds.values()
    assert own[key(NAME, "keys", BAD)] == pytest.approx(alone, rel=0.01)


@pytest.mark.slow
def test_what_was_cut_short_goes_on_where_it_was(model: LoadedModel) -> None:
    found, _ = scored(model)
    (prompt, own), *_ = found.klds.items()
    lost = key(NAME, "values", 0)
    kept.file_of(found.id).unlink()  # what is kept is added to
    kept.keep_scores(found.model_copy(update={"klds": {prompt: {k: v for k, v in own.items() if k != lost}}}))
    again, runs = scored(model)
    assert runs == 1 and again.klds[prompt][lost] == pytest.approx(own[lost], rel=0.01)


def test_intervals_need_some_prompts() -> None:
    names = {key("q4_0", tensor, 0): 1.0 for tensor in ("keys", "values")}
    begun = Sensitivity(id="a", version=1, model="m", layers=1, positions=32, formats=("q4_0",))
    for n in range(FEWEST):
        assert all(each.kld_low is None for each in (begun.scores() if n else []))
        begun = begun.added(str(n), {name: value * (n + 1) for name, value in names.items()})
    told = begun.scores()[0]
    assert told.kld_low is not None and told.kld_high is not None
    assert told.kld_low < told.kld_mean == 3 < told.kld_high


@pytest.fixture
def candidates_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lanes beside those of the candidates."""
    monkeypatch.setattr("kvq_core.recommend.held_out.FORMATS", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("candidates_alone")
def test_a_policy_is_verified_on_prompts_it_has_not_seen(model: LoadedModel) -> None:
    found, _ = scored(model)
    costs = found.costs(model.shape)
    plain = 2 * model.shape.kv_heads * model.shape.head_dim * TOKENS
    assert set(costs.nbytes[..., -1].ravel().tolist()) == {plain} and costs.names == (NAME, FP16)
    bits = (costs.nbytes[..., 0].sum() + plain - costs.nbytes[0, 0, 0]) / costs.nbytes[..., -1].sum() * 16
    assert free(costs, costs.budget(bits + 1e-9)).plan.keys[BAD] == FP16, (
        "there is room for one tensor, and it is the worst"
    )
    *_, policy = verify(model, found, bits + 1e-9, None, [StudyPrompt(prompt=TEXTS[1])])
    assert isinstance(policy, MeasuredPolicy) and policy.beats and policy.flags is None
    assert policy.bytes <= policy.budget and policy.uniform.bytes <= policy.budget
    assert policy.measured == policy.policy.measured < policy.uniform.measured
    with pytest.raises(SpecError, match="has not seen"):
        list(verify(model, found, bits, None, [StudyPrompt(prompt=TEXTS[0])]))


@pytest.mark.slow
@pytest.mark.usefixtures("candidates_alone")
def test_the_uniform_lane_is_the_answer_where_it_is_not_beaten(model: LoadedModel) -> None:
    found, _ = scored(model)
    costs = found.costs(model.shape)
    least = costs.nbytes[..., 0].sum() / costs.nbytes[..., -1].sum() * 16
    *_, policy = verify(model, found, float(least) + 1e-9, None, [StudyPrompt(prompt=TEXTS[1])])
    assert isinstance(policy, MeasuredPolicy) and not policy.beats
    assert policy.lane == policy.uniform.lane and policy.measured == policy.uniform.measured
    assert "layers" not in policy.lane and policy.ends.bytes > policy.budget


@pytest.mark.slow
def test_a_policy_must_beat_what_engines_ship_too(model: LoadedModel) -> None:
    """Of few bits of the candidate, where a shipped format of no more bytes loses far less."""
    found, _ = scored(model)
    budget = found.costs(model.shape).budget(6.0)
    others = deployed_lanes(model.shape, budget, None)
    assert len({each.lane.label for each in others}) == len(others) > 3
    assert all(each.nbytes <= budget for each in others)
    assert {each.lane.every_rule[0].center for each in others} == {"none", "mean"}
    assert "kvarn" not in {each.lane.every_rule[0].method for each in others}, "it has a window"
    own = deployed_lanes(model.shape, budget, "llama.cpp")
    assert own and {each.lane.every_rule[0].center for each in own} == {"none"}
    assert all(flags_of(each.lane, "llama.cpp", model.shape.kinds) for each in own)
    *_, policy = verify(model, found, 6.0, None, [StudyPrompt(prompt=TEXTS[1])])
    assert isinstance(policy, MeasuredPolicy) and policy.uniform.bytes <= policy.budget
    assert policy.uniform.predicted is None and policy.uniform.measured < policy.policy.measured
    assert not policy.beats and policy.lane == policy.uniform.lane


@pytest.mark.slow
def test_a_budget_that_nothing_fits_and_an_engine_without_the_format_are_refused(model: LoadedModel) -> None:
    found, _ = scored(model)
    with pytest.raises(SpecError, match="No policy"):
        list(verify(model, found, 2.0, None, [StudyPrompt(prompt=TEXTS[1])]))
    with pytest.raises(SpecError, match="vLLM has none of"):
        list(verify(model, found, 8.0, "vllm", [StudyPrompt(prompt=TEXTS[1])]))


def test_prompts_are_those_of_a_study(tmp_path: Path) -> None:
    file, text = tmp_path / "prompts.jsonl", tmp_path / "prompts.txt"
    text.write_text("A line.\n\nAnother.\n")
    assert [prompt.prompt for prompt in study_prompts(text)] == ["A line.", "Another."]
    file.write_text('{"id": "b", "prompt": "Another.", "continuation": "Yes."}\n')
    assert study_prompts(file) == [StudyPrompt(id="b", prompt="Another.", continuation="Yes.")]
    file.write_text('{"prompt": ""}\n')
    with pytest.raises(SpecError, match="line 1"):
        study_prompts(file)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "--prompts is missing"),
        (["--prompts", "x"], "--format is missing"),
        (["--solve", "a", "--bits", "4"], "--check-prompts is missing"),
        (["--solve", "a", "--bits", "40", "--check-prompts", "x"], "bits = 40"),
        (["--solve", "a", "--bits", "4", "--check-prompts", "x", "--format", "q4_0"], "--format does not go with"),
        (["--solve", "../a", "--bits", "4", "--check-prompts", "x"], "not kept here"),
    ],
)
def test_the_command_says_what_is_missing(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", *given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_scores_and_answers(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvq_core.cli.bar.Bar.load", lambda bar, id: model)
    for name, text in zip(("scored.txt", "unseen.txt"), TEXTS, strict=True):
        (tmp_path / name).write_text(text)
    asked = ["--prompts", str(tmp_path / "scored.txt"), "--format", NAME]
    assert main(["layers", *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["scores"]) == 2 * model.shape.layers and set(told["scores"][0]) == {
        "format",
        "tensor",
        "layer",
        "kld_mean",
        "kld_low",
        "kld_high",
    }
    check = ["--solve", told["id"], "--bits", "8", "--check-prompts", str(tmp_path / "unseen.txt")]
    assert main(["layers", *check, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"lane", "bytes", "predicted", "measured", "uniform"} <= set(answer)
    assert main(["layers", *check]) == 0
    assert "best uniform" in capsys.readouterr().out


def test_ctrl_c_says_that_scores_are_kept(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvq_core.cli.bar.Bar.load", interrupted)
    (tmp_path / "scored.txt").write_text(TEXTS[0])
    assert main(["layers", "--prompts", str(tmp_path / "scored.txt"), "--format", NAME]) == 130
    assert "scores are kept, and the same command goes on from there" in capsys.readouterr().err


def test_scores_that_two_processes_keep_at_once_are_both_kept() -> None:
    begun = Sensitivity(id="a" * 16, version=kept.VERSION, model="m", layers=2, positions=4, formats=(NAME,))
    one, other = (begun.added(prompt, {key(NAME, "keys", 0): 0.5}) for prompt in ("one", "other"))
    kept.keep_scores(one)
    assert set(kept.keep_scores(other).klds) == {"one", "other"}
    more = kept.keep_scores(begun.added("one", {key(NAME, "keys", 0): 0.7, key(NAME, "keys", 1): 0.1}))
    assert kept.load_scores("a" * 16) == more and set(more.klds) == {"one", "other"}
    assert more.klds["one"] == {key(NAME, "keys", 0): 0.7, key(NAME, "keys", 1): 0.1}


def test_scores_are_had_where_none_can_be_kept(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(kept, "file_of", lambda id: tmp_path / "file" / f"{id}.json")
    begun = Sensitivity(id="a" * 16, version=kept.VERSION, model="m", layers=2, positions=4, formats=(NAME,))
    assert kept.keep_scores(begun) == begun
