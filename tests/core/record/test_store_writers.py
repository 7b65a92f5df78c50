"""Writers at once, killed and overtaken: whole runs or none."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from kvq_core.record.store import open_store, read_run
from tests.support.sample_record import make_sample
from tests.support.stored_runs import ID, same


def test_the_first_writer_of_an_id_wins(url, sample_run):
    store = open_store(url)
    first, second = sample_run(text="first"), sample_run(text="second")
    store.save(*first)
    store.save(*second)
    same(first, store.load(ID))


def test_many_writers_at_once_leave_one_whole_run(url, sample_run):
    runs = {f"writer {i}": sample_run(text=f"writer {i}") for i in range(8)}
    start = threading.Barrier(len(runs))
    failures = []

    def write(run):
        start.wait()
        try:
            open_store(url).save(*run)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=write, args=(run,)) for run in runs.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    loaded = open_store(url).load(ID)
    same(runs[loaded[0].reference.text], loaded)
    assert len(open_store(url).list()) == 1


WRITER = """
import sys
from kvq_core.record.store import write_run
from pathlib import Path
from tests.support.sample_record import make_sample
import torch
for n in range(100000):
    record, arrays = make_sample(id=f"{n:016x}")
    arrays["big"] = torch.zeros(1_000_000)
    write_run(Path(sys.argv[1]) / str(n), record, arrays)
    print(n, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_folders_or_none(tmp_path):
    """SIGKILL while --out is written; the store's own kills are in test_store_kill.py."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": "."},
    )
    for _ in range(3):
        assert writer.stdout.readline().strip().isdigit()
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    folders = [f for f in tmp_path.glob("*") if not f.name.startswith(".")]
    assert len(folders) >= 3
    for folder in folders:
        read_run(folder)


def test_a_writer_that_is_overtaken_leaves_the_first_run(sample_run, monkeypatch):
    """Another commits while the arrays are written: what was promised to its maker stays."""
    url = f"memory://{uuid.uuid4().hex}"
    store, other = open_store(url), open_store(url)
    pipe = store.fs.pipe_file

    def overtaken(path, *arguments, **how):
        pipe(path, *arguments, **how)
        if path.endswith("arrays.safetensors"):
            monkeypatch.setattr(store.fs, "pipe_file", pipe)  # one file system for both: the other is not overtaken
            other.save(*sample_run(text="first"))

    monkeypatch.setattr(store.fs, "pipe_file", overtaken)
    store.save(*sample_run(text="second"))
    id = sample_run()[0].id
    assert store.load(id)[0].reference.text == other.load(id)[0].reference.text == "first"
    assert len(store.fs.find(store.root)) == 3, "the second took its attempt away"


OTHER = """
import sys
from kvq_core.record.store import open_store
from tests.support.sample_record import make_sample
run = make_sample(text="one")
print("ready", flush=True)
sys.stdin.readline()
store = open_store(sys.argv[1])
store.save(*run)
print(store.load(run[0].id)[0].reference.text)
"""


@pytest.mark.slow
def test_two_processes_that_write_one_id_agree(tmp_path):
    """This one and another."""
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    store = open_store(str(tmp_path))
    store.save(*make_sample(text="two"))
    read = store.load(ID)[0].reference.text
    assert other.communicate()[0].strip() == read == open_store(str(tmp_path)).load(ID)[0].reference.text
    assert read in ("one", "two")
    assert [f.name for f in tmp_path.iterdir()] == [ID]


@pytest.mark.slow
def test_another_process_sees_the_run_and_computes_the_same_bytes(tmp_path, sample_run):
    run = sample_run()
    open_store(str(tmp_path)).save(*run)
    read = f"r, a = open_store({str(tmp_path)!r}).load({ID!r}); print(r.id, len(a))"
    code = f"from kvq_core.record.store import open_store; {read}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == [ID, str(len(run[1]))]


def test_old_leftovers_of_killed_writers_are_swept(tmp_path, sample_run):
    old, fresh, stranger = (tmp_path / n for n in (f".{'a' * 16}-old", f".{'a' * 16}-new", ".config-of-someone"))
    for folder in (old, fresh, stranger):
        folder.mkdir()
    for folder in (old, stranger):
        os.utime(folder, (0, 0))
    open_store(str(tmp_path)).save(*sample_run())
    assert not old.exists() and fresh.exists() and stranger.exists()
