"""The command line: what it prints where, and with which exit status.

Whatever depends on the process (warnings on stderr, signals, imports) runs in one of its own; the long tables of
mistakes call ``main`` here, since every new process imports torch first.
"""

import json

import pytest

from kvq_core.claims.board import stored_board
from kvq_core.errors import StoreError
from kvq_core.methods import methods
from kvq_core.presets import presets
from kvq_core.record.events import Finished
from kvq_core.spec import DEFAULT_MODEL
from tests.support.command_line import SPEC, cli, refused


@pytest.mark.parametrize("command", [(), ("methods",), ("presets",), ("compare",), ("show",)])
def test_help_has_examples(here, command):
    result = here(*command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    assert "examples:\n  python -m kvq_core" in result.stdout


def test_methods_as_json_describe_every_knob(here):
    listed = json.loads(here("methods", "--json").stdout)
    assert [m["name"] for m in listed] == list(methods())
    for method in listed:
        assert set(method) == {"name", "title", "paper", "doc", "deviations", "knobs"}
        assert method["doc"] and isinstance(method["deviations"], list)
        for knob in method["knobs"]:
            assert set(knob) == {
                "name",
                "title",
                "type",
                "default",
                "minimum",
                "maximum",
                "length",
                "pattern",
                "choices",
                "named",
                "fields",
                "nullable",
                "help",
            }
            assert knob["help"], f"{method['name']}.{knob['name']} explains nothing"
    told = {m["name"]: {k["name"]: k for k in m["knobs"]} for m in listed}
    schedule, kivi = told["svdq"]["schedule"], told["kivi"]
    assert (schedule["length"], schedule["minimum"], schedule["maximum"]) == (8, 0, 8)
    assert told["commvq"]["codebooks"]["pattern"].startswith("^[A-Za-z0-9]")
    assert kivi["bits"]["default"] == 2 and kivi["bits"]["choices"] == [1, 2, 3, 4, 8]
    assert (kivi["sink_tokens"]["minimum"], kivi["sink_tokens"]["type"]) == (0, "integer")
    assert kivi["key_bits"]["nullable"] and kivi["key_bits"]["default"] is None


def test_methods_for_people_name_every_method_and_knob(here):
    text = here("methods").stdout
    for name, cls in methods().items():
        assert name in text and cls.title in text
        assert all(knob in text for knob in cls.model_fields)


def test_presets_in_both_forms(here):
    listed = json.loads(here("presets", "--json").stdout)
    assert [p["name"] for p in listed] == list(presets())
    assert all(p["spec"]["lanes"] and p["look_at"] for p in listed)
    text = here("presets").stdout
    assert all(name in text for name in presets())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), ["COMMAND"]),
        (("bogus",), ["bogus", "compare"]),
        (("methods", "--jsn"), ["--jsn"]),
        (("compare",), ["--preset", "--spec"]),
        (("compare", "--preset", "a", "--spec", "b"), ["--preset", "--spec"]),
        (("compare", "--preset", "frist-look"), ["frist-look", "first-look", "needle"]),
        (("compare", "--spec", "/nowhere/spec.toml"), ["/nowhere/spec.toml"]),
        (("compare", "--spec", "tests"), ["tests"]),
        (("show",), ["RUN_ID"]),
        (("show", "0" * 16), ["0" * 16, "not in this store"]),
        (("show", "zz"), ["zz", "16 hexadecimal"]),
        (("show", "../../etc"), ["../../etc", "manifest.json"]),
        (("show", "tests"), ["tests", "manifest.json"]),
        (("show", "\n\x1b[2J'; rm -rf"), ["16 hexadecimal"]),
        (("show", "\n\x1b[2J'; rm -rf /"), ["manifest.json"]),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_line_and_status_2(here, arguments, named):
    refused(here(*arguments), *named)


@pytest.mark.slow
def test_the_same_in_a_process_of_its_own(tmp_path, spec_file):
    lanes = [{"method": "kivi", "knobs": {"bits": 5}}]
    refused(cli("compare", "--spec", spec_file({**SPEC, "lanes": lanes}), "--out", tmp_path / "out"), "bits", "5")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lanes": [{"method": "kivi"}] * 65}, ["65", "64"]),
        ({"lanes": [{"method": "kvi"}]}, ["kvi", "Did you mean 'kivi'"]),
        ({"lanes": [{"method": "kivi", "knobs": {"bits": 5}}]}, ["bits", "5", "1, 2, 3, 4, 8"]),
        pytest.param({"lanes": [{"method": "kivi", "layers": [30]}]}, ["30", "29"], marks=pytest.mark.real_model),
        ({"prompt": ""}, ["empty"]),
        pytest.param({"prompt": "word " * 9000}, ["8192", "shorten"], marks=pytest.mark.real_model),
        ({"model": "../../etc/passwd"}, ["../../etc/passwd"]),
        ({"model": "a/b/../c"}, ["a/b/../c"]),
        ({"model": "<img src=x onerror=alert(1)>"}, ["not valid"]),
        ({"modle": "x"}, ["modle", "model"]),
    ],
    ids=lambda v: str(v)[:40],
)
def test_impossible_comparisons_leave_nothing_behind(here, tmp_path, spec_file, change, named):
    out = tmp_path / "out"
    refused(here("compare", "--spec", spec_file({**SPEC, **change}), "--out", out, "--json"), *named)
    assert not out.exists() and not (tmp_path / "store").exists()


def test_an_out_that_cannot_be_is_refused_before_the_run(here, tmp_path, spec_file):
    (tmp_path / "file").write_text("x")
    refused(here("compare", "--spec", spec_file(SPEC), "--out", tmp_path / "file"), "not a folder")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("unkept", ["", "Cannot store run 0123456789abcdef: No space left on device."])
def test_what_was_computed_is_printed_where_out_cannot_be_written(
    here, tmp_path, spec_file, sample_run, monkeypatch, unkept
):
    record, arrays = sample_run()

    def fails(folder, *_):
        raise StoreError(f"Cannot write to {folder}: No space left on device.")

    monkeypatch.setattr("kvq_core.cli.main._run", lambda spec: Finished(record, arrays, unkept=unkept))
    monkeypatch.setattr("kvq_core.record.store.write_run", fails)
    result = here("compare", "--spec", spec_file(SPEC), "--out", tmp_path / "out", "--json")
    assert result.returncode == 2 and json.loads(result.stdout)["id"] == record.id
    assert len(result.stderr.splitlines()) == 1 and "Cannot write to" in result.stderr
    assert (unkept or f"stored as {record.id}") in result.stderr


def test_what_was_measured_of_the_claims_is_printed_where_it_cannot_be_kept(here, monkeypatch, tmp_path):
    board = stored_board(DEFAULT_MODEL)
    monkeypatch.setattr("kvq_core.cli.claims._measured", lambda *_: board)
    (tmp_path / "home").write_text("in the way")
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    result = here("claims", "--json")
    assert result.returncode == 2 and json.loads(result.stdout)["claims"]
    assert len(result.stderr.splitlines()) == 1 and "The board cannot be written" in result.stderr


def test_a_store_that_makes_no_sense_is_one_line(here, monkeypatch):
    monkeypatch.setenv("KVQ_STORE", "nosuch://place")
    refused(here("show", "0" * 16), "nosuch")
