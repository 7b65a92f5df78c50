"""What is written of campaigns, and when nothing may be."""

import json
import os
import subprocess
import sys

import pytest

from tests.support import campaigns
from tests.support.campaigns import CAMPAIGNS, RESULTS, ROOT, hash_of, pairs

SUITE = """
import os
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.campaigns import CAMPAIGNS, inputs, whole

@inputs(2)
@given(st.integers())
def test_fuzz(n):
    assert whole()

def counts(name):
    @pytest.mark.long(name)
    def test(record_property):
        record_property("things", 7)
        assert name != os.environ.get("FAILS")
    return test

for name in CAMPAIGNS:
    globals()[f"test_{name}_counts"] = counts(name)
"""
PLUGIN = """
from pathlib import Path
from tests.support import campaigns
def pytest_configure(config):
    config.pluginmanager.register(campaigns.Ledger(config, Path("campaigns.json")))
"""


def ran(folder, *arguments, **env):
    """``SUITE``, by itself."""
    (folder / "here").mkdir(exist_ok=True)
    (folder / "here" / "test_it.py").write_text(SUITE)
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = long: x\ntestpaths = here\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LONG": "1", "CAMPAIGN": "", **env}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins, of which one is needed, take most of a start
    plugins = ("-p", "no:cacheprovider", "-p", "xdist.plugin")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-m", "long", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "fails", "written"),
    [((), "", True), (("-n", "2"), "", True), ((), "kill", False), (("-k", "fuzz"), "", False), (("here",), "", False)],
)
def test_campaigns_are_written_down_where_all_of_them_ran_and_passed(tmp_path, arguments, fails, written):
    done = ran(tmp_path, *arguments, FAILS=fails)
    assert done.returncode == bool(fails), done.stdout
    assert (tmp_path / "campaigns.json").exists() == written
    if written:
        found = json.loads((tmp_path / "campaigns.json").read_text())
        assert {name: entry["things"] for name, entry in found.items()} == dict.fromkeys(CAMPAIGNS, 7)
        assert found["fuzz"]["inputs"] == 200 and found["fuzz"]["tests"] == 2
        assert all(entry["sources"] == hash_of(CAMPAIGNS[name]) for name, entry in found.items())


@pytest.mark.slow
def test_a_campaign_alone_is_written_beside_what_stood_there(tmp_path):
    stood = {"kill": {"date": "2020-01-01", "kills": 3}, "fuzz": {"date": "2020-01-01"}}
    (tmp_path / "campaigns.json").write_text(json.dumps(stood))
    assert ran(tmp_path, CAMPAIGN="fuzz page").returncode == 0
    found = json.loads((tmp_path / "campaigns.json").read_text())
    assert list(found) == ["kill", "fuzz", "page"] and found["kill"] == stood["kill"]
    assert (found["fuzz"]["inputs"], found["fuzz"]["tests"], found["page"]["tests"]) == (200, 2, 1)
    refused = ran(tmp_path, CAMPAIGN="fuzz flood")
    assert refused.returncode and "CAMPAIGN = flood is none of kill, fuzz" in refused.stderr


def test_every_campaign_has_a_result_and_no_other_has():
    assert set(json.loads(RESULTS.read_text())) == set(CAMPAIGNS), "run the missing with make test-long; remove others"
    assert all((ROOT / place).exists() for places in CAMPAIGNS.values() for place in places)


@pytest.mark.parametrize("name", ["a.py", "js/a.js", "a.css", "a.toml"])
def test_the_hash_of_a_campaign_is_of_every_kind_of_source(tmp_path, monkeypatch, name):
    monkeypatch.setattr(campaigns, "ROOT", tmp_path)
    (tmp_path / "ui" / "js").mkdir(parents=True)
    (file := tmp_path / "ui" / name).write_text("1")
    before = hash_of(("ui",))
    file.write_text("2")
    assert hash_of(("ui",)) != before


def test_a_sample_of_pairs_has_every_value(monkeypatch):
    monkeypatch.delenv("LONG", raising=False)
    sample = pairs(range(7), "abc")
    assert [one for one, _ in sample] == list(range(7)) and {other for _, other in sample} == set("abc")
    monkeypatch.setenv("LONG", "1")
    assert len(set(pairs(range(7), "abc"))) == 21


SAMPLED = """
import pytest

@pytest.mark.long("page", sample=2)
@pytest.mark.parametrize("n", range(6))
def test_cases(n): ...

@pytest.mark.long("page", sample=0)
def test_whole_alone(): ...

@pytest.mark.long("fuzz")
def test_by_itself(): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize(("long", "found"), [("", ["cases[0]", "cases[3]", "by_itself"]), ("1", None)])
def test_of_cases_a_sample_is_spread_and_all_are_in_the_campaign(tmp_path, long, found):
    (tmp_path / "test_it.py").write_text(SAMPLED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: x\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LONG": long, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ("-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "tests.conftest")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *plugins]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    collected = [line.split("::test_")[1] for line in done.stdout.splitlines() if "::" in line]
    assert collected == (found or [*(f"cases[{n}]" for n in range(6)), "whole_alone", "by_itself"]), done.stdout
    assert bool(found) == ("5 deselected" in done.stdout)
