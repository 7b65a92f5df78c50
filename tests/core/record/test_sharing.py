"""Runs on a public instance: closed to all but their maker until they are shared, unlisted unless asked for."""

import subprocess
import sys
import threading
import uuid

import pytest

from kvq_core.errors import StoreError
from kvq_core.record.sharing import demand_open, key_of, listed_runs, may_open, reach
from kvq_core.record.store import open_store
from ui.service.access import key_for
from ui.service.services import Services

IDS = ["0123456789abcdef", "f" * 16, "a" * 16]


@pytest.fixture(params=["path", "memory://"])
def store(request, tmp_path, sample_run):
    made = open_store(str(tmp_path / "s") if request.param == "path" else f"memory://{uuid.uuid4().hex}/s")
    for n, id in enumerate(IDS):
        made.save(*sample_run(id=id, created=f"2026-01-0{n + 1}T00:00:00+00:00"))
    return made


@pytest.fixture
def public(monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "some-model")


def test_on_a_private_instance_every_run_is_open_and_listed(store):
    assert all(may_open(store, id) and reach(store, id) == "listed" for id in IDS)
    assert [run.id for run in listed_runs(store)] == IDS[::-1]


def test_a_run_is_its_makers_until_it_is_shared(store, public):
    mine, other, _ = IDS
    assert may_open(store, mine, key_of(store, mine))
    for key in ("", "x", key_of(store, other), key_of(store, mine)[:-1], "\u00e9"):
        assert not may_open(store, mine, key)
    store.share(mine)
    assert may_open(store, mine) and not may_open(store, other)
    assert reach(store, mine) == "link" and listed_runs(store) == []


def test_shared_runs_are_listed_only_where_asked_for_and_the_last_word_counts(store, public):
    for id in IDS[:2]:
        store.share(id, listed=True)
    assert [run.id for run in listed_runs(store)] == IDS[1::-1]
    assert [run.id for run in listed_runs(store, limit=1)] == IDS[1:2]
    store.share(IDS[1])
    assert [run.id for run in listed_runs(store)] == IDS[:1] and may_open(store, IDS[1])


def test_what_is_not_shared_and_what_is_not_there_read_alike(store, public):
    said = []
    for id in (IDS[0], "b" * 16):
        with pytest.raises(StoreError) as caught:
            demand_open(store, id)
        said.append(str(caught.value).replace(id, "ID"))
    assert said[0] == said[1]


@pytest.mark.parametrize("bad", ["../secret", "", "F" * 16, "0" * 15 + "\n"])
def test_ids_are_checked(store, public, bad):
    for call in (store.share, store.shared, lambda i: may_open(store, i)):
        with pytest.raises(StoreError, match="16 hexadecimal"):
            call(bad)


def test_only_a_run_that_is_there_can_be_shared(store):
    with pytest.raises(StoreError, match="not in this store"):
        store.share("b" * 16)
    assert store.shared("b" * 16) is None


def test_saving_the_same_run_again_keeps_it_shared(store, sample_run):
    store.share(IDS[0], listed=True)
    store.save(*sample_run(id=IDS[0], text="again"))
    assert store.shared(IDS[0]) == "listed"


@pytest.mark.slow
def test_keys_are_the_same_in_every_process_and_differ_between_stores(tmp_path):
    here, there = str(tmp_path / "a"), str(tmp_path / "b")
    code = "import sys; from kvq_core.record.sharing import key_of; from kvq_core.record.store import open_store; "
    code += f"print(key_of(open_store(sys.argv[1]), {IDS[0]!r}))"
    first = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True, check=True).stdout
    assert first.strip() == key_of(open_store(here), IDS[0]) != key_of(open_store(there), IDS[0])


def test_many_processes_that_start_at_once_agree_on_the_secret(tmp_path):
    found, start = [], threading.Barrier(8)

    def ask():
        start.wait()
        found.append(key_of(open_store(str(tmp_path / "s")), IDS[0]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


@pytest.mark.parametrize("damage", [b"", b"ab12", b"x" * 64])
def test_a_damaged_secret_is_replaced_and_closes_what_is_not_shared(store, monkeypatch, public, logged, damage):
    monkeypatch.setattr("kvq_core.record.sharing._WAIT_S", 0)
    store.share(IDS[1])
    before = key_of(store, IDS[0])
    store.fs.pipe_file(f"{store.root}/secret", damage)
    assert not may_open(store, IDS[0]) and not may_open(store, IDS[0], before)
    assert may_open(store, IDS[0], key_of(store, IDS[0])) and may_open(store, IDS[1])
    assert "secret was damaged" in "".join(logged)


def test_a_run_is_shown_where_its_key_cannot_be_had(store, monkeypatch, public, logged):
    services = Services(store, None, None)
    assert key_for(services, IDS[0]) == key_of(store, IDS[0])
    monkeypatch.setattr(store.fs, "cat_file", lambda path: (_ for _ in ()).throw(OSError("out of reach")))
    assert key_for(services, IDS[0]) == "" and "no key" in "".join(logged)
