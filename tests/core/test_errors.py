"""What people are told: one line, however long what they gave."""

import json
from pathlib import Path

import pytest

from kvq_core.claims.board import stored_board
from kvq_core.claims.criteria import paper
from kvq_core.cli.main import main
from kvq_core.codebooks.files import get_codebook
from kvq_core.errors import KvqError, SpecError, abbreviate, excerpt
from kvq_core.limits import limits
from kvq_core.models.choice import check_offered
from kvq_core.presets import preset, read_spec
from kvq_core.record.store import open_store, read_run
from kvq_core.settings import settings
from kvq_core.spec import parse_spec
from kvq_core.spec.links import decode
from kvq_core.studies.sources import _parsed
from kvq_core.studies.spec import parse_study
from kvq_core.training.texts import read_texts
from ui.form.controls import _parse

LONG = "x" * 5000
MOST = 600


def spec(**given):
    return lambda: parse_spec({"prompt": "p", **given})


def lane(**given):
    return spec(lanes=[{"method": "kivi", **given}])


GIVEN = {
    "method": lane(method=LONG),
    "knob": lane(knobs={LONG: 1}),
    "knob's value": lane(knobs={"bits": LONG}),
    "knob's list": lane(method="svdq", knobs={"schedule": [1] * 5000}),
    "codebooks": lane(method="commvq", knobs={"codebooks": LONG}),
    "label": lane(label=LONG),
    "lane's field": lane(**{LONG: 1}),
    "tensors": lane(tensors=LONG),
    "layers": lane(layers=[-1] * 5000),
    "field": spec(**{LONG: 1}),
    "field of captures": spec(capture={LONG: 1}),
    "field of stress": spec(stress={LONG: 1}),
    "model": spec(model=LONG),
    "number": spec(seed=16**5000),
    "preset": lambda: preset(LONG),
    "paper": lambda: paper(LONG),
    "codebook": lambda: get_codebook(LONG),
    "board": lambda: stored_board(LONG),
    "link": lambda: decode("9" * 5000 + ".abcd"),
    "run": lambda: open_store().load(LONG),
    "store": lambda: open_store(f"no://user:word@{LONG}"),
    "text": lambda: read_texts(LONG),
    "folder": lambda: read_run(Path(LONG)),
    "list": lambda: _parse(type("Knob", (), {"name": "schedule"}), LONG),
}


@pytest.mark.parametrize("what", GIVEN)
def test_what_was_given_is_quoted_within_bounds(what):
    with pytest.raises(KvqError) as caught:
        GIVEN[what]()
    said = str(caught.value)
    assert len(said) < MOST and "\n" not in said and "word@" not in said


@pytest.mark.parametrize("name", ["PORT", "KVQ_STORE_LIMIT", "KVQ_STORE_DAYS", "KVQ_LOG", "KVQ_ADDRESS"])
def test_so_is_what_the_environment_says(monkeypatch, name):
    monkeypatch.setenv(name, LONG)
    with pytest.raises(KvqError, match=name) as caught:
        settings()
    assert len(str(caught.value)) < MOST


def test_so_are_limits_and_models_of_an_instance(monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "one")
    with pytest.raises(KvqError, match="not offered") as caught:
        check_offered(LONG)
    assert len(str(caught.value)) < MOST
    monkeypatch.setenv("KVQ_MAX_LINE", LONG)
    with pytest.raises(KvqError, match="KVQ_MAX_LINE") as caught:
        limits()
    assert len(str(caught.value)) < MOST


@pytest.mark.parametrize(
    "arguments",
    [
        [LONG],
        ["compare", "--preset", LONG],
        ["compare", "--spec", LONG],
        ["show", LONG],
        ["show", f"a/{LONG}"],
        ["compare", "--preset", "first-look", "--out", LONG],
        ["methods", LONG],
        ["claims", "--paper", LONG],
        ["claims", "--stored", "--model", LONG],
        ["codebooks", "show", LONG],
        ["codebooks", "train", "--text", LONG],
        ["codebooks", "train", "--name", LONG],
        ["codebooks", "train", "--stages", "-" + "9" * 4000],
        ["measure", "--preset", "first-look", "--tokens", "-" + "9" * 4000],
    ],
    ids=lambda given: " ".join(given)[:40],
)
def test_so_is_what_the_command_line_says(capsys, arguments):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err) < MOST and len(said.err.splitlines()) == 1


def test_files_are_named_and_quoted_within_bounds(tmp_path):
    for name, text in (("a.toml", f'prompt = "p"\n[{LONG}]\n[{LONG}]'), ("b.json", json.dumps({LONG: 1}))):
        (tmp_path / name).write_text(text)
        with pytest.raises(KvqError) as caught:
            read_spec(tmp_path / name)
        assert len(str(caught.value)) < MOST


def test_short_things_are_quoted_whole_and_long_ones_by_both_ends():
    assert excerpt("kvi") == "'kvi'" and abbreviate("a" * 80) == "a" * 80
    assert abbreviate("ab" * 100) == "ab" * 28 + "a..." + "ab" * 10 and len(excerpt(LONG)) == 80
    assert "thousands of digits" in excerpt(16**5000)


def test_no_message_repeats_all_that_somebody_sent():
    assert len(str(KvqError("x" * 100_000))) == 2000
    nested: list = []
    for _ in range(10**5):
        nested = [nested]
    assert excerpt(nested) == "something nested very deeply"


@pytest.mark.parametrize("place", ["texts", "rows", "options", "tools"])
def test_half_a_character_is_refused_wherever_it_stands(place):
    half = "\ud800"
    prompts = {"texts": [half]}
    if place != "texts":
        prompts = {"rows": [{"prompt": "a", "facts": {"a": [half]}}]} if place == "rows" else {"suite": "long", half: 1}
    with pytest.raises(SpecError, match="half a character"):
        if place == "tools":
            tool = {"type": "function", "function": {"name": "a", "description": half}}
            parse_spec({"messages": [{"role": "user", "content": "a"}], "tools": [tool]})
        else:
            parse_study({"prompts": prompts, "lanes": [{"method": "per_token"}]})
    with pytest.raises(SpecError, match="line 1: .* holds half a character"):
        _parsed({"prompt": half}, "line 1")


@pytest.mark.parametrize("field", ["tools", "messages", "lanes", "prompt", "odd"])
def test_data_nested_deeper_than_any_is_refused_in_a_line(field):
    nested: list = []
    for _ in range(500):
        nested = [nested]
    for read in (parse_spec, parse_study):
        with pytest.raises(SpecError, match="is nested more than 64 levels deep"):
            read({"prompt": "a", field: nested, "prompts": {"texts": ["a"]}})
    with pytest.raises(SpecError, match="text 1 is nested more"):
        _parsed({"prompt": "a", "facts": {"a": nested}}, "text 1")
