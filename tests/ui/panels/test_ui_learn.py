"""The tour and the runs that ship with it: every step opens something that is there."""

import pytest

from kvq_core.errors import SpecError
from kvq_core.pipeline.examples import MOST_BYTES, RUNS, Example, example_ids, examples, packaged_store
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.record.store import open_store
from tests.support.ui_record_factory import make_run
from ui.panels.learn import CLOSED, at_step, place, show_step, step_number
from ui.panels.tour import TourStep, shipped_ids, tour
from ui.views.tabs import TABS

VIEWS = {"verdicts", "texts", "attention", "damage", "rate", "storage", "spectra", "subspace"}


@pytest.mark.parametrize("number", range(len(tour())))
def test_a_step_opens_a_stored_run_in_a_view_that_exists(number):
    step, found = tour()[number], place(number)
    assert step.title and step.text and step.view in VIEWS and len(VIEWS) == len(TABS)
    assert found["run"] == shipped_ids()[step.example] and found["view"] == step.view and found["at"] == step.selection
    record, _ = packaged_store().load(found["run"])
    env = record.environment
    assert all(lane.status == "done" for lane in record.lanes)
    assert step.selection.get("layer", 0) < env.layers and step.selection.get("head", 0) < env.query_heads
    assert step.selection.get("token", 0) < len(record.reference.token_ids)


def test_the_steps_reach_every_method_s_idea():
    words = " ".join(step.title for step in tour())
    assert len(tour()) == 13 and all(name in words for name in ("KIVI", "SQuat", "SVDq", "CommVQ", "InnerQ", "QAQ"))
    shown = {lane.method for example in examples().values() for lane in example.spec.lanes}
    assert {"kivi", "squat", "svdq", "commvq", "innerq", "qaq"} <= shown


def test_the_first_step_has_no_back_and_the_last_says_finish():
    first, last = show_step(0), show_step(len(tour()) - 1)
    assert first[2]["interactive"] is False and first[3]["value"] == "Next" and at_step(0) == {"step": 0}
    assert last[2]["interactive"] is True and last[3]["value"] == "Finish" and "step 13 of 13" in last[1]
    for outside in (-1, len(tour())):
        assert show_step(outside)[0]["visible"] is False and at_step(outside) == CLOSED


@pytest.mark.parametrize(
    "text, step",
    [
        ("1", 0),
        ("10", 9),
        ("14", 0),
        ("0", 0),
        ("-3", 0),
        ("x", 0),
        ("", 0),
        ("³", 0),
        ("9" * 5000, 0),
        ("000199", 0),
        ("0003", 2),
    ],
)
def test_an_address_names_a_step_or_the_first(text, step):
    assert step_number(text) == step


def test_a_step_without_its_run_has_no_place(monkeypatch):
    monkeypatch.setattr("ui.panels.learn.shipped_ids", dict)
    assert place(0) is None


def test_only_what_is_asked_for_is_selected():
    assert TourStep(title="t", text="t", action="a", on="#a", example="e", view="v", figure="f", layer=0).selection == {
        "layer": 0
    }


def test_shipped_runs_are_the_examples_of_today_and_small():
    assert set(shipped_ids()) == set(examples())
    assert sum(file.stat().st_size for file in RUNS.rglob("*") if file.is_file()) <= MOST_BYTES
    for run in shipped_ids().values():
        assert packaged_store().load(run)[0].results_version == RESULTS_VERSION


def test_a_run_belongs_to_the_example_whose_comparison_it_is(tmp_path):
    store = open_store(str(tmp_path))
    record, arrays = make_run(lanes=1)
    store.save(record, arrays)
    assert example_ids(store) == {}
    example = examples()["keys-or-values"]
    ours = record.model_copy(update={"id": "b" * 16, "spec": example.spec.model_dump(mode="json")})
    store.save(ours, arrays)
    assert example_ids(store) == {"keys-or-values": "b" * 16}


def test_an_example_replaces_lanes_and_captures_of_its_preset():
    example = examples()["five-ideas"]
    assert [lane.label for lane in example.spec.lanes] == [lane["label"] for lane in example.lanes]
    assert example.spec.capture.layers == (12,) and example.spec.prompt
    with pytest.raises(SpecError, match="Unknown method 'nope'"):
        Example(name="x", title="x", preset="first-look", capture={}, lanes=[{"method": "nope"}]).spec  # noqa: B018
