"""Advice from a model and prompts, from a study's id, and what its lanes take, on a tiny model."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import Gemma3TextConfig

from kvq_core.cli.main import main
from kvq_core.errors import SpecError, StoreError
from kvq_core.machine.progress import unreported
from kvq_core.models import load, outline
from kvq_core.presets import bundle_lanes
from kvq_core.presets.bundles import BUNDLES
from kvq_core.recommend import sensitivity
from kvq_core.recommend.constraints import Advice, Ask, Tolerance, WeightsFile
from kvq_core.recommend.decision import Decision, DecisionRequest, keep_decision, stored_decision
from kvq_core.recommend.engine_flags import lane_of_flags
from kvq_core.recommend.layer_plans import NOT_ALIKE
from kvq_core.recommend.options import FitPlace, model_shape, own_weights
from kvq_core.recommend.policies import LayerPolicy, ScoringBudget
from kvq_core.recommend.policy_search import Here, PolicyTrial
from kvq_core.recommend.recommend import advise, decide, stored, study_for
from kvq_core.record.store import Store, open_store
from kvq_core.shape import LayerKind, ModelShape
from kvq_core.sizing.count import CacheBytes, ServedBy, cache_bytes
from kvq_core.sizing.fit import MEMORIES
from kvq_core.sizing.reserve import allowance
from kvq_core.spec import Lane
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import study
from tests.support.study_models import CONFIG, prompt, study_data, write_model

pytestmark = pytest.mark.slow

PROMPTS = [StudyPrompt(prompt=prompt(at)) for at in range(12)]
SHAPE = ModelShape.of_layers(
    (LayerKind(kind="full", kv_heads=8, key_dim=128, value_dim=128),) * 32, 32, 131_072, architecture="llama"
)


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    """Fewer tokens and lanes than are advised on."""
    lanes = [lane for lane in bundle_lanes("deploy-llama-cpp") if lane["method"] in ("q8_0", "q4_0", "iq4_nl")]
    bundle = replace(BUNDLES["deploy-llama-cpp"], lanes=lambda: lanes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvq_core.recommend.recommend.NEW_TOKENS", 8)
        patch.setitem(BUNDLES, "deploy-llama-cpp", bundle)
        patch.setattr(sensitivity, "POSITIONS", 4)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(autouse=True)
def _own_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "file_of", lambda id: tmp_path / f"{id}.json")


@pytest.fixture(scope="module")
def found(model: str, store: Store) -> Advice:
    asked = {"engine": "llama.cpp", "context": 200, "batch": 8, "cache": "50MB", "tolerance": 0.5}
    return advise(model=model, prompts=PROMPTS, store=store, **asked)


def test_a_model_and_prompts_give_the_engines_flags(found: Advice) -> None:
    assert found.kind in ("one", "unsure") and found.lane is not None and found.flags is not None
    word = found.lane["method"]
    assert found.flags == f"llama-server -m M.gguf -fa on -ctk {word} -ctv {word}"
    assert {each.label.split()[-1] for each in found.front} == {"q8_0", "q4_0", "iq4_nl"}
    assert found.prompts == 12 and found.version and all(each.fits for each in found.front)
    assert any("not inspected" in each for each in found.warnings), "its context is shorter than what is read of models"


def test_a_cache_of_transformers_is_advised_as_its_generate_is_asked_for_it(model: str, store: Store) -> None:
    pytest.importorskip("optimum.quanto")
    found = advise(model=model, prompts=PROMPTS, store=store, engine="transformers", context=200, tolerance=9.0)
    assert found.lane is not None and found.lane["method"] in ("quanto", "hqq")
    assert found.flags is not None and found.flags.startswith("model.generate(**inputs, cache_implementation=")
    again = lane_of_flags(found.flags, ModelShape(2, 1, 1, 64, 0).kinds)
    assert again.build() == Lane.model_validate(found.lane).build()


def test_windows_are_stored_as_the_engines_flags_say_and_no_layer_is_weighed(tmp_path: Path, store: Store) -> None:
    config = Gemma3TextConfig(**CONFIG, sliding_window=16, layer_types=["sliding_attention", "full_attention"])
    model = str(write_model(tmp_path / "windowed", config=config))
    asked = DecisionRequest.of(engine="llama.cpp", context=200, tolerance=1e-9)
    found = decide(asked, model=model, prompts=PROMPTS, store=store)
    assert found.advice.kind == "none" and found.grounds.policy is None
    assert any(NOT_ALIKE in each for each in found.advice.warnings)
    assert all("-ctk" in (each.flags or "") for each in found.advice.front), "no lane that llama.cpp cannot have"
    lanes = study_for(model, PROMPTS, "llama.cpp").comparison.lanes
    assert lanes and all(lane.rule.sliding for lane in lanes)


def test_the_study_that_was_run_gives_the_same_by_its_id(found: Advice, store: Store) -> None:
    again = advise(
        study=found.study, store=store, engine="llama.cpp", context=200, batch=8, cache="50MB", tolerance=0.5
    )
    assert again.model_dump(exclude={"warnings"}) == found.model_dump(exclude={"warnings"})
    longer = advise(study=found.study, store=store, context=4096)
    assert any("own context of 256" in each for each in longer.warnings)


def test_layers_are_tried_where_no_lane_will_do(model: str, store: Store, found: Advice) -> None:
    least = min(each.kld_mean or 1.0 for each in found.front)
    told: list[str] = []
    asked = {"context": 200, "tolerance": 0.8 * least, "store": store, "engine": "llama.cpp"}
    store, question = asked.pop("store"), DecisionRequest.of(**asked)
    tell = {"store": store, "progress": lambda at: told.append(at.doing)}
    whole = decide(question, model=model, prompts=PROMPTS, **tell)
    better = whole.advice
    assert "Scoring layers" in told and better.prompts == 6, "the policy is run on prompts that were not scored"
    _check_grounds(whole)
    assert keep_decision(whole, store) == whole.id and stored_decision(whole.id, store) == whole
    (policy,) = [each for each in better.front if each.policy]
    uniform = [each.kld_mean or 1.0 for each in better.front if not each.policy and each.bytes <= policy.bytes]
    gains = not uniform or 2 * (policy.kld_mean or 0.0) <= min(uniform)
    assert gains or "loses over 1/2" in (policy.why_not or "")


def _check_grounds(whole: Decision) -> None:
    """The policy beside what is simpler, every layer's score, what fits, and one front free and one of the engine."""
    grounds = whole.grounds
    assert grounds.policy is not None and (grounds.policy.scored, grounds.policy.unseen) == (6, 6)
    by_what = {each.what: each for each in grounds.policy.lanes}
    assert {"policy", "ends"} <= set(by_what) and by_what["policy"].predicted is not None
    (own,) = [each for each in whole.advice.front if each.policy]
    assert by_what["policy"].measured == pytest.approx(own.kld_mean) and by_what["policy"].bytes == own.bytes
    if "one format" in by_what:
        best = by_what["one format"]
        assert best.bytes <= own.bytes and grounds.policy.beats == (2 * (own.kld_mean or 0) <= best.measured)
    formats = {score.format for score in grounds.scores}
    assert len(grounds.scores) == len(formats) * 2 * 2, "a score a format, tensor and layer"
    assert [front.engine for front in grounds.fronts][:2] == [None, "llama.cpp"]
    assert all(front.version for front in grounds.fronts[1:])
    assert {"fp16", own.label} - {"policy"} <= {each.label for each in grounds.fits}
    assert all(set(each.contexts) == set(MEMORIES) for each in grounds.fits)


def test_without_an_engine_all_that_engines_ship_runs_beside(model: str, store: Store, found: Advice) -> None:
    least = min(each.kld_mean or 1.0 for each in found.front)
    ask, result = DecisionRequest.of(context=200, tolerance=str(0.8 * least)).ask(), stored(found.study, store)
    made = PolicyTrial(result, outline(model), ask, store, Here(), unreported, ScoringBudget()).found()
    assert isinstance(made, LayerPolicy)
    ran = {*made.rows["lane"]}
    assert {"policy", "first and last two fp16"} <= ran and any(label.endswith(", keys centred") for label in ran), ran
    assert not ran & {"q8_0", "q4_0", "iq4_nl"}, "the study has them"
    assert made.offered and {lane.label for lane in made.lanes} <= ran
    few = PolicyTrial(result, outline(model), ask, store, Here(), unreported, ScoringBudget(at_once=6)).found()
    assert isinstance(few, LayerPolicy) and few.rows["lane"].nunique() <= 6, "as many lanes as a run may hold"


def test_a_study_of_another_model_or_an_unknown_one_is_refused(found: Advice, store: Store) -> None:
    with pytest.raises(SpecError, match="not of 'other'"):
        advise(study=found.study, model="other", store=store)
    with pytest.raises(StoreError, match="is not in this store"):
        advise(study="0" * 16, store=store)
    with pytest.raises(SpecError, match="a study that was run, or a model"):
        advise(store=store)
    with pytest.raises(SpecError, match="chosen under a memory"):
        advise(study=found.study, weights=[Path("x")], store=store)


def test_the_command_answers_in_json_and_writes_a_report(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = open_store(str(tmp_path / "store"))
    monkeypatch.setenv("KVQ_STORE", place.root)
    done = study(parse_study(study_data(model, 6)), place)
    assert not done.failed, done.failed
    own = done.id
    page = tmp_path / "advice.html"
    assert main(["advise", "--study", own, "--tolerance", "100", "--context", "128", "--json", "--out", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"answer", "lane", "runner_up", "flags", "agreement"} <= set(told)
    assert told["label"] == "two" and told["runner_up"] == "four" and told["study"] == own
    assert "<h1>two:" in page.read_text() and f'/?run={told["worst"][0]["run"]}">' in page.read_text()
    assert stored_decision(told["decision"], place).advice.label == "two", "as the page opens it"
    assert main(["advise", "--study", own, "--engine", "vllm"]) == 0
    assert "none of vLLM's formats" in capsys.readouterr().out
    assert main(["advise", "--study", own, "--out", "advice.pdf"]) == 2


def test_ctrl_c_says_that_what_is_done_is_kept(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvq_core.recommend.recommend.decide", interrupted)
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(each.prompt for each in PROMPTS))
    assert main(["advise", model, "--prompts", str(file)]) == 130
    assert "what is done is kept, and the same command goes on from there" in capsys.readouterr().err


def taken(lane: Lane, context: int, batch: int, engine: str | None = None, shape: ModelShape = SHAPE) -> CacheBytes:
    found = cache_bytes(lane, shape, context, context, batch, ServedBy(engine) if engine else None)
    assert isinstance(found, CacheBytes)
    return found


def test_the_tokens_in_flight_are_those_that_are_asked_for() -> None:
    """Sliding layers beside as many full ones, in one group of vLLM's: a window and two batches in flight."""
    full, sliding = (
        LayerKind(kind=kind, window=window, kv_heads=8, key_dim=64, value_dim=64)
        for kind, window in (("full", None), ("sliding", 128))
    )
    shape = ModelShape.of_layers((full, sliding) * 12, 64, 131_072)
    ask = Ask(Tolerance.parse("close"), context=32_768, batch=8, engine="vLLM")
    place = FitPlace(shape, WeightsFile(file="-", bytes=1, how="-", chosen=False), ask)
    lane = Lane(label="a", method="fp8", sliding=True)

    def reserved(batched: int) -> int:
        return 8 * 12 * 16 * 8 * 128 * (32_768 // 16 + -(-(127 + 2 * batched) // 16) + 1)

    assert place.option(lane).nbytes == reserved(2048), "as vLLM has it on a small card"
    more = replace(place, ask=replace(ask, batched_tokens=8192))
    assert more.option(lane).nbytes == reserved(8192)
    assert ask.served is not None and ask.served.at_once == 2048
    with pytest.raises(SpecError, match="batched_tokens = 0"):
        replace(ask, batched_tokens=0)


def test_layers_that_stay_fp16_are_counted_by_themselves() -> None:
    lane = Lane(label="a", method="q8_0", layers=tuple(range(2, 32)))
    q8, fp16 = (taken(Lane(label="b", method=name), 1000, 1).tensors for name in ("q8_0", "fp16"))
    assert taken(lane, 1000, 1, "llama.cpp") == CacheBytes((30 * q8 + 2 * fp16) // 32)
    assert taken(Lane(label="c", method="q8_0", tensors="keys"), 1000, 1).tensors == (q8 + fp16) // 2


def test_bytes_beside_the_cache_are_told_and_held_against_the_room() -> None:
    """CommVQ, which no engine has, is counted by its codebooks; heads that a method cannot store leave it unknown."""
    room = taken(Lane(method="commvq"), 8192, 1).taken
    ask = Ask(Tolerance.parse("close"), context=8192, batch=1, cache=room)
    place = FitPlace(SHAPE, WeightsFile(file="-", bytes=1, how="-", chosen=False), ask)
    found = place.option(Lane(label="c", method="commvq"))
    assert found.fits and (found.nbytes or 0) + found.shared == room and found.shared > 0
    assert found.nbytes == 32 * 2 * 8192 * (8 * 128 // 8 + 2) and found.counted == ("commvq: codebooks, by formula",)
    assert replace(place, ask=replace(ask, cache=room - 1)).option(Lane(method="commvq")).fits is False
    assert place.option(Lane(method="qaq")).host_copy == 32 * 2 * 8192 * 8 * 128
    odd = ModelShape.of_layers((LayerKind(kind="full", kv_heads=8, key_dim=40, value_dim=40),), 8, 4096)
    lost = replace(place, shape=odd).option(Lane(label="q", method="q4_0"))
    assert lost.nbytes is None and lost.fits is None and "bytes are not known: q4_0" in (lost.refused or "")


def test_under_a_memory_the_largest_weights_that_leave_room_are_chosen(
    found: Advice, store: Store, tmp_path: Path
) -> None:
    share, spare = allowance().share, allowance().bytes
    memory = round((spare + 40_000_000) / (1 - share))
    for name, size in (("large.gguf", 60_000_000), ("middle.gguf", 30_000_000), ("small.gguf", 10_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    files = [tmp_path / name for name in ("small.gguf", "large.gguf", "middle.gguf")]
    asked = {"memory": f"{memory / 1e9:.6f}GB", "tolerance": 0.5, "context": 200, "weights": files}
    told = advise(study=found.study, store=store, engine="llama.cpp", **asked)
    assert told.weights.file.endswith("middle.gguf") and told.weights.chosen and told.lane is not None
    assert any("weights loses itself" in each for each in told.untested)


def test_the_longest_context_that_fits_is_found(model: str) -> None:
    loaded = load(model)
    weights, lane = own_weights(loaded, model), Lane(label="q8", method="q8_0")
    assert weights == WeightsFile(file=model, bytes=weights.bytes, how=weights.how, chosen=False)
    place = FitPlace(
        model_shape(loaded), weights, Ask(Tolerance.parse("close"), context=10_000, batch=2, cache=1_000_000)
    )
    longest = place.longest(lane)
    here, beyond = (taken(lane, longest + more, 2, shape=model_shape(loaded)).tensors for more in (0, 1))
    assert here <= 1_000_000 < beyond
