"""Quota and retention: which runs make way, and that nobody beside it sees more or less than whole runs."""

import os
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvq_core.errors import StoreError
from kvq_core.record.layouts import LEFT, OPENED
from kvq_core.record.retention import Quota
from kvq_core.record.store import OPEN_S, open_store
from tests.support.sample_record import make_sample

ROOT = Path(__file__).parents[3]


def run_id(n: int) -> str:
    return f"{n:016x}"


def sample(n: int, day: int | None = None):
    """Run n, made on a day of January; all take about as many bytes."""
    return make_sample(id=run_id(n), created=f"2026-01-{day or n:02d}T00:00:00+00:00", text="word " * 2000)


def forget_looks(store) -> None:
    """As if all looks at the runs were longer ago than OPEN_S."""
    store._opened.clear()
    for path in store.fs.find(store.root):
        if path.endswith(f"/{OPENED}"):
            with suppress(FileNotFoundError):  # another process has just removed that run
                store.fs.pipe_file(path, str(time.time() - OPEN_S - 1).encode())


@pytest.fixture(params=["path", "memory://"])
def url(request, tmp_path):
    return {"path": str(tmp_path / "s"), "memory://": f"memory://{uuid.uuid4().hex}/s"}[request.param]


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> int:
    """Bytes one sample takes."""
    store = open_store(str(tmp_path_factory.mktemp("one")))
    store.save(*sample(1))
    return store.usage().size


def ids(store) -> list[str]:
    return sorted(summary.id for summary in store.list())


def test_the_oldest_makes_way_when_a_save_would_exceed(url, one):
    store = open_store(url, Quota(size=int(3.5 * one)))
    for n in (3, 1, 2):
        store.save(*sample(n))
    forget_looks(store)
    store.save(*sample(9))
    assert ids(store) == [run_id(2), run_id(3), run_id(9)]
    assert store.usage().size <= 3.5 * one
    with pytest.raises(StoreError, match="not in this store"):
        store.load(run_id(1))
    for n in (2, 3, 9):
        assert store.load(run_id(n))[0].id == run_id(n)


def test_without_limits_nothing_goes_and_nothing_is_noted(url):
    store = open_store(url)
    for n in range(1, 6):
        store.save(*sample(n))
    assert store.prune() == () and len(ids(store)) == 5
    assert not any(path.endswith(OPENED) for path in store.fs.find(store.root))


def test_runs_somebody_looks_at_stay_also_for_another_process(url, one):
    store = open_store(url, Quota(size=int(2.5 * one)))
    for n in (1, 2):
        store.save(*sample(n))
    forget_looks(store)
    open_store(url, store.limits).load(run_id(1))  # as another process would: it shares the place alone
    store.save(*sample(3))
    assert ids(store) == [run_id(1), run_id(3)]


def test_looks_are_noted_now_and_then(url, monkeypatch):
    store = open_store(url, Quota(days=1000))
    store.save(*sample(1))
    writes = []
    monkeypatch.setattr(store.layout, "mark", lambda *given: writes.append(given))
    for _ in range(20):
        store.load(run_id(1))
    assert not writes
    store._opened[run_id(1)] -= OPEN_S / 2
    store.load(run_id(1))
    assert len(writes) == 1


def test_a_store_full_of_open_runs_refuses_and_removes_nothing(url, one):
    store = open_store(url, Quota(size=int(2.5 * one)))
    for n in (1, 2):
        store.save(*sample(n))
    with pytest.raises(StoreError, match="KVQ_STORE_LIMIT"):
        store.save(*sample(3))
    assert ids(store) == [run_id(1), run_id(2)]


def test_a_run_larger_than_the_store_removes_nothing(url, one):
    store = open_store(url, Quota(size=int(1.5 * one)))
    store.save(*sample(1))
    forget_looks(store)
    record, arrays = sample(2)
    with pytest.raises(StoreError, match="no room"):
        store.save(record, {**arrays, "big": arrays["lane/0/kld"].repeat(20_000)})
    assert ids(store) == [run_id(1)]


def test_shared_runs_outlive_others_and_never_grow_too_old(url, one):
    store = open_store(url, Quota(size=int(2.5 * one), days=20))
    store.save(*sample(1))
    store.share(run_id(1))
    store.save(*make_sample(id=run_id(2), created=datetime.now(UTC).isoformat(), text="word " * 2000))
    forget_looks(store)
    assert store.prune() == () and len(ids(store)) == 2
    store.save(*make_sample(id=run_id(3), created=datetime.now(UTC).isoformat(), text="word " * 2000))
    assert ids(store) == [run_id(1), run_id(3)]


def test_old_runs_are_removed_when_a_run_is_saved(url):
    store = open_store(url, Quota(days=30))
    store.save(*sample(1))
    forget_looks(store)
    store.save(*make_sample(id=run_id(2), created=datetime.now(UTC).isoformat()))
    assert ids(store) == [run_id(2)]


def test_damaged_runs_make_way_too_by_the_age_of_their_file(url, one):
    store = open_store(url, Quota(size=int(2.5 * one)))
    for n in (1, 2):
        store.save(*sample(n))
    forget_looks(store)
    store = open_store(url, store.limits)
    store.fs.pipe_file(f"{store.root}/{run_id(1)}/manifest.json", b"broken")
    store.save(*sample(3))  # run 2 is from January, the broken file from now
    assert sorted(path.rsplit("/", 1)[-1] for path in store.fs.ls(store.root, detail=False)) != []
    assert store.exists(run_id(1)) and not store.exists(run_id(2)) and store.exists(run_id(3))


def test_what_is_removed_can_come_back(url, one):
    store = open_store(url, Quota(size=int(1.5 * one)))
    for n in (1, 2, 1):
        store.save(*sample(n))
        assert ids(store) == [run_id(n)] and store.load(run_id(n))[0].created == sample(n)[0].created
        forget_looks(store)


def test_nothing_of_a_removed_run_is_left(url, one):
    store = open_store(url, Quota(size=int(1.5 * one)))
    store.save(*sample(1))
    forget_looks(store)
    store.save(*sample(2))
    assert all(run_id(2) in path for path in store.fs.find(store.root))


def test_an_attempt_that_another_writer_is_making_survives_the_removal_of_its_run():
    store = open_store(f"memory://{uuid.uuid4().hex}", Quota(size=1))
    store.limits = Quota()
    store.save(*sample(1))
    attempt = f"{store.root}/{run_id(1)}/{'a' * 16}/record.json"
    store.fs.pipe_file(attempt, b"half")
    store.layout.remove(run_id(1))
    assert store.fs.find(store.root) == [attempt]


def test_what_killed_writers_left_in_an_object_store_is_swept_after_a_day(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.save(*sample(1))
    left = [f"{store.root}/{run_id(n)}/{'b' * 16}/record.json" for n in (1, 2)]
    for path in left:
        store.fs.pipe_file(path, b"half")
    before = set(store.fs.find(store.root))
    store.prune()
    assert set(store.fs.find(store.root)) == before
    later = datetime.now(UTC) - LEFT - timedelta(hours=1)
    for path in before:
        store.fs.store[path].modified = later
    store.prune()
    assert set(store.fs.find(store.root)) == before - set(left)
    assert store.load(run_id(1))


@pytest.mark.slow
def test_readers_beside_a_store_that_prunes_see_whole_runs_or_none(tmp_path, one):
    """A reader loads the same ids over and over while a writer with a tight limit makes them come and go."""
    limits = Quota(size=int(2.5 * one))
    over, said, loaded = threading.Event(), [], []

    def read():
        store = open_store(str(tmp_path))  # without limits: its looks keep nothing
        while not over.is_set():
            for n in range(1, 7):
                try:
                    loaded.append(store.load(run_id(n))[0].id == run_id(n))
                except StoreError as error:
                    said.append(str(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in [*range(1, 7)] * 8:
        writer = open_store(str(tmp_path), limits)
        writer.save(*sample(n))
        forget_looks(writer)
    over.set()
    for reader in readers:
        reader.join()
    assert all(loaded) and loaded
    assert {text for text in said if "not in this store" not in text} == set()


OTHER = """
import sys
from tests.core.record.test_store_limits import save_all
print("ready", flush=True)
sys.stdin.readline()
save_all(sys.argv[1], int(sys.argv[2]), range(1, 28, 2))
"""


def save_all(url, limit, numbers):
    """Another process may save between forgetting and saving, and what it saved is looked at: then once more."""
    for n in numbers:
        store, saved = open_store(url, Quota(size=limit)), False
        while not saved:
            forget_looks(store)
            try:
                store.save(*sample(n))
                saved = True
            except StoreError as error:
                if "runs that are open now" not in str(error):
                    raise


@pytest.mark.slow
def test_two_processes_keep_one_store_within_its_limit(tmp_path, one):
    """This one and another."""
    limit = 4 * one
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path), str(limit)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    save_all(str(tmp_path), limit, range(2, 28, 2))
    assert (other.communicate()[1], other.returncode) == ("", 0)
    store = open_store(str(tmp_path), Quota(size=limit))
    assert store.usage().size <= limit + one  # both may have found room for one run at the same moment
    found = ids(store)
    assert len(found) >= 3
    for found_id in found:
        store.load(found_id)
    assert not [folder.name for folder in tmp_path.iterdir() if folder.name.startswith(".")]


def test_usage(url, one):
    store = open_store(url)
    assert store.usage().runs == 0 and store.usage().oldest is None
    for n in (2, 1):
        store.save(*sample(n))
    usage = store.usage()
    assert usage.runs == 2 and abs(usage.size - 2 * one) < 200
    assert (usage.oldest.day, usage.newest.day) == (1, 2)


def test_a_listing_reads_each_manifest_once_and_nothing_else(url, monkeypatch):
    writer, store = open_store(url), open_store(url)
    for n in range(1, 5):
        writer.save(*sample(n))
    read = []
    cat = type(store.fs).cat_file
    monkeypatch.setattr(
        type(store.fs), "cat_file", lambda fs, path, *a, **k: read.append(path) or cat(fs, path, *a, **k)
    )
    assert len(store.list()) == 4 and len(read) == 4 and all(path.endswith("manifest.json") for path in read)
    writer.save(*sample(5))
    read.clear()
    assert len(store.list()) == 5 and store.usage().runs == 5
    assert [path.rsplit("/", 2)[-2] for path in read] == [run_id(5)]
