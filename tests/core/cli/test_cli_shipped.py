"""Runs that ship with the app are found by every command that takes a run, in an empty store."""

import argparse

import pytest

from kvq_core.cli import added
from kvq_core.errors import StoreError
from kvq_core.pipeline.added import parent_of
from kvq_core.record.shipped import find_run, packaged_store
from kvq_core.record.store import open_store
from tests.support.command_line import refused

RUN = packaged_store().list()[0].id


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_STORE", f"{tmp_path}/store")


def test_it_is_found_by_its_id_and_one_of_the_store_is_as_well(tmp_path):
    record, arrays = find_run(RUN)
    assert record.id == RUN and arrays
    own = open_store(f"{tmp_path}/other")
    mine = record.model_copy(update={"id": "0" * 16})
    own.save(mine, arrays)
    assert find_run("0" * 16, own)[0] == mine == parent_of("0" * 16, own)
    with pytest.raises(StoreError, match="0{16}"):
        find_run("0" * 16)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_show_prints_it(here, form):
    shown = here("show", RUN, *form)
    assert (shown.returncode, shown.stderr) == (0, "") and RUN in shown.stdout
    refused(here("show", "0" * 16, *form), "0" * 16)


@pytest.mark.parametrize("command", ["why", "capture"])
def test_why_and_capture_know_its_lanes(here, command):
    first = find_run(RUN)[0].lanes[0].label
    refused(here(command, RUN, "no such lane"), "no such lane", first)


def test_a_lane_can_be_added_to_it():
    """What is asked; nothing is computed."""
    events = added.added(argparse.Namespace(run=RUN, lane='{"method": "kivi"}'))
    events.close()
    with pytest.raises(StoreError):
        added.added(argparse.Namespace(run="0" * 16, lane='{"method": "kivi"}'))
