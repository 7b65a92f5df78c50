"""A decision from a study of several models."""

from dataclasses import replace

import pytest

from kvq_core.presets import bundle_lanes
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import study
from tests.support.study_models import study_data, write_model
from tests.ui.decide.test_decide import begin, engine_and_places, form, watched
from ui.decide.asked import ANY, STUDY
from ui.decide.form import models_of
from ui.decide.quote import quote_form


@pytest.mark.slow
def test_of_a_study_of_several_models_one_is_picked(tmp_path):
    """The first, until another is named by its id or its title."""
    models = [write_model(tmp_path / name, seed) for seed, name in enumerate(("tiny-a", "tiny-b"))]
    place = engine_and_places(tmp_path)
    lanes = [lane for lane in bundle_lanes("deploy-llama-cpp") if lane["method"] in ("q8_0", "q4_0")]
    data = study_data(models[0], 5, models=[str(each) for each in models], lanes=lanes)
    made = study(parse_study(data), place.services.store)
    results, ids = place.studies.results, made.plan.models
    picker = models_of(made.id, "", None, results)
    assert picker["visible"] and picker["value"] == ids[0]
    assert [title for title, _ in picker["choices"]] == ["tiny-a", "tiny-b"]
    assert models_of(made.id, "tiny-b", None, results)["value"] == ids[1]
    assert not models_of("f" * 16, "tiny-b", None, results)["visible"]
    held = form(str(models[0]), source=STUDY, study=made.id)
    assert [
        quote_form(replace(held, of_model=name), "", results).question.model for name in ("", "tiny-b", ids[1])
    ] == [
        ids[0],
        ids[1],
        ids[1],
    ]
    going = watched(begin(place, replace(held, of_model="tiny-b")))
    assert going.decision.advice.study == made.id and going.decision.advice.model in (ids[1], "tiny-b")
    assert not place.engine.asked, "all of it is there"


def test_tokens_at_once_are_asked_of_engines_that_reserve_by_them():
    assert [
        form("tiny", engine=each, batched_tokens="512").asked.batched_tokens for each in ("vLLM", "llama.cpp", ANY)
    ] == [
        512,
        None,
        None,
    ]
    assert form("tiny", engine="vLLM").asked.batched_tokens is None
