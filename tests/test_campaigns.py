"""What is written of campaigns, and when nothing may be."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.campaigns import CAMPAIGNS, ROOT, hash_of, pairs

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "fails", "written"),
    [((), "", True), (("-n", "2"), "", True), ((), "kill", False), (("-k", "fuzz"), "", False), (("here",), "", False)],
)
def test_campaigns_are_written_down_where_all_of_them_ran_and_passed(tmp_path, arguments, fails, written):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "test_it.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: x\ntestpaths = here\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LONG": "1", "FAILS": fails}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "long", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == bool(fails), done.stdout
    assert (tmp_path / "campaigns.json").exists() == written
    if written:
        found = json.loads((tmp_path / "campaigns.json").read_text())
        assert {name: entry["things"] for name, entry in found.items()} == dict.fromkeys(CAMPAIGNS, 7)
        assert found["fuzz"]["inputs"] == 200 and found["fuzz"]["tests"] == 2
        assert all(entry["sources"] == hash_of(CAMPAIGNS[name]) for name, entry in found.items())


def test_a_sample_of_pairs_has_every_value(monkeypatch):
    monkeypatch.delenv("LONG", raising=False)
    sample = pairs(range(7), "abc")
    assert [one for one, _ in sample] == list(range(7)) and {other for _, other in sample} == set("abc")
    monkeypatch.setenv("LONG", "1")
    assert len(set(pairs(range(7), "abc"))) == 21
