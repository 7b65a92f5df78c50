"""kill -9 at any moment leaves the whole run or nothing: at every operation on a file, and at random moments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvq_core.errors import StoreError
from kvq_core.record.layouts import Folders, Objects
from kvq_core.record.sharing import key_of
from tests.support.campaigns import whole
from tests.support.kill_points import store_at
from tests.support.sample_record import make_sample

pytestmark = [pytest.mark.long("kill"), pytest.mark.slow]
ROUNDS = 250 if whole() else 5


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of all places, and a line of layout, name and end for each process."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.support.kill_points", str(folder), str(ROUNDS)]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
    )
    return folder, [line.split(" ", 2) for line in found.stdout.splitlines()]


@pytest.fixture(params=["folders", "objects"])
def killed(request, ended):
    """Layout, folder of its places, and the names of those whose process was killed."""
    folder, lines = ended
    ends = {name: end for layout, name, end in lines if layout == request.param}
    assert set(ends.values()) == {"killed", "done 0"}
    return request.param, folder / request.param, {name for name, end in ends.items() if end == "killed"}


def whole_or_nothing(store, run_id: str) -> bool:
    """Whether the run is there; one that is must load, one that is not must not be listed."""
    there = store.exists(run_id)
    if there:
        record, arrays = store.load(run_id)
        assert record == make_sample(id=run_id)[0] and set(make_sample()[1]) <= set(arrays)
    else:
        with pytest.raises(StoreError, match="not in this store"):
            store.load(run_id)
    assert (run_id in [summary.id for summary in store.list(10_000)]) == there
    return there


def test_the_layouts_are_both_exercised(killed, record_property):
    layout, folder, names = killed
    record_property("kills", len(names))
    assert isinstance(store_at(layout, folder).layout, {"folders": Folders, "objects": Objects}[layout])
    for series, least in {"save": 6, "remove": 2, "torn": 3, "round": ROUNDS, "secret": 2, "torn_secret": 1}.items():
        assert sum(name.rpartition("-")[0] == series for name in names) >= least, series


@pytest.mark.parametrize("series", ["save", "remove"])
def test_killed_at_every_operation(killed, series):
    layout, folder, names = killed
    run = make_sample()
    seen = set()
    for name in filter(lambda name: name.startswith(series), names):
        store = store_at(layout, folder / name)
        seen.add(whole_or_nothing(store, run[0].id))
        store.save(*run)
        assert whole_or_nothing(store, run[0].id), "what a killed process left is in nobody's way"
    assert False in seen


def test_killed_halfway_through_a_file(killed):
    """Where files appear before they are filled, half a manifest is a damaged run: reported, listed nowhere, healed."""
    layout, folder, names = killed
    run = make_sample()
    for name in filter(lambda name: name.startswith("torn-"), names):
        store = store_at(layout, folder / name)
        if layout == "objects" and name == "torn-2":
            with pytest.raises(StoreError, match="damaged"):
                store.load(run[0].id)
            assert store.list() == []
        else:
            assert not whole_or_nothing(store, run[0].id)
        store.save(*run)
        assert whole_or_nothing(store, run[0].id)


def test_killed_while_the_secret_is_made(killed):
    """The next process makes one, and all others have the same from then on."""
    layout, folder, names = killed
    for name in filter(lambda name: "secret" in name, names):
        key = key_of(store_at(layout, folder / name), make_sample()[0].id)
        assert key == key_of(store_at(layout, folder / name), make_sample()[0].id)


def test_killed_at_random_moments(killed):
    layout, folder, names = killed
    for name in filter(lambda name: name.startswith("round"), names):
        store = store_at(layout, folder / name)
        n = 0
        while whole_or_nothing(store, f"{n:016x}"):
            n += 1
        assert len(store.list(10_000)) == n >= 1
