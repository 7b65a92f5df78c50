"""Methods of one's own on the page: their group, where they come from, and an instance that names files."""

import re

import pytest

import app
from kvq_core.errors import KvqError
from kvq_core.methods import load_method_file, methods
from kvq_core.settings import settings
from tests.support.own_methods import forget_afterwards, written
from ui.form import method_picker as form
from ui.form.editor import apply_edits, editor, method_notes
from ui.form.lanes import add_lane
from ui.form.lanes_panel import place_editor
from ui.form.method_picker import method_picker


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    forget_afterwards(monkeypatch)
    monkeypatch.setattr(form, "OFTEN", ("kivi", "svdq"))


def test_they_stand_in_a_group_of_their_own(tmp_path):
    assert "Yours" not in method_picker("kivi", "method")
    load_method_file(written(tmp_path))
    html = method_picker("kivi", "method")
    assert re.findall(r'data-method="(\w+)"', html.partition("<summary>Yours <small>1</small>")[2]) == ["mine"]
    assert html.count('data-method="mine"') == 1
    assert "From my.py" in method_notes("mine") and "From" not in method_notes("kivi")


def test_one_can_be_chosen_and_its_knobs_are_controls(tmp_path):
    body = 'from pydantic import Field\n    knob: int = Field(3, ge=1, title="A <knob>", description="What it does.")'
    load_method_file(written(tmp_path, body=body))
    lanes, said = apply_edits(lanes := add_lane([]), lanes[0]["uid"], {"method": "mine"})
    html = editor(lanes, place_editor(lanes[0]["uid"]))
    assert said is None and lanes[0]["method"] == "mine"
    assert "A &lt;knob&gt;" in html and 'data-place="knobs.knob"' in html


def test_an_instance_takes_the_files_it_is_started_with(tmp_path, monkeypatch):
    one, two = written(tmp_path), written(tmp_path, "other.py", name="other")
    monkeypatch.setenv("KVQ_METHOD_FILES", str(one))
    app.load_methods(settings(), ["--method-file", str(two)])
    assert {"mine", "other"} <= set(methods())


def test_a_public_instance_takes_none(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "a/model")
    with pytest.raises(KvqError, match="^my.py: a public instance takes no method files"):
        app.load_methods(settings(), ["--method-file", str(written(tmp_path))])
    assert "mine" not in methods()
    app.load_methods(settings(), [])


def test_a_file_that_cannot_be_loaded_ends_the_start_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(app, "share_arena", lambda: None)
    monkeypatch.setattr(app, "configure", lambda found: None)
    assert app.main(["--method-file", str(written(tmp_path, top="1 / 0"))]) == 2
    assert capsys.readouterr().err == "my.py cannot be loaded: line 5: ZeroDivisionError: division by zero\n"
