"""A decision in everybody's line, on a tiny model: what the form asks, turns, cancel and go on, and what is shown."""

import re
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvq_core.errors import KvqError, StoreError
from kvq_core.machine.progress import Progress
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import estimate
from kvq_core.presets import bundle_lanes
from kvq_core.presets.bundles import BUNDLES
from kvq_core.recommend import sensitivity
from kvq_core.recommend.decision import Decision, DecisionRequest, stored_decision
from kvq_core.recommend.policies import Grounds, LaneFit
from kvq_core.recommend.sensitivity import Score
from kvq_core.record.store import open_store
from kvq_core.spec.links import decode
from tests.core.recommend.test_advice import asked, noisy, option, rows
from tests.core.recommend.test_decision import scored
from tests.support.gated_runs import until
from tests.support.study_models import prompt, write_model
from ui.decide.answer import answer_html, lanes_html
from ui.decide.asked import ANY, BITS, LEAST, STUDY, DecideForm
from ui.decide.cell import cell_html, picked_score
from ui.decide.evidence import fits_html, layers_html
from ui.decide.fitting import fitting_html
from ui.decide.form import estimate_html
from ui.decide.quote import admit, quote_form
from ui.decide.result import FILES, draw, name_of
from ui.decide.watching import end_line, stage_line
from ui.decide.work import Decisions, DecisionWork, Stage
from ui.service.line import LinePlace
from ui.service.services import Services
from ui.study.asked import Form as PromptsForm
from ui.study.work import Studies

TEXT = "\n".join(prompt(at) for at in range(12))


@pytest.fixture(scope="module", autouse=True)
def _short(tmp_path_factory):
    """Fewer tokens and lanes than are decided on, and scores of their own."""
    lanes = [lane for lane in bundle_lanes("deploy-llama-cpp") if lane["method"] in ("q8_0", "q4_0")]
    folder = tmp_path_factory.mktemp("scores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvq_core.recommend.recommend.NEW_TOKENS", 6)
        patch.setitem(BUNDLES, "deploy-llama-cpp", replace(BUNDLES["deploy-llama-cpp"], lanes=lambda: lanes))
        patch.setattr(sensitivity, "POSITIONS", 4)
        patch.setattr(sensitivity, "file_of", lambda id: folder / f"{id}.json")
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))


class Engine:
    """The real comparison; ``free`` lets runs end, ``asked`` are prompts in the order of their turns."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def compare(self, spec, store):
        self.asked.append(spec.prompt[:12])
        assert self.free.wait(30)
        yield from compare(spec, store)


@pytest.fixture
def place(tmp_path):
    return engine_and_places(tmp_path)


def engine_and_places(tmp_path: Path) -> SimpleNamespace:
    engine = Engine()
    services = Services(open_store(str(tmp_path / "store")), engine.compare, estimate)
    return SimpleNamespace(engine=engine, services=services, studies=Studies(services), decisions=Decisions(services))


def form(of: str, **changes: Any) -> DecideForm:
    plain = DecideForm(
        prompts=PromptsForm(text=TEXT), model=of, room=LEAST, context=200, engine="llama.cpp", tolerance="100"
    )
    return replace(plain, **changes)


def begin(place, held: DecideForm, session: str = "page/decide", visitor: str = "one") -> DecisionWork:
    return place.decisions.begin(admit(quote_form(held, "", place.studies.results)), session, visitor)


def watched(going: DecisionWork) -> DecisionWork:
    until(lambda: going.standing() is not None and going.over)
    return going


@pytest.mark.slow
def test_three_questions_give_an_answer_that_is_kept_with_its_link(place, model):
    going = watched(begin(place, form(model)))
    assert going.failure() is None and not going.cancelled
    found = going.decision
    assert found.advice.kind in ("one", "unsure") and found.advice.flags.startswith("llama-server")
    assert stored_decision(found.id, place.services.store) == found
    answer, first, layers, below, shown, *_ = draw(found, place.services, place.studies.results, "https://here/")
    assert found.advice.flags in answer and "resamples" in answer and 'id="plot-decide-front"' in first
    spec = decode(re.search(r'href="\?c=([^"]+)"', answer)[1])
    assert [lane.label for lane in spec.lanes] == [found.advice.label, found.advice.runner_up], "both side by side"
    assert spec.prompt in TEXT and f"on the prompt {found.advice.worst[0].prompt}" in answer
    assert "Not tested" in first and "were not scored one by one" in layers and "What fits" in below
    again = watched(begin(place, form(model, source=STUDY, study=found.advice.study)))
    assert again.decision.advice.answer == found.advice.answer and len(place.engine.asked) == 12, "nothing runs again"


@pytest.mark.slow
def test_layers_are_tried_where_no_lane_will_do_and_the_map_is_drawn(place, model):
    told: list[str] = []
    going = begin(place, form(model, tolerance="0.00001"))
    while not going.over:
        told.append(stage_line(going.standing()))
        time.sleep(0.02)
    assert going.failure() is None
    found = going.decision
    assert found.grounds.scores and found.grounds.scored == 6
    assert found.grounds.policy is not None or "none is predicted to hold" in found.advice.warnings[-1]
    assert any("Scoring layers: " in each for each in told)
    assert any("stands without layers so far" in each for each in told), "the study's answer comes first"
    page = layers_html(found.grounds)
    assert page.count("data-cell=") == len(found.grounds.scores) and found.grounds.scores_id in page
    score = picked_score('{"cell": 3}', found)
    said = cell_html(score, found, place.studies.results)
    spec = decode(re.search(r'href="\?c=([^"]+)"', said)[1])
    assert spec.lanes[0].layers == (score.layer,) and spec.lanes[0].tensors == score.tensor
    assert spec.prompt == prompt(0)
    without = watched(begin(place, form(model, tolerance="0.00001", layers=False)))
    assert without.decision.advice.kind == "none" and not without.decision.grounds.scores


@pytest.mark.slow
def test_turns_are_taken_with_another_visitors_run(place, model):
    place.engine.free.clear()
    going = begin(place, form(model))
    until(lambda: going.standing() is not None and place.engine.asked)
    other = going.question.plan.cells[-1].spec.model_copy(update={"prompt": "w5 w6 w7 others"})
    job = place.services.submit(other, "else", "two")
    place.services.jobs.watch(job.ticket)
    place.engine.free.set()
    until(lambda: bool(going.standing() and job.news() is not None and job.over))
    assert "w5 w6 w7 oth" in place.engine.asked[:3], "after the run that was at work"
    watched(going)


@pytest.mark.slow
def test_what_is_cancelled_is_kept_and_goes_on(place, model):
    going = begin(place, form(model))
    until(lambda: going.standing().now.done >= 2)
    going.stop()
    watched(going)
    assert going.cancelled and going.failure() is None and "Cancelled" in end_line(going)
    before = len(place.engine.asked)
    again = watched(begin(place, form(model)))
    assert again.decision.advice.prompts == 12 and len(place.engine.asked) == 12 + (before - going.standing().now.done)


@pytest.mark.slow
def test_a_closed_page_stops_its_decision(place, model):
    place.engine.free.clear()
    going = begin(place, form(model))
    until(lambda: going.standing() is not None and place.engine.asked)
    place.decisions.forget("page/decide")
    place.engine.free.set()
    until(lambda: going.over)
    assert going.cancelled and going.replaced and place.decisions.of("page/decide") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"room": BITS, "size": "many"}, "bits = &#x27;many&#x27; is not allowed"),
        ({"room": "Memory", "size": ""}, "nothing is given; give 24GB"),
        ({"room": "Memory", "size": "24000"}, "memory = &#x27;24000&#x27; is not allowed"),
        ({"context": None}, "Context: None is not allowed"),
        ({"batch": 1.5}, "Sequences: 1.5 is not allowed"),
        ({"engine": "vLLM", "batched_tokens": "0.5"}, "reads at once: &#x27;0.5&#x27; is not allowed"),
        ({"tolerance": "fine"}, "tolerance = &#x27;fine&#x27; is not allowed"),
        ({"engine": "vlm"}, "engine = &#x27;vlm&#x27; is not allowed"),
        ({"weights": "a.gguf"}, "weights are chosen under a memory"),
        ({"source": STUDY, "study": "0" * 16}, "is not in this store"),
        ({"model": "no/such"}, "no/such"),
    ],
)
def test_what_cannot_be_asked_is_said_above_start(place, model, changes, said):
    found = estimate_html(form(model, **changes), [], place.studies.results)
    assert said in found and "refused" in found and "\n" not in found


@pytest.mark.slow
def test_the_forecast_is_told_before_start(place, model, monkeypatch):
    told = estimate_html(form(model), [], place.studies.results)
    assert "12 of 12 runs are to be computed" in told and "Layers, where they are tried: 6 passes" in told
    few = estimate_html(form(model, prompts=PromptsForm(text="w1 w2\nw3 w4")), [], place.studies.results)
    assert "no flags will be given; that takes 12" in few and "Layers are not tried: that takes 10" in few
    monkeypatch.setenv("KVQ_MAX_PROMPTS", "9")
    assert "this instance takes 9 of a study" in estimate_html(form(model), [], place.studies.results)
    monkeypatch.setenv("KVQ_MAX_PROMPTS", "60")
    monkeypatch.setenv("KVQ_MAX_LANES", "16")
    assert "Name an engine" in estimate_html(form(model, engine=ANY), [], place.studies.results)
    monkeypatch.setenv("KVQ_MODELS", model)
    assert "chooses none of its files" in estimate_html(form(model, weights="/etc"), [], place.studies.results)


@pytest.mark.slow
def test_on_a_public_instance_another_visitors_study_is_closed(place, model, monkeypatch):
    found = watched(begin(place, form(model))).decision
    monkeypatch.setenv("KVQ_MODELS", model)
    closed = estimate_html(form(model, source=STUDY, study=found.advice.study), [], place.studies.results)
    assert "has not shared it" in closed


@cache
def kinds() -> dict[str, Decision]:
    """One of every kind of answer, made by hand."""
    none = asked([*rows("small", noisy(0.5)), *rows("large", noisy(0.03, seed=1))], [option("small"), option("large")])
    pair = [*rows("small", noisy(0.003, seed=3)), *rows("middle", noisy(0.00302, seed=4))]
    unsure = asked(pair, [option("small"), option("middle", nbytes=250)])
    few = asked(rows("small", [0.002, 0.003, 0.002]), [option("small")])
    one = asked([*rows("small", noisy(0.002)), *rows("large", noisy(1e-4))], [option("small"), option("large")])
    found = {"none": none, "unsure": unsure, "few": few, "one": one}
    return {kind: Decision(asked=DecisionRequest(), advice=each, grounds=Grounds()) for kind, each in found.items()}


@pytest.mark.slow
def test_every_kind_of_answer_is_a_state_of_its_own():
    told = {kind: answer_html(each) for kind, each in kinds().items()}
    assert "<h1>small</h1>" in told["one"] and ">the answer<" in told["one"] and "serve --cache small" in told["one"]
    assert "<h1>small or middle, which are of one size" in told["unsure"] and "What would help" in told["unsure"]
    assert "<h1>None of these.</h1>" in told["none"] and "A tolerance of marginal" in told["none"]
    assert "<h1>Too few prompts" in told["few"] and "copybox" not in told["few"]
    assert not any("notice bad" in each or "error" in each for each in told.values()), "answers, not errors"


@pytest.mark.slow
def test_labels_and_prompts_of_anybody_are_escaped():
    label = "<script>alert(1)</script>${x}"
    hostile = replace(option("small"), label=label, flags=label)
    found = asked([*rows(label, noisy(0.002)), *rows("large", noisy(1e-4))], [hostile, option("large")])
    bad = tuple(score.model_copy(update={"format": label}) for score in scored(("q4_0",)))
    grounds = Grounds(scores=bad, fits=(LaneFit(label=label, contexts={16: 5}),), inspected=label, own_context=9)
    whole = Decision(asked=DecisionRequest(), advice=found, grounds=grounds)
    for page in (answer_html(whole), lanes_html(found), layers_html(grounds), fits_html(whole)):
        assert "<script" not in page and "${" not in page and "&lt;script&gt;" in page


@pytest.mark.slow
@pytest.mark.parametrize("raw", ["", "x", "[]", '{"cell": -1}', '{"cell": 10000}', '{"cell": null}'])
def test_a_cell_that_is_none_is_passed_over(raw):
    whole = Decision(asked=DecisionRequest(), advice=kinds()["one"].advice, grounds=Grounds(scores=scored()))
    assert picked_score(raw, whole) is None and isinstance(picked_score('{"cell": 0}', whole), Score)


def test_what_fits_is_told_before_anything_is_run(model):
    found = fitting_html(model, 200, 8, None)
    assert "from the configuration alone" in found and found.count('scope="row"') > 5
    own = fitting_html(model, 200, 8, "llama.cpp")
    assert "q8_0" in own and "vLLM" not in own
    assert fitting_html("no/such", 200, 8, None) == "" and fitting_html(model, None, 8, None) == ""


def test_stages_tell_the_place_in_line_and_what_is_left():
    assert "2 runs ahead" in stage_line(Stage(beside=LinePlace(2, 40)))
    told = stage_line(Stage(Progress("Computing", 3, 12, "runs", left=65.0), prompt="p4"))
    assert "Computing: 3 of 12 runs, at p4" in told and "0:01:05 left" in told and "width:25%" in told


@pytest.mark.slow
def test_files_and_an_unknown_decision(place, monkeypatch):
    whole = kinds()["one"]
    files = {name: make(whole, "https://here/") for name, (_, make) in FILES.items()}
    assert files["Report (HTML)"].startswith("<!doctype html>") and files["Report (Markdown)"].startswith("# Which KV")
    for link in (f"https://here/?run={whole.advice.worst[0].run}", f"https://here/?decide={whole.id}"):
        assert f'href="{link}"' in files["Report (HTML)"] and f"({link})" in files["Report (Markdown)"]
    names = {name_of(whole, page, "report.md") for page in ("https://here/", "https://there/")}
    assert len(names) == 2 and all(re.search("-[0-9a-f]{64}-report", name) for name in names)  # nobody finds two alike
    monkeypatch.setenv("KVQ_MODELS", "tiny")
    shared = FILES["Report (HTML)"][1](whole, "https://here/")
    assert f"?study={whole.advice.study}" in shared and "?run=" not in shared, "runs are their maker's"
    assert Decision.model_validate_json(files["Decision (JSON)"]) == whole
    with pytest.raises(StoreError, match="not in this store"):
        stored_decision("f" * 16, place.services.store)
    with pytest.raises(KvqError):
        quote_form(replace(DecideForm(), source=STUDY, study="../x"), "", place.studies.results)
