"""The store in a real object-store server: S3's protocol over HTTP, several processes, exclusive creation, kill -9."""

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import fsspec
import pytest
import s3fs

from kvq_core.errors import StoreError
from kvq_core.record.beside import present_in
from kvq_core.record.retention import Quota
from kvq_core.record.store import S3_ATTEMPTS, S3_PATIENCE, open_store
from kvq_core.studies.cells import plan
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import run_plan, stored_study
from tests.core.record.test_store_limits import forget_looks, ids, run_id, sample
from tests.support.sample_record import make_sample
from tests.support.stored_runs import ID, same
from tests.support.study_models import study_data, write_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a server of its own, reached as a replica would: by the environment alone."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as env:
        env.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        env.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            env.setenv(name, "testing")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("kvq-tests")
        yield "s3://kvq-tests"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture
def url(bucket):
    return f"{bucket}/{uuid.uuid4().hex}"


def python(code: str, *given: str, **how) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *given],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **how,
    )


@pytest.mark.slow
def test_what_is_saved_is_loaded(url, sample_run):
    store = open_store(url)
    assert store.scheme == "s3" and not store.exists(ID) and store.list() == []
    run = sample_run()
    store.save(*run)
    store.save(*sample_run(text="second"))
    same(run, open_store(url).load(ID))
    assert ids(store) == [ID]


@pytest.mark.slow
def test_damage_is_noticed_and_healed(url, sample_run):
    store = open_store(url)
    store.save(*sample_run())
    content = next(path for path in store.fs.find(store.root) if path.endswith("arrays.safetensors"))
    data = bytearray(store.fs.cat_file(content))
    data[len(data) // 2] ^= 1
    store.fs.pipe_file(content, bytes(data))
    with pytest.raises(StoreError, match="checksum"):
        store.load(ID)
    store.save(*sample_run())
    same(sample_run(), store.load(ID))


@pytest.mark.slow
def test_old_runs_make_way(url):
    store = open_store(url, Quota(size=200_000))
    for n in range(1, 9):
        store.save(*sample(n))
        forget_looks(store)
    left = ids(store)
    assert run_id(8) in left and run_id(1) not in left and store.usage().size <= 200_000
    store.share(left[0])
    assert store.shared(left[0]) == "link" and store.load(left[0])[0].id == left[0]


@pytest.mark.slow
def test_a_study_goes_on_there(url, tmp_path):
    """A shard, then the whole, which finds what the shard has kept."""
    planned = plan(parse_study(study_data(write_model(tmp_path / "tiny"), 4)))
    ids = [cell.id for cell in planned.cells]
    assert run_plan(planned, open_store(url), shard=(1, 2)).cells["done"] == len(present_in(open_store(url), ids)) == 2
    done = run_plan(planned, open_store(url))
    assert done.cells["done"] == len(present_in(open_store(url), ids)) == 4
    assert stored_study(planned, open_store(url)).summary() == done.summary()


OTHER = """
import sys
from kvq_core.record.store import open_store
from tests.support.sample_record import make_sample
store = open_store(sys.argv[1])
run = make_sample(text="one")
print("ready", flush=True)
sys.stdin.readline()
store.save(*run)
print(store.load(run[0].id)[0].reference.text)
"""
ENDLESS = """
import sys
from kvq_core.record.store import open_store
from tests.support.sample_record import make_sample
store = open_store(sys.argv[1])
for n in range(10_000):
    store.save(*make_sample(id=f"{n:016x}"))
    print(n, flush=True)
"""


@pytest.mark.slow
def test_two_processes_that_write_one_id_agree(url):
    """This one and another."""
    other, store = python(OTHER, url), open_store(url)
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    store.save(*make_sample(text="two"))
    read = store.load(ID)[0].reference.text
    assert other.communicate()[0].strip() == read == open_store(url).load(ID)[0].reference.text
    assert read in ("one", "two")
    assert len(store.fs.find(store.root)) == 3, "the loser took its attempt away"


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_runs(url):
    writer = python(ENDLESS, url)
    for _ in range(4):
        assert writer.stdout.readline().strip().isdigit()
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    store = open_store(url)
    assert len(ids(store)) >= 4
    for found in ids(store):
        record, _ = store.load(found)
        assert record == make_sample(id=found)[0]


@pytest.fixture
def hangs_up(monkeypatch):
    """A server that closes every connection unanswered, and how many it had."""
    had: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work():
            while True:
                try:
                    server.accept()[0].close()
                except OSError:  # closed at the end of the test
                    return
                had.append(1)

        threading.Thread(target=work, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        s3fs.S3FileSystem.clear_instance_cache()
        yield had
        server.shutdown(socket.SHUT_RDWR)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.slow
def test_a_dead_server_is_given_up_soon(hangs_up, sample_run):
    """Left to themselves botocore and s3fs try 200 times."""
    with pytest.raises(StoreError, match="Cannot look for run"):
        open_store("s3://kvq-tests/x").save(*sample_run())
    assert 1 < len(hangs_up) <= 2 * S3_ATTEMPTS * S3_PATIENCE["retries"]["total_max_attempts"]


def test_what_fsspec_is_configured_with_goes_with_it_and_before_it(monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 60, "user_agent": "me"}})
    fs = open_store("s3://kvq-tests/x").fs
    assert fs.config_kwargs == {**S3_PATIENCE, "read_timeout": 60, "user_agent": "me"} and fs.retries == S3_ATTEMPTS


@pytest.mark.slow
def test_a_server_out_of_reach_is_one_line(monkeypatch, bucket, sample_run):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    store = open_store("s3://kvq-tests/x")
    for call in (lambda: store.exists(ID), lambda: store.save(*sample_run()), store.list, store.usage):
        with pytest.raises(StoreError, match="Cannot ") as caught:
            call()
        assert "\n" not in str(caught.value)
    s3fs.S3FileSystem.clear_instance_cache()
